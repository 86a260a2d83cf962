"""The README's demo: a verifier and a drafter on loopback with the bundled pair, one generation, both stopped again."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from specmesh.client import Client
from specmesh.errors import SpecmeshError

ADDRESS = "tcp://127.0.0.1:7079"
SETTINGS = [
    "--max-tokens",
    "160",
    "--temperature",
    "0.8",
    "--top-p",
    "0.95",
    "--seed",
    "5",
    "--draft-n",
    "4",
]
DAEMON = ["--model", "bundled", "--threads", "1", "--ctx", "1024", "--log-level", "warning"]


def main(prompt: str, engine: str) -> int:
    """Run the demo, the drafter on this engine; the exit status of `specmesh generate`."""
    specmesh = [sys.executable, "-m", "specmesh"]
    with tempfile.TemporaryDirectory() as folder:
        sockets = {role: str(Path(folder) / f"{role}.sock") for role in ("verifier", "drafter")}
        commands = {"verifier": ["--bind", ADDRESS], "drafter": ["--connect", ADDRESS, "--engine", engine]}
        processes = [
            subprocess.Popen([*specmesh, role, *options, *DAEMON, "--socket", sockets[role]])
            for role, options in commands.items()
        ]
        try:
            _wait_for_drafter(Client(Path(sockets["verifier"])), processes)
            _explain(prompt)
            command = [*specmesh, "generate", *SETTINGS, "--show-drafts", "--verbose"]
            with tempfile.TemporaryFile() as told:
                code = subprocess.run(
                    [*command, "--socket", sockets["verifier"], "--", prompt], stderr=told, check=False
                ).returncode
                told.seek(0)
                sys.stderr.write("\n" + _summary(told.read().decode()))
            return code
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(15)


def _explain(prompt: str) -> None:
    how = "[[marked]]" if os.environ.get("NO_COLOR") else "\x1b[32mgreen\x1b[39m"
    print(f"{how}: drafted and accepted; the rest is the verifier's own. Four drafts in every step, to show them:")
    print(
        f"these models are so small that drafting cannot pay, and auto would switch it off.\n\n{prompt}",
        end="",
    )
    sys.stdout.flush()


def _summary(told: str) -> str:
    """The closing lines without the line per round, which `generate --verbose` prints too."""
    return "".join(line for line in told.splitlines(keepends=True) if not line.startswith("round "))


def _wait_for_drafter(client: Client, processes: list[subprocess.Popen[bytes]], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for process in processes:
            if process.poll() is not None:
                raise SystemExit(f"a daemon ended with status {process.returncode}")
        try:
            if client.get("/stats").get("peers"):
                return
        except SpecmeshError:
            pass
        time.sleep(0.1)
    raise SystemExit("the daemons did not come up")


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
