"""Generate a text over two daemons by an installed specmesh, away from its checkout.

    python tools/wheel.py SITE

SITE is a folder that holds the installed wheel. Both daemons simulate their models. The exit code
is 1 if a part of the package is missing, or if the text is not the one of the verifier alone.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

PATIENCE = 120.0
PYTHON = [sys.executable, "-P"]
SPECMESH = [*PYTHON, "-m", "specmesh"]
SIMULATED = ["--engine", "sim", "--model", "step_ms=2"]
GENERATE = ["generate", "hello", "--max-tokens", "40", "--socket"]
PLACES = """
import importlib, sys
for name in sys.argv[1:]:
    print(*importlib.import_module(name).__path__)
"""
PACKAGES = (
    "specmesh.cli",
    "specmesh.daemons.verifier",
    "specmesh.wire",
    "specmesh.systemd",
    "specmesh.launchd",
)


def ended(site: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    """Return the result of a command that uses the wheel."""
    return subprocess.run(
        command, env=environment(site), cwd="/", capture_output=True, text=True, check=False
    )


def run(site: Path, *words: str) -> str:
    """Return a command's output, which is tried again while daemons start.

    Raise SystemExit with its errors if it does not succeed in time.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        done = ended(site, [*SPECMESH, *words])
        if not done.returncode:
            return done.stdout
        if time.monotonic() > deadline:
            command = " ".join(words)
            raise SystemExit(f"specmesh {command} left with {done.returncode}: {done.stderr}")
        time.sleep(0.2)


def check_places(site: Path) -> None:
    """Check that no editable installation of a checkout lends a package to the wheel."""
    done = ended(site, [*PYTHON, "-c", PLACES, *PACKAGES])
    done.check_returncode()
    root = str(site.resolve())
    strangers = [path for path in done.stdout.split() if not path.startswith(root)]
    if strangers:
        raise SystemExit(f"not of the wheel: {strangers}")


def environment(site: Path) -> dict[str, str]:
    """Return an environment in which the wheel comes before an editable installation."""
    return {**os.environ, "PYTHONPATH": str(site.resolve()), "XDG_CONFIG_HOME": os.devnull}


def main() -> None:
    """Start both daemons, generate at each, and compare."""
    site = Path(sys.argv[1])
    check_places(site)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    with tempfile.TemporaryDirectory(prefix="sm-") as folder, ExitStack() as ends:
        for role, flag in (("verifier", "--bind"), ("drafter", "--connect")):
            options = [*SIMULATED, flag, address, "--socket", f"{folder}/{role}.sock"]
            command = [*SPECMESH, role, *options]
            process = subprocess.Popen(command, env=environment(site), cwd="/")
            ends.callback(process.wait, PATIENCE)
            ends.callback(process.terminate)
        verifier = f"{folder}/verifier.sock"
        texts = [
            run(site, *GENERATE, verifier),
            run(site, *GENERATE, f"{folder}/drafter.sock"),
            run(site, *GENERATE, verifier, "--draft-n", "0"),
        ]
        if len(set(texts)) != 1:
            raise SystemExit(f"three texts differ: {texts}")
        if not list((site / "specmesh/api/page").glob("index.html")):
            raise SystemExit("the page is not in the wheel")
        for role in ("verifier", "drafter"):
            run(site, "service", "install", role, "--dry-run")
    print(f"{run(site, '--version').strip()}: text, services and bundled files as installed")


if __name__ == "__main__":
    main()
