"""The commands: usage, errors and exit codes, imports, completion, and pictures of a terminal."""

import builtins
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from threading import Event, main_thread
from unittest.mock import MagicMock, Mock

import pytest
from click.testing import CliRunner
from harness import PATIENCE, snapshots
from harness.ports import free_port
from harness.tables import cases
from rich.console import Console

from specmesh import client as client_module
from specmesh.cli import demo, main, model_names, status
from specmesh.cli.demo import predicted, result, screen
from specmesh.cli.doctor import judge_reach
from specmesh.cli.generate import Conversation
from specmesh.client import GeneratedText
from specmesh.core.statistics.snapshot import as_json
from specmesh.errors import Busy, ConfigError, DaemonUnreachable, RequestError, SpecmeshError
from specmesh.machines import step_ms
from specmesh.terminal import DRAFT_COLOURS, underlined_draft


@pytest.fixture(autouse=True)
def daemon(monkeypatch):
    """A client whose daemon answers with no chunk and no statistics until a test gives some."""
    client = Mock()
    client.complete.return_value = iter(())
    monkeypatch.setattr(client_module, "Client", Mock(return_value=client))
    monkeypatch.delenv("SPECMESH_SOCKET", raising=False)
    return client


def run(command):
    return CliRunner().invoke(main, command.split())


USAGE_ERRORS = """
generate
generate x y
generate x --resume cmpl-1
generate x --logprobs 2
generate x --n 2 --show-drafts
generate x --max-tokens 0
generate x --draft-n 25
generate x --draft-sources suffix,page
bench run --draft-n 2,0
generate --resume cmpl-1 --n 2
generate x --seed 4294967296
generate x --top-p 1.5
audit --strategy probabilistic
bench run --png x.png
bench run --suite --prompts x
recommend --chip z80
verify
stats --all
stats --json --watch
drafter --engine magic
"""


@pytest.mark.parametrize("command", USAGE_ERRORS.strip().splitlines())
def test_usage_errors(daemon, command):
    done = run(command)
    assert done.exit_code == 2
    assert "Error: " in done.stderr
    assert daemon.mock_calls == []


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ("", {}),
        ("--draft-sources suffix,remote", {"draft_sources": ["suffix", "remote"]}),
        ("--draft-sources ,", {"draft_sources": []}),
    ],
)
def test_sources_of_drafts_that_a_text_is_asked_with(daemon, given, asked):
    run(f"generate x {given}")
    [body, *_] = daemon.complete.call_args.args
    assert {name: body[name] for name in body if name == "draft_sources"} == asked


EXITS = {RequestError: 2, DaemonUnreachable: 69, Busy: 75, ConfigError: 78, SpecmeshError: 1}


@pytest.mark.parametrize(("cls", "code"), EXITS.items())
@pytest.mark.parametrize("command", ["stats", "stats --json", "stats --watch"])
def test_errors_are_one_line_and_a_code(daemon, command, cls, code):
    daemon.get.side_effect = error = cls("what is wrong")
    done = run(command)
    assert (done.exit_code, done.stdout, done.stderr) == (code, "", f"specmesh: {error}\n")


@pytest.mark.parametrize("role", ["verifier", "drafter"])
def test_a_command_that_can_wait_says_so(role):
    """Others, such as vllm-config, have no --wait."""
    done = CliRunner().invoke(main, [role, "--engine", "llama", "--model", "/nowhere/m.gguf"])
    assert done.exit_code == 78
    assert done.stderr.endswith(", or give --wait where it comes later\n")


HEAVY = "numpy zmq llama_cpp starlette uvicorn structlog rich mlx specmesh.engines"
IN_TURN = """import sys; from specmesh.cli import main
for command in sys.argv[1:]:
    try: main(command.split())
    except SystemExit as end: print(f"\\n{end.code}", *sys.modules, file=sys.stderr)
"""


def test_commands_load_nothing_heavy():
    names = ("stats", "stats --json", "generate hi", "bench run", "bench steps", "ping")
    asking = [f"{name} --socket none.sock" for name in names]
    commands = ["--version", "--help", *asking]
    program = [sys.executable, "-c", IN_TURN, *commands]
    done = subprocess.run(program, check=True, capture_output=True, text=True)
    ended = [line.split() for line in done.stderr.splitlines() if " specmesh.cli " in line]
    assert [code for code, *_ in ended] == ["0", "0", *["69"] * len(asking)]
    for _, *modules in ended:
        assert not set(HEAVY.split()) & set(modules)


