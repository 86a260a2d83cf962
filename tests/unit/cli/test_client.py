"""The client against a daemon that answers what the test says, over a real Unix socket."""

import json
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from specmesh import client, errors
from specmesh.cli import main
from specmesh.client import Client, answer
from specmesh.paths import instance_lock

CHUNK = {"choices": [{"index": 0, "text": "A", "finish_reason": None}], "specmesh": {}}


def sse(*events: object) -> bytes:
    told = ("[DONE]" if event == "[DONE]" else json.dumps(event) for event in events)
    return b"".join(f"data: {data}\n\n".encode() for data in told)


KNOWN = {cls.__name__: cls for cls in (errors.Busy, errors.Starting, errors.ConfigError, errors.PromptTooLong)}


@pytest.mark.parametrize("name", [*KNOWN, "Unheard", "FrameError", None])
@pytest.mark.parametrize("place", ["status", "stream", "get"])
def test_daemons_errors_are_raised_as_their_class(fake_daemon: Callable[..., Path], name: str | None, place: str):
    told = {"error": {"message": "the sentence", "code": "its_own", "specmesh": {"error": name, "exit_code": 1}}}
    raw = json.dumps(told).encode()
    completion = (200, sse(CHUNK, told)) if place == "stream" else (500, raw)
    path = fake_daemon({"/v1/completions": completion, "/x": (400, raw)})
    with pytest.raises(errors.SpecmeshError, match=r"^the sentence$") as caught:
        Client(path).get("/x") if place == "get" else list(Client(path).complete({}))
    assert type(caught.value) is KNOWN.get(name or "", errors.SpecmeshError)


@pytest.mark.parametrize(
    "answer",
    [(200, sse(CHUNK)), (200, b""), (200, sse(CHUNK) + b"data: {\n\n"), (500, b"<html>"), None],
    ids=["no [DONE]", "nothing", "half an event", "not JSON", "hangs up"],
)
def test_broken_answers_are_unreachable(fake_daemon: Callable[..., Path], answer: tuple[int, bytes] | None):
    """A daemon that goes away or talks nonsense is DaemonUnreachable; what had come was given."""
    asking = Client(fake_daemon({"/v1/completions": answer}))
    got = []
    with pytest.raises(errors.DaemonUnreachable):
        got += list(asking.complete({}))
    assert len(got) <= 1


def test_a_daemon_that_is_starting(fake_daemon: Callable[..., Path], monkeypatch: pytest.MonkeyPatch):
    """First it holds its lock only, then it loads, then it answers: each is waited for, and said once."""
    loading = json.dumps({"error": {"message": "loading", "specmesh": {"error": "Starting"}}}).encode()
    answers = {"/v1/completions": (503, loading)}
    listening = fake_daemon(answers)
    path = listening.with_name("late.sock")
    heard = list[str]()
    later = [
        lambda: path.symlink_to(listening),
        lambda: answers.update({"/v1/completions": (200, sse(CHUNK, "[DONE]"))}),
    ]
    monkeypatch.setattr(client.time, "sleep", lambda _: later.pop(0)())
    with instance_lock(path):
        assert list(answer(Client(path), {}, 0, heard.append)) == [CHUNK]
    assert heard == [f"the daemon at {path} is starting; it is waited for, 300 s at most"]


def test_a_daemon_that_dies_while_answering(tmp_path: Path):
    with socket.socket(socket.AF_UNIX) as daemon, ThreadPoolExecutor() as others:
        daemon.bind(str(tmp_path / "s"))
        daemon.listen()
        asked = others.submit(Client(tmp_path / "s").get, "/stats")
        with daemon.accept()[0] as connection:
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{")
        with pytest.raises(errors.WentAway):
            asked.result(30)


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS refuses who comes to a full queue")
def test_a_daemon_that_hangs_is_not_starting(tmp_path: Path):
    path = tmp_path / "s"
    with instance_lock(path), socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(str(path))
        daemon.listen(0)
        for _ in range(2):
            with socket.socket(socket.AF_UNIX) as earlier, suppress(BlockingIOError):
                earlier.setblocking(False)
                earlier.connect(str(path))
        with pytest.raises(errors.WentAway) as told:
            Client(path, timeout=30).get("/stats")
        assert told.value.address == str(path)


def test_names_cannot_move_the_cursor(fake_daemon: Callable[..., Path]):
    """A peer calls itself what it likes; a terminal sees no control characters of it."""
    ping = {"peer": "mac\x1b[2J\n", "address": "tcp://127.0.0.1", "time_ms": 1.0}
    path = fake_daemon({"/ping": (200, json.dumps({"peers": [ping]}).encode())})
    done = CliRunner().invoke(main, ["ping", "--count", "1", "--socket", str(path)])
    assert done.stdout.startswith("from mac?[2J? via tcp://127.0.0.1: time=1.00 ms\n")
