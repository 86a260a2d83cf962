"""`specmesh completion`: the scripts, in the shells themselves."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """One where `specmesh` is this checkout's, with a model in its folder."""
    program = tmp_path / "bin" / "specmesh"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom specmesh.cli import main\nmain()\n"
    )
    program.chmod(0o755)
    model = tmp_path / "models" / "org" / "small-Q4.gguf"
    model.parent.mkdir(parents=True)
    model.write_bytes(b"GGUF")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SPECMESH_")}
    return kept | {
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        "SPECMESH_MODELS_DIR": str(tmp_path / "models"),
    }


def shell(name: str, script: str, environment: dict[str, str]) -> str:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    done = subprocess.run([name, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def bash(words: str, environment: dict[str, str]) -> list[str]:
    """What bash offers for a line whose last word is being typed."""
    return shell(
        "bash",
        f'eval "$(specmesh completion bash)"; compopt() {{ :; }}; COMP_WORDS=({words}); '
        "COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _specmesh_completion specmesh; printf '%s\\n' \"${COMPREPLY[@]}\"",
        environment,
    ).split()


def test_bash(environment: dict[str, str]):
    """Commands, options, choices, and the names of models."""
    assert bash("specmesh ver", environment) == ["verifier"]
    assert bash("specmesh ping --cou", environment) == ["--count"]
    assert bash("specmesh verifier --gpu req", environment) == ["required"]
    assert bash("specmesh drafter --model org", environment) == ["org/small-Q4.gguf"]
    assert bash("specmesh verifier --model bun", environment) == ["bundled"]


ZSH = """autoload -U compinit; compinit -u -D; eval "$(specmesh completion zsh)"
COMP_WORDS='specmesh ver' COMP_CWORD=1 _SPECMESH_COMPLETE=zsh_complete specmesh"""
FISH = "specmesh completion fish | source; complete --do-complete 'specmesh ver'"


@pytest.mark.parametrize(("name", "script"), [("zsh", ZSH), ("fish", FISH)])
def test_other_shells(environment: dict[str, str], name: str, script: str):
    """They take the script, and the command answers it."""
    assert "verifier" in shell(name, script, environment).split()