WHILE_IT_IS_IMPORTED = """
import runpy, signal, sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == module:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
module = sys.argv.pop(1)
runpy.run_module("specmesh", run_name="__main__")
"""


@pytest.mark.parametrize("module", ["specmesh.cli.config", "specmesh.cli.generate"])
def test_an_interrupt_before_the_command_begins(module):
    program = [sys.executable, "-c", WHILE_IT_IS_IMPORTED, module, "generate", "once"]
    done = subprocess.run(program, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")


# --- a package without its extras

EXTRAS = "jinja2 llama_cpp mlx mlx_lm huggingface_hub"
WITHOUT_EXTRAS = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS.split()}))"


@cases(
    "command, extra",
    """
    ["verifier --model bundled", "llama"]
    ["drafter --model bundled", "llama"]
    ["drafter --model bundled --engine mlx", "mlx"]
    ["recommend --target bundled", "llama"]
    ["rpc-server", "llama"]
    ["models pull owner/name", "hub"]
    ["demo", "llama"]
    """,
)
def test_a_missing_extra_is_named(tmp_path, monkeypatch, command, extra):
    """The last line says what to install; no traceback comes before it."""
    # Also the processes that a command starts import this file.
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_EXTRAS)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{Path(__file__).parents[3]}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    words = command.split()
    if words[0] in ("verifier", "drafter"):
        words += ["--socket", str(tmp_path / "a.sock")]
    if words[0] in ("verifier", "rpc-server"):
        scheme = "tcp://" if words[0] == "verifier" else ""
        words += ["--bind", f"{scheme}127.0.0.1:{free_port()}"]
    program = [sys.executable, "-m", "specmesh", *words]
    done = subprocess.run(program, check=False, capture_output=True, text=True)
    *_, last = done.stderr.splitlines()
    assert done.returncode == 78
    assert last.endswith(f"in specmesh's checkout, pip install '.[{extra}]'")
    assert "Traceback" not in done.stderr


# --- completion

