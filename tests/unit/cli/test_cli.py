"""The commands: what they ask for, what they find, and how they end."""

import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import ClassVar

import pytest
from click.testing import CliRunner, Result

from specmesh import client as client_module
from specmesh.cli import main
from specmesh.core.fields import Json
from specmesh.doctor import judge_reach
from specmesh.errors import Busy, ConfigError, DaemonUnreachable, RequestError, SpecmeshError

HEAVY = ["numpy", "zmq", "llama_cpp", "starlette", "uvicorn", "structlog", "rich", "mlx", "specmesh.engines"]


class FakeClient:
    """A daemon's client that answers with `chunks`, then raises `error` if there is one."""

    chunks: ClassVar[list[Json]] = []
    error: ClassVar[BaseException | None] = None
    asked: ClassVar[list[object]] = []

    def __init__(self, path: Path | None, timeout: float | None = None) -> None:
        type(self).asked.append(path)

    def complete(self, body: Json) -> Generator[Json, None, None]:
        type(self).asked.append(body)
        yield from self.chunks
        if self.error is not None:
            raise self.error

    def get(self, resource: str) -> Json:
        type(self).asked.append(resource)
        if self.error is not None:
            raise self.error
        return {"role": "verifier", "loading": 0.5, "schema_version": 1}


@pytest.fixture(autouse=True)
def daemon(monkeypatch: pytest.MonkeyPatch) -> type[FakeClient]:
    FakeClient.chunks, FakeClient.error, FakeClient.asked = [], None, []
    monkeypatch.setattr(client_module, "Client", FakeClient)
    monkeypatch.delenv("SPECMESH_SOCKET", raising=False)
    return FakeClient


def run(*args: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(main, list(args), input=stdin)


@pytest.mark.parametrize(
    "args",
    [
        "generate",
        "generate x y",
        "generate x --resume cmpl-1",
        "generate x --logprobs 2",
        "generate x --n 2 --show-drafts",
        "generate x --max-tokens 0",
        "generate x --draft-n 25",
        "generate --resume cmpl-1 --n 2",
        "generate x --seed 4294967296",
        "generate x --top-p 1.5",
        "audit --strategy probabilistic",
        "bench run --png x.png",
        "bench run --suite --prompts x",
        "recommend --chip z80",
        "verify",
        "stats --all",
        "stats --json --watch",
        "drafter --engine magic",
    ],
)
def test_usage_errors(daemon: type[FakeClient], args: str):
    done = run(*args.split())
    assert (done.exit_code, daemon.asked) == (2, [])
    assert "Error: " in done.stderr


EXITS = {RequestError: 2, DaemonUnreachable: 69, Busy: 75, ConfigError: 78, SpecmeshError: 1}


@pytest.mark.parametrize(("cls", "code"), EXITS.items())
def test_errors_are_one_line_and_a_code(daemon: type[FakeClient], cls: type[SpecmeshError], code: int):
    """An error of ours is one line on stderr and its exit code, from every command; partial text stays on stdout."""
    error = cls("what is wrong")
    choice = {"index": 0, "text": "AB", "finish_reason": None}
    daemon.chunks = [{"choices": [choice], "specmesh": {"token_ids": [1, 2]}}]
    daemon.error = error
    done = run("generate", "hi")
    assert (done.exit_code, done.stdout, done.stderr) == (code, "AB\n", f"specmesh: {error}\n")
    for command in (("stats",), ("stats", "--json"), ("stats", "--watch")):
        done = run(*command)
        assert (done.exit_code, done.stdout, done.stderr) == (code, "", f"specmesh: {error}\n")


IN_TURN = """import sys; from specmesh.cli import main
for command in sys.argv[1:]:
    try: main(command.split())
    except SystemExit as end: print(f"\\n{end.code}", *sys.modules, file=sys.stderr)
"""


def test_commands_load_nothing_heavy():
    asking = [
        f"{name} --socket none.sock"
        for name in ("stats", "stats --json", "generate hi", "bench run", "bench steps", "ping")
    ]
    commands = {"--version": 0, "--help": 0} | dict.fromkeys(asking, 69)
    done = subprocess.run([sys.executable, "-c", IN_TURN, *commands], check=True, capture_output=True, text=True)
    ended = [line.split() for line in done.stderr.splitlines() if " specmesh.cli " in line]
    for (command, code), (told, *modules) in zip(commands.items(), ended, strict=True):
        assert (command, int(told)) == (command, code)
        loaded = [name for name in modules for heavy in HEAVY if name == heavy or name.startswith(f"{heavy}.")]
        assert (command, loaded) == (command, [])


# --- completion

OFFERS = """eval "$(specmesh completion bash)"; compopt() { :; }; COMP_WORDS=(specmesh ver)
COMP_CWORD=1; _specmesh_completion specmesh; printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_completion_in_bash(tmp_path: Path):
    program = tmp_path / "specmesh"
    lines = (f"#!{sys.executable}", "import sys", f"sys.path.insert(0, {str(Path(__file__).parents[3])!r})")
    program.write_text("\n".join((*lines, "from specmesh.cli import main", "main()\n")))
    program.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SPECMESH_")}
    folders = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", OFFERS], env=kept | folders, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "verifier\n", "")


@pytest.mark.parametrize(
    ("error", "macos", "found", "fix"),
    [
        (None, False, "answers", None),
        (ConnectionRefusedError(111, "Connection refused"), False, "Connection refused", "specmesh verifier --bind"),
        (TimeoutError("timed out"), False, "timed out", "firewall"),
        (OSError(113, "no route"), False, "no route", "VPN"),
        (OSError(65, "no route"), True, "no route", "Security > Local Network"),
        (ValueError("it is no address"), False, "is no address", "config show drafter"),
    ],
)
@pytest.mark.fault("E4.49")
def test_reach(error: Exception | None, macos: bool, found: str, fix: str | None):
    check = judge_reach("tcp://192.168.1.5:7071", error, macos)
    assert check.status == ("ok" if error is None else "fail")
    assert found in check.found
    assert (fix is None and check.fix is None) or (fix is not None and fix in str(check.fix))
