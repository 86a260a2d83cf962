"""The commands: what they ask for, what they find, how they end, and what a terminal shows."""

import builtins
import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import ClassVar
from unittest.mock import Mock

import pytest
from click.testing import CliRunner, Result
from harness import snapshots
from rich.console import Console

from specmesh import client as client_module
from specmesh.cli import main, status
from specmesh.cli.demo import result, screen
from specmesh.cli.doctor import judge_reach
from specmesh.cli.generate import Conversation
from specmesh.client import GeneratedText
from specmesh.core.fields import Json
from specmesh.core.statistics.snapshot import as_json
from specmesh.errors import Busy, ConfigError, DaemonUnreachable, RequestError, SpecmeshError
from specmesh.machines import step_ms

HEAVY = [
    "numpy",
    "zmq",
    "llama_cpp",
    "starlette",
    "uvicorn",
    "structlog",
    "rich",
    "mlx",
    "specmesh.engines",
]


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


USAGE_ERRORS = (
    "generate; generate x y; generate x --resume cmpl-1; generate x --logprobs 2; generate x --n 2 --show-drafts; "
    "generate x --max-tokens 0; generate x --draft-n 25; generate --resume cmpl-1 --n 2; "
    "generate x --seed 4294967296; generate x --top-p 1.5; audit --strategy probabilistic; bench run --png x.png; "
    "bench run --suite --prompts x; recommend --chip z80; verify; stats --all; stats --json --watch; "
    "drafter --engine magic"
)


@pytest.mark.parametrize("args", USAGE_ERRORS.split("; "))
def test_usage_errors(daemon: type[FakeClient], args: str):
    done = run(*args.split())
    assert (done.exit_code, daemon.asked) == (2, [])
    assert "Error: " in done.stderr


EXITS = {RequestError: 2, DaemonUnreachable: 69, Busy: 75, ConfigError: 78, SpecmeshError: 1}


@pytest.mark.parametrize(("cls", "code"), EXITS.items())
def test_errors_are_one_line_and_a_code(
    daemon: type[FakeClient], cls: type[SpecmeshError], code: int
):
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
    names = ("stats", "stats --json", "generate hi", "bench run", "bench steps", "ping")
    asking = [f"{name} --socket none.sock" for name in names]
    commands = {"--version": 0, "--help": 0} | dict.fromkeys(asking, 69)
    done = subprocess.run(
        [sys.executable, "-c", IN_TURN, *commands], check=True, capture_output=True, text=True
    )
    ended = [line.split() for line in done.stderr.splitlines() if " specmesh.cli " in line]
    for (command, code), (told, *modules) in zip(commands.items(), ended, strict=True):
        assert (command, int(told)) == (command, code)
        loaded = [
            name
            for name in modules
            for heavy in HEAVY
            if name == heavy or name.startswith(f"{heavy}.")
        ]
        assert (command, loaded) == (command, [])


# --- completion

OFFERS = """eval "$(specmesh completion bash)"; compopt() { :; }; COMP_WORDS=(specmesh ver)
COMP_CWORD=1; _specmesh_completion specmesh; printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_completion_in_bash(tmp_path: Path):
    program = tmp_path / "specmesh"
    lines = (
        f"#!{sys.executable}",
        "import sys",
        f"sys.path.insert(0, {str(Path(__file__).parents[3])!r})",
    )
    program.write_text("\n".join((*lines, "from specmesh.cli import main", "main()\n")))
    program.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SPECMESH_")}
    folders = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", OFFERS], env=kept | folders, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "verifier\n", "")


@pytest.mark.parametrize(
    ("error", "macos", "found", "fix"),
    [
        (None, False, "answers", None),
        (
            ConnectionRefusedError(111, "Connection refused"),
            False,
            "Connection refused",
            "specmesh verifier --bind",
        ),
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


# --- what a terminal shows: a conversation


class Answering:
    """Answers in upper case, a letter per chunk, and notes what it was asked; `!` is Ctrl-C."""

    def __init__(self) -> None:
        self.asked: list[Json] = []
        self.closed = 0

    def complete(self, body: Json) -> Generator[Json, None, None]:
        self.asked.append(
            {
                name: list(value) if isinstance(value, list) else value
                for name, value in body.items()
            }
        )
        try:
            for letter in body["messages"][-1]["content"].upper():
                if letter == "!":
                    raise KeyboardInterrupt
                yield {"choices": [{"delta": {"content": letter}}]}
        finally:
            self.closed += 1


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch):
    """Makes input() return these lines; an exception among them is raised."""

    def lines(*said: str | type[BaseException]) -> None:
        monkeypatch.setattr(sys, "stdin", Mock(**{"isatty.return_value": True}))
        monkeypatch.setattr(builtins, "input", Mock(side_effect=[*said, EOFError]))

    return lines


def talk(**kind: object) -> Answering:
    client = Answering()
    Conversation(client, {"temperature": 0}, **kind).run()  # type: ignore[arg-type]
    return client


def roles(body: Json) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in body["messages"]]  # type: ignore[attr-defined]


def test_what_was_said_is_asked_again(typed, capsys):
    """Each turn has the ones before, and the system's message first."""
    typed("hi", "", "you")
    client = talk(system="be")
    assert capsys.readouterr().out == "HI\nYOU\n"
    assert roles(client.asked[0]) == [("system", "be"), ("user", "hi")]
    assert roles(client.asked[1]) == [
        ("system", "be"),
        ("user", "hi"),
        ("assistant", "HI"),
        ("user", "you"),
    ]
    assert client.asked[0]["temperature"] == 0