OFFERS = """eval "$(specmesh completion bash)"; compopt() { :; }; COMP_WORDS=(specmesh ver)
COMP_CWORD=1; _specmesh_completion specmesh; printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_completion_in_bash(tmp_path, monkeypatch):
    program = tmp_path / "specmesh"
    root = Path(__file__).parents[3]
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(root)!r})\n"
        "from specmesh.cli import main\nmain()\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for name in tuple(os.environ):
        if name.startswith("SPECMESH"):
            monkeypatch.delenv(name)
    done = subprocess.run(["bash", "-c", OFFERS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "verifier\n", "")


@pytest.fixture
def real_client(monkeypatch):
    """Ask a daemon in earnest; the other tests of this module have none."""
    monkeypatch.setattr(client_module, "Client", model_names.Client)


SHELLS = {"bash": "plain,big-model", "zsh": "plain\nbig-model\n_", "fish": "plain,big-model"}


def completed(monkeypatch, words, shell="fish"):
    """Return what a shell is offered for the last of these words."""
    monkeypatch.setenv("_SPECMESH_COMPLETE", f"{shell}_complete")
    monkeypatch.setenv("COMP_WORDS", f"specmesh {words}")
    monkeypatch.setenv("COMP_CWORD", words.split(" ")[-1] if shell == "fish" else "3")
    done = CliRunner().invoke(main, prog_name="specmesh", complete_var="_SPECMESH_COMPLETE")
    assert done.stderr == ""
    return done.stdout


def test_a_report_on_stderr_has_a_line_for_each_number(daemon):
    """Numbers are as precise as with --json."""
    report = {"time_s": 0.123456, "by_source": {"ngram": {"drafted": 3, "accepted": 2}}}
    choices = [{"index": 0, "text": "", "finish_reason": "stop"}]
    daemon.complete.return_value = iter([{"choices": choices, "specmesh": {"report": report}}])
    done = CliRunner().invoke(main, ["generate", "x", "--verbose"])
    lines = [line.split() for line in done.stderr.splitlines()]
    own = [["time_s", "0.123456"]]
    assert lines == [*own, ["by_source.ngram.drafted", "3"], ["by_source.ngram.accepted", "2"]]


@pytest.fixture
def served(fake_daemon, monkeypatch):
    """The socket of a daemon that serves two models."""
    models = {"data": [{"id": "big-model"}, {"id": "other"}]}
    return fake_daemon({"/v1/models": (200, json.dumps(models).encode())})


@pytest.mark.parametrize("command", ["generate", "chat"])
@pytest.mark.parametrize("shell", SHELLS)
def test_a_served_model_is_offered(real_client, served, monkeypatch, command, shell):
    monkeypatch.setenv("SPECMESH_SOCKET", str(served))
    offered = completed(monkeypatch, f"{command} --model big", shell)
    assert SHELLS[shell] in offered
    assert "other" not in offered


def test_the_daemon_of_the_command_is_asked(real_client, served, monkeypatch):
    assert "other" in completed(monkeypatch, f"generate --socket {served} --model o")


def test_nothing_is_offered_without_a_daemon(real_client, tmp_path, monkeypatch):
    """Nor is anything said."""
    monkeypatch.setenv("SPECMESH_SOCKET", str(tmp_path / "none.sock"))
    assert completed(monkeypatch, "generate --model big").strip() == ""


@pytest.fixture
def pulled(tmp_path, monkeypatch):
    """A folder with two models, one pulled from a hub."""
    for name in ("me/tiny/tiny-q4.gguf", "own.gguf"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"GGUF")
    monkeypatch.setenv("SPECMESH_MODELS_DIR", str(tmp_path))


@cases(
    "words, offered",
    """
    ["verifier --model b", ["bundled"]]
    ["drafter --model ", ["bundled", "me/tiny/tiny-q4.gguf", "own.gguf"]]
    ["recommend --target own", ["own.gguf"]]
    ["models pull m", ["me/tiny"]]
    """,
)
def test_models_on_the_disk_are_offered(pulled, monkeypatch, words, offered):
    """And files, where a path may be given."""
    lines = completed(monkeypatch, words).splitlines()
    plain = [line.partition(",")[2] for line in lines if line.startswith("plain")]
    assert plain == offered
    assert any(line.startswith("file") for line in lines) == (" --" in words)


# --- specmesh doctor


def test_an_address_that_answers():
    check = judge_reach("tcp://192.168.1.5:7071", None, False)
    assert (check.status, check.fix) == ("ok", None)
    assert check.found.endswith(" answers")


@pytest.mark.parametrize(
    ("error", "macos", "fix"),
    [
        (ConnectionRefusedError(111, "Connection refused"), False, "specmesh verifier --bind"),
        (TimeoutError("timed out"), False, "firewall"),
        (OSError(113, "no route"), False, "VPN"),
        (OSError(65, "no route"), True, "Security > Local Network"),
        (ValueError("it is no address"), False, "config show drafter"),
    ],
)
@pytest.mark.fault("E4.49")
def test_an_address_out_of_reach(error, macos, fix):
    check = judge_reach("tcp://192.168.1.5:7071", error, macos)
    assert check.status == "fail"
    assert error.args[-1] in check.found
    assert fix in check.fix


# --- a conversation


class UpperCase:
    """A daemon that answers in upper case, a letter per chunk; `!` is Ctrl-C.

    bodies: the requests that it got; closed: how many streams have ended.
    """

    def __init__(self):
        self.bodies = []
        self.closed = 0

    def complete(self, body):
        self.bodies.append(deepcopy(body))
        try:
            for letter in body["messages"][-1]["content"].upper():
                if letter == "!":
                    raise KeyboardInterrupt
                yield {"choices": [{"delta": {"content": letter}}]}
        finally:
            self.closed += 1

    def messages(self, number):
        """Return a request's messages: "role: text"."""
        body = self.bodies[number]
        return [f"{message['role']}: {message['content']}" for message in body["messages"]]


