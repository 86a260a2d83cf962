"""The clients as their registries have them, each installed apart from the others."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Package:
    """The package of a client, for pip in a virtual environment of its own, or for npm.

    wanted: its name with a version, and those of others beside it, with spaces between.
    """

    wanted: str
    npm: bool = False


PACKAGES = {
    "openai": Package("openai>=3"),
    "openai_node": Package("openai@7.59.0", npm=True),
    "anthropic": Package("anthropic>=2.14"),
    "anthropic_node": Package("@anthropic-ai/sdk@1.14.0", npm=True),
    "langchain": Package("langchain-openai"),
    "litellm": Package("litellm"),
    "llm": Package("llm==0.36"),
    "instructor": Package("instructor"),
    "pydantic_ai": Package("pydantic-ai-slim[openai]"),
    "agents": Package("openai-agents"),
    "aider": Package("aider-chat==0.86.2"),
    "lm_eval": Package("lm_eval[api]==0.4.13"),
    "codex": Package("@openai/codex@0.171.0", npm=True),
    "opencode": Package("opencode-ai@1.18.33", npm=True),
}
"""By the clients' names. `langchain` is two of them, chat and completions."""


@dataclass(frozen=True, slots=True)
class Installed:
    """A client's folder, and the interpreter that asks in its name."""

    folder: Path
    python: Path


def installed(name: str, venvs: Path) -> Installed | None:
    """Return a client, installed if it is not there yet; None if that fails."""
    return placed(PACKAGES[name], venvs / name)


def placed(package: Package, folder: Path) -> Installed | None:
    """Return a package in this folder, installed if it is not there yet; None if that fails."""
    python = folder / "bin" / "python"
    if package.npm:
        python = Path(sys.executable)
    done = folder / "installed"
    if done.exists():
        return Installed(folder, python)
    if package.npm:
        command = ["npm", "install", "--silent", "--no-save", "--prefix", str(folder)]
    else:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        command = [str(python), "-m", "pip", "install", "--quiet"]
    if subprocess.run([*command, *package.wanted.split()], check=False).returncode != 0:
        return None
    done.touch()
    return Installed(folder, python)
