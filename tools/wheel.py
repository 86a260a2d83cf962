"""A text over two daemons by an installed specmesh, away from its checkout.

    python tools/wheel.py SITE

SITE is a folder that holds the installed wheel. Both daemons simulate their models. Exits with 1 where something of the
package is missing or the text is another than the verifier's alone.
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
PACKAGES = (
    "specmesh.cli",
    "specmesh.daemons.verifier",
    "specmesh.wire",
    "specmesh.systemd",
    "specmesh.launchd",
)


def run(site: Path, *words: str) -> str:
    """What a command says; tried again while daemons start. SystemExit with its own words where it goes on failing."""
    command, deadline = (
        [sys.executable, "-P", "-m", "specmesh", *words],
        time.monotonic() + PATIENCE,
    )
    while True:
        done = subprocess.run(
            command, env=environment(site), cwd="/", capture_output=True, text=True, check=False
        )
        if not done.returncode:
            return done.stdout
        if time.monotonic() > deadline:
            raise SystemExit(
                f"specmesh {' '.join(words)} left with {done.returncode}: {done.stderr}"
            )
        time.sleep(0.2)


def check_places(site: Path) -> None:
    """An editable installation of a checkout must not lend what the wheel lacks."""
    code = "import importlib, sys\nfor name in sys.argv[1:]: print(*importlib.import_module(name).__path__)"
    found = subprocess.run([sys.executable, "-P", "-c", code, *PACKAGES], env=environment(site), cwd="/",
                           capture_output=True, text=True, check=True).stdout.split()  # fmt: skip
    strangers = [path for path in found if not path.startswith(str(site.resolve()))]
    if strangers:
        raise SystemExit(f"not of the wheel: {strangers}")


def environment(site: Path) -> dict[str, str]:
    """That of a user who has the wheel alone: before an editable installation its folder comes first."""
    return {**os.environ, "PYTHONPATH": str(site.resolve()), "XDG_CONFIG_HOME": os.devnull}


def main() -> None:
    """Start both, generate, compare."""
    site = Path(sys.argv[1])
    check_places(site)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{one.getsockname()[1]}"
    with tempfile.TemporaryDirectory(prefix="sm-") as folder, ExitStack() as ends:
        sockets = {role: f"{folder}/{role}.sock" for role in ("verifier", "drafter")}
        for role, words in (("verifier", ("--bind", address)), ("drafter", ("--connect", address))):
            command = [
                sys.executable,
                "-P",
                "-m",
                "specmesh",
                role,
                "--engine",
                "sim",
                "--model",
                "step_ms=2",
                *words,
            ]
            process = subprocess.Popen(
                [*command, "--socket", sockets[role]], env=environment(site), cwd="/"
            )
            ends.callback(process.wait, PATIENCE)
            ends.callback(process.terminate)
        texts = {
            run(site, "generate", "hello", "--max-tokens", "40", "--socket", path)
            for path in sockets.values()
        }
        alone = run(
            site,
            "generate",
            "hello",
            "--max-tokens",
            "40",
            "--draft-n",
            "0",
            "--socket",
            sockets["verifier"],
        )
        if texts != {alone}:
            raise SystemExit(f"three texts differ: {texts}, {alone}")
        for role in sockets:
            run(site, "service", "install", role, "--dry-run")
    print(f"{run(site, '--version').strip()}: text, services and bundled files as installed")


if __name__ == "__main__":
    main()