@pytest.fixture
def talk(monkeypatch):
    """Return the daemon of a conversation in which the user types these lines."""

    def typed(*lines, **options):
        monkeypatch.setattr(sys, "stdin", Mock(**{"isatty.return_value": True}))
        monkeypatch.setattr(builtins, "input", Mock(side_effect=[*lines, EOFError]))
        upper_case = UpperCase()
        Conversation(upper_case, {"temperature": 0}, **options).run()
        return upper_case

    return typed


def test_each_turn_has_the_ones_before(talk, capsys):
    conversation = talk("hi", "", "you", system="be")
    assert capsys.readouterr().out == "HI\nYOU\n"
    assert conversation.messages(0) == ["system: be", "user: hi"]
    assert conversation.messages(1) == ["system: be", "user: hi", "assistant: HI", "user: you"]
    assert conversation.bodies[0]["temperature"] == 0


def test_clear_begins_a_conversation_anew_and_bye_ends_it(talk):
    conversation = talk("hi", "/clear", "you", "/bye", "never", system="be")
    assert conversation.messages(1) == ["system: be", "user: you"]
    assert len(conversation.bodies) == 2


def test_help_is_on_stderr(talk, capsys):
    talk("/help")
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("/clear")) == ("", 2)


def test_an_interrupted_answer_counts_as_far_as_it_came(talk, capsys):
    """Ctrl-C closes the stream, and the conversation goes on."""
    conversation = talk("ab!cd", KeyboardInterrupt, "x")
    assert conversation.closed == 2
    assert conversation.messages(1)[1] == "assistant: AB"
    assert capsys.readouterr().out == "AB\nX\n"


# --- specmesh demo

REPORT = json.loads("""
    {"rounds": 4.0, "drafted": 8.0, "accepted": 6.0, "acceptance_rate": 0.75,
     "mean_acceptance_length": 2.5,
     "one_token_step_ms": 19.0, "bytes_sent": 90.0, "bytes_received": 70.0}
    """)


def demo_texts(ids):
    """Return the text of the verifier alone, and one with drafts that is 2.5 times as fast."""
    slow = REPORT | {"tokens_per_second": 40.0}
    fast = REPORT | {"tokens_per_second": 100.0, "by_source": {"local": {"drafted": 8}}}
    alone = GeneratedText(pieces=[("one\ntwo\nthree", "")], ids=[1, 2], report=slow)
    pieces = [("one\n", ""), ("two", "remote"), ("2", "local")]
    return alone, GeneratedText(pieces=pieces, ids=ids, report=fast)


@cases("rows, expected", "[0, 18.9] [1, 18.9] [3, 21.9] [5, 28.75] [9, 36.9] [512, 48.7]")
def test_step_times(rows, expected):
    assert step_ms("h100-70b", rows) == pytest.approx(expected)


@cases("ids, same", "[[1, 2], true] [[1, 3], false]")
def test_result_of_a_demo(ids, same):
    found = result("h100-70b", "local", *demo_texts(ids))
    assert (found["source"], found["by_source"]) == ("local", {"local": {"drafted": 8}})
    assert (found["speedup"], found["bytes_per_token"]) == (2.5, 80.0)
    assert (found["tokens_per_second_alone"], found["same_text"]) == (40.0, same)


def test_an_interrupted_demo_ends_its_texts(monkeypatch):
    """It does not wait until both have all of their tokens."""
    ended = Event()
    alone, drafted = MagicMock(), MagicMock()
    alone.__exit__.side_effect = lambda *_: ended.set()
    drafted.__exit__.return_value = None
    pair = demo.Pair(alone, drafted, "", [])
    monkeypatch.setattr(demo, "daemons", lambda *_, **__: nullcontext(pair))

    def generated(client, *_):
        if client is drafted:
            # A signal of this thread would not wake the main one, which handles it.
            signal.pthread_kill(main_thread().ident, signal.SIGINT)
        assert ended.wait(PATIENCE), "its client is closed"

    monkeypatch.setattr(demo, "generate", generated)
    monkeypatch.setattr(signal, "signal", Mock())  # what it sets would outlast it here
    assert run("demo --json").exit_code == 130
    assert ended.is_set()


