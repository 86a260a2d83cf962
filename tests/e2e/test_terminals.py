"""What a real terminal gets: bars that are gone in the end, or plain lines where it asks for them.

The daemon of the prompts is a fake one, which sends the progress that a slow one would.
"""

import json
import signal
import socket

import pytest
from terminals import OnTerminal, screen

PLAIN = [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {"TTY_INTERACTIVE": "0"}]
READING = "reading the prompt"


def event(data):
    return f"data: {json.dumps(data)}\n\n".encode()


def read_so_far(ids):
    reading = {"total": 6000, "cache": 0, "processed": ids, "time_ms": 1000 + ids}
    choice = {"index": 0, "text": "", "delta": {}, "finish_reason": None}
    return event({"choices": [choice], "prompt_progress": reading})


def text(part, finish_reason=None):
    choice = {"index": 0, "text": part, "delta": {"content": part}, "finish_reason": finish_reason}
    return event({"choices": [choice], "specmesh": {}})


LONG_PROMPT = b"".join([*map(read_so_far, (1000, 2000, 6000)), text("Once"), text(" more", "stop")])
ANSWER = (200, LONG_PROMPT + b"data: [DONE]\n\n")


@pytest.fixture
def reader(fake_daemon):
    """The socket of a daemon that reads a long prompt."""
    return fake_daemon({"/v1/completions": ANSWER, "/v1/chat/completions": ANSWER})


def test_a_bar_is_gone_before_the_text(reader):
    with OnTerminal("generate", "x", "--socket", reader) as command:
        assert command.end() == 0
    assert f"{READING}" in command.seen
    assert "2,000 of 6,000 tokens" in command.seen
    assert screen(command.seen) == ["Once more", ""]


def test_a_bar_beside_a_piped_text(reader):
    """The bar is on the terminal, the text in the pipe."""
    with OnTerminal("generate", "x", "--socket", reader, piped=True) as command:
        assert command.end() == 0
        piped = command.process.stdout.read()
    assert piped == b"Once more\n"
    assert READING in command.seen
    assert not any(screen(command.seen))


@pytest.mark.parametrize("env", PLAIN, ids=str)
def test_no_redraw_where_it_is_not_wanted(reader, env):
    """One plain line says how far the prompt is, and nothing moves the cursor."""
    with OnTerminal("generate", "x", "--socket", reader, env=env) as command:
        assert command.end() == 0
    plain = f"specmesh: {READING}: 17%, 1,000 of 6,000 tokens"
    assert command.seen.split("\r\n") == [plain, "Once more", ""]


def test_a_bar_in_a_narrow_terminal(reader):
    """It has the percents, in one line."""
    with OnTerminal("generate", "x", "--socket", reader, columns=24) as command:
        assert command.end() == 0
    assert f" 33% {READING}" in command.seen
    assert screen(command.seen) == ["Once more", ""]


@pytest.mark.parametrize("env", [{}, *PLAIN], ids=str)
def test_a_chat(reader, env):
    """The answer stands alone in its line, and the next one is asked for."""
    with OnTerminal("chat", "--socket", reader, env=env) as command:
        command.until(">>> ")
        command.type("hi\n")
        command.until("Once more\r\n>>> ")
        command.type("\x04")
        assert command.end() == 0
    assert READING in command.seen
    assert "Once more" in screen(command.seen)
    assert ("\x1b" in command.seen) == (not env)


@pytest.fixture
def listener(tmp_path):
    """A daemon's socket whose connection a test accepts."""
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(tmp_path / "s"))
        opened.listen()
        yield opened


@pytest.fixture
def stuck(listener):
    """Return a command whose prompt is read to a third, and its connection."""

    def made():
        command = OnTerminal("generate", "x", "--socket", listener.getsockname())
        connection, _ = listener.accept()
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + read_so_far(2000))
        return command, connection

    return made


def test_an_interrupted_command_takes_its_bar_away(stuck):
    command, connection = stuck()
    with command, connection:
        command.until("33%")
        command.process.send_signal(signal.SIGINT)
        assert command.end() == 130
    assert not any(READING in line for line in screen(command.seen))


def test_a_bar_follows_the_size_of_its_window(stuck):
    """A line that is drawn after the change fits into the new width."""
    command, connection = stuck()
    with command, connection:
        command.until("33%")
        command.resize(60)
        connection.sendall(read_so_far(3000))
        command.until(" 50%")
        connection.sendall(text("end", "stop") + b"data: [DONE]\n\n")
        connection.close()
        command.end()
    drawn = [line for part in command.seen.split("\r") for line in screen(part)]
    half = next(line for line in drawn if "50%" in line)
    assert len(half) <= 60
    assert screen(command.seen) == ["end", ""]


def test_a_daemon_that_loads(fake_daemon):
    """A command that waits for it shows how far it is."""
    refusal = {"error": {"message": "it loads", "specmesh": {"error": "Starting"}}}
    loading = {"role": "verifier", "loading": 0.4}
    answers = {
        "/v1/completions": (503, json.dumps(refusal).encode()),
        "/stats": (200, json.dumps(loading).encode()),
    }
    with OnTerminal("generate", "x", "--socket", fake_daemon(answers)) as command:
        command.until("40%")
        answers["/v1/completions"] = ANSWER
        assert command.end() == 0
    notice = "specmesh: it loads; it is waited for, 300 s at most"
    assert screen(command.seen) == [notice, "Once more", ""]


# --- daemons


@pytest.fixture
def drafter(tmp_path):
    """Return the words that start a drafter with the bundled model."""
    words = ("drafter", "--model", "bundled", "--engine", "llama", "--insecure-no-auth")
    places = ("--socket", tmp_path / "d.sock", "--config", "/dev/null")
    return [*words, *places, "--connect", "tcp://127.0.0.1:1", "--drain", 0]


def ended_when_ready(words, **options):
    with OnTerminal(*words, **options) as daemon:
        daemon.until("ready")
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.end() == 0
    return daemon.seen


def test_a_daemon_shows_its_loading(drafter):
    """The bar is gone once the daemon is ready, and its log is whole."""
    pytest.importorskip("llama_cpp")
    seen = ended_when_ready(drafter)
    assert "loading the model" in seen
    assert not any("loading the model" in line for line in screen(seen))


@pytest.mark.parametrize("env", PLAIN, ids=str)
def test_a_daemon_on_a_plain_terminal(drafter, env):
    pytest.importorskip("llama_cpp")
    seen = ended_when_ready(drafter, env=env)
    assert "specmesh: loading the model: " in seen
    assert "\x1b" not in seen


# --- stats --watch


@pytest.mark.parametrize("env", PLAIN, ids=str)
def test_watch_appends_lines(pair, env):
    """A terminal that is not to be redrawn gets what has changed, and no control sequence."""
    words = ("stats", "--watch", "--interval", 0.1, "--socket", pair["verifier"].socket)
    with OnTerminal(*words, env=env) as command:
        while command.seen.count("role  ") < 3:
            assert command.read()
        command.process.send_signal(signal.SIGINT)
        assert command.end() == 130
    assert "\x1b" not in command.seen
    assert command.seen.count("wire  ") == 1
    assert max(map(len, command.seen.split("\r\n"))) < 80