def test_commands_of_a_conversation(typed, capsys):
    """/clear begins anew, /bye ends, /help explains on stderr."""
    typed("hi", "/clear", "/help", "you", "/bye", "never")
    client = talk(system="be")
    assert roles(client.asked[1]) == [("system", "be"), ("user", "you")]
    assert len(client.asked) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("/clear")) == ("HI\nYOU\n", 2)


def test_an_interrupted_answer_counts_as_far_as_it_came(typed, capsys):
    """Ctrl-C closes the stream, and the conversation goes on."""
    typed("ab!cd", KeyboardInterrupt, "x")
    client = talk()
    assert client.closed == 2
    assert roles(client.asked[1])[1] == ("assistant", "AB")
    assert capsys.readouterr().out == "AB\nX\n"


# --- specmesh demo, and the step times that it imitates

REPORT = {
    "rounds": 4.0,
    "drafted": 8.0,
    "accepted": 6.0,
    "acceptance_rate": 0.75,
    "mean_acceptance_length": 2.5,
}
REPORT |= {
    "tokens_per_second": 100.0,
    "verify_ms": 76.0,
    "bytes_sent": 90.0,
    "bytes_received": 70.0,
}


def texts(second: list[int]) -> tuple[GeneratedText, GeneratedText]:
    slower = REPORT | {"tokens_per_second": 40.0}
    alone = GeneratedText(pieces=[("one\ntwo\nthree", False)], ids=[1, 2], report=slower)
    return alone, GeneratedText(pieces=[("one\n", False), ("two", True)], ids=second, report=REPORT)


@pytest.mark.parametrize(
    ("rows", "expected"), [(0, 18.9), (1, 18.9), (3, 21.9), (5, 28.75), (9, 36.9), (512, 48.7)]
)
def test_step_times(rows: int, expected: float):
    assert step_ms("h100-70b", rows) == pytest.approx(expected)


@pytest.mark.parametrize(("ids", "same"), [([1, 2], True), ([1, 3], False)])
def test_result_of_a_demo(ids: list[int], same: bool):
    found = result("h100-70b", *texts(ids))
    told = {
        "speedup": 2.5,
        "bytes_per_token": 80.0,
        "tokens_per_second_alone": 40.0,
        "same_text": same,
    }
    assert found | told == found


def test_screen_of_a_demo():
    """The last lines of both, side by side, drafts in green."""
    console = Console(width=60, force_terminal=True, color_system="standard")
    with console.capture() as captured:
        console.print(screen(texts([1, 2]), 4))
    _, first, second, _ = captured.get().splitlines()
    assert ("two" in first, "one" in first, "three" in second) == (True, True, True)
    assert "\x1b[32mtwo" in second
    assert "\x1b[32m" not in first


# --- `stats --watch`, in any size, whatever the snapshot says


def client(*answers):
    """A daemon that answers with these, errors raised; then the user presses Ctrl-C."""
    return Mock(**{"get.side_effect": [*answers, KeyboardInterrupt]})


@pytest.fixture
def slept(monkeypatch):
    naps: list[float] = []
    monkeypatch.setattr(status.time, "sleep", naps.append)
    return naps


@pytest.mark.parametrize("sessions", [0, 20])
@pytest.mark.parametrize("drafters", [0, 9])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 10), (12, 3)])
def test_watch_fits(slept, monkeypatch, capsys, sessions, drafters, width, height):
    monkeypatch.setattr(status.sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("LINES", str(height))
    with pytest.raises(KeyboardInterrupt):
        status.watch(client(as_json(snapshots.verifier(sessions=sessions, drafters=drafters))), 0.5)
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) < height
    assert max(map(len, shown)) < width


def test_peers_cannot_steer_the_terminal():
    snapshot = as_json(snapshots.verifier())
    snapshot["peers"][0]["drafter"] = "\x1b[2J\nmac[red]"
    assert dict(status.rows(snapshot))["drafter"].startswith("?[2J?mac[red]")


def test_lines_where_there_is_no_terminal(slept, capsys):
    """The rows, each interval; a daemon that goes away is waited for, and shown again."""
    told = client(
        as_json(snapshots.verifier()), DaemonUnreachable("gone"), as_json(snapshots.LOADING)
    )
    with pytest.raises(KeyboardInterrupt):
        status.watch(told, 0.5)
    shown = capsys.readouterr().out
    assert shown.count("role           verifier") == 3
    assert shown.index("waiting for the daemon to return") < shown.index("loading        43%")
    assert slept == [0.5] * 3