def test_screen_of_a_demo():
    """The last lines of both texts are side by side, drafts in the colours of their sources."""
    console = Console(width=60, force_terminal=True, color_system="standard")
    with console.capture() as captured:
        console.print(screen(demo_texts([1, 2]), "with drafts", 4))
    title, first, second, _ = captured.get().splitlines()
    assert "with drafts: 2 tokens" in title
    assert "two" in first
    assert "one" in first
    assert "\x1b[32m" not in first
    assert "three" in second
    assert "\x1b[32mtwo\x1b[0m\x1b[36m2" in second


def test_the_prediction_of_a_demo_lacks_each_fifth_line():
    text = "".join(f"{number}\n" for number in range(1, 12)) + "12"
    assert predicted(text).split() == ["1", "2", "3", "4", "6", "7", "8", "9", "11", "12"]


def test_each_source_has_a_colour_of_its_own():
    assert len(set(DRAFT_COLOURS.values())) == len(DRAFT_COLOURS)


def test_drafts_of_a_source_without_a_colour_are_underlined():
    assert underlined_draft("two", "new") == "\x1b[4mtwo\x1b[24;39m"


# --- bench


@pytest.mark.parametrize("command", ["bench run", "bench run --suite", "audit"])
def test_a_drafter_without_a_verifier_has_no_drafts_to_compare(daemon, command):
    daemon.get.return_value = {"role": "drafter", "verifiers": [{"name": None}]}
    done = run(command)
    assert (done.exit_code, done.stdout) == (69, "")
    assert "found no verifier" in done.stderr


# --- stats


def test_stats_name_each_source_of_drafts():
    """The busiest is first; a drafter, whose /stats have none, has no such row."""
    totals = {
        "drafted_by_source": {"grammar": 9, "local": 2_000_000, "suffix": 30},
        "accepted_by_source": {"local": 1_500_000, "suffix": 20},
    }
    found = dict(status.rows({"role": "verifier", "totals": totals}))
    assert found["by source"] == "local 1500000 of 2000000, suffix 20 of 30, grammar 0 of 9"
    assert "by source" not in dict(status.rows({"role": "drafter"}))


# --- stats --watch


@pytest.fixture
def watch(monkeypatch):
    """Show these answers of a daemon, then press Ctrl-C; return the pauses."""
    pauses = []
    monkeypatch.setattr(status.time, "sleep", pauses.append)

    def run_until_ctrl_c(*answers):
        client = Mock(**{"get.side_effect": [*answers, KeyboardInterrupt]})
        with pytest.raises(KeyboardInterrupt):
            status.show_repeatedly(client, 0.5, status.Screen())
        return pauses

    return run_until_ctrl_c


@pytest.mark.parametrize("sessions", [0, 20])
@pytest.mark.parametrize("drafters", [0, 9])
@cases("width, height", "[80, 24] [40, 10] [12, 3]")
def test_watch_fits(watch, monkeypatch, capsys, sessions, drafters, width, height):
    monkeypatch.setattr(status.sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("LINES", str(height))
    watch(as_json(snapshots.verifier(sessions=sessions, drafters=drafters)))
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) < height
    assert max(map(len, shown)) < width


def test_watch_at_80_columns_loses_nothing(watch, monkeypatch, capsys):
    """Long rows go on in the next line, and the table of sessions has all its columns."""
    monkeypatch.setattr(status.sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "60")
    snapshot = as_json(snapshots.verifier(sessions=3, drafters=2))
    watch(snapshot)
    shown = capsys.readouterr().out.split()
    heading = [word for name in status._SESSION_COLUMNS for word in name.split("_")]
    rows = " ".join(text for _, text in status.rows(snapshot))
    assert [word for word in [*heading, *rows.split()] if word not in shown] == []


def test_peers_cannot_steer_the_terminal():
    snapshot = as_json(snapshots.verifier())
    snapshot["peers"][0]["drafter"] = "\x1b[2J\nmac[red]"
    assert dict(status.rows(snapshot))["drafter"].startswith("?[2J?mac[red]")


def test_watch_without_a_terminal(watch, capsys):
    """It prints the rows each interval, and waits for a daemon that went away."""
    loading = as_json(snapshots.LOADING)
    pauses = watch(as_json(snapshots.verifier()), DaemonUnreachable("gone"), loading)
    shown = capsys.readouterr().out
    assert shown.count("role           verifier") == 3
    assert shown.index("waiting for the daemon to return") < shown.index("loading        43%")
    assert pauses == [0.5] * 3
