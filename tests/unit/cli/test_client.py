"""The client against a daemon that answers what the test says, over a real Unix socket; the tree of errors, and what
clients get of it; what JSON has at a path."""

import json
import re
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from specmesh import client, errors
from specmesh.api.shapes import error_body
from specmesh.cli import main
from specmesh.client import Client, answer
from specmesh.core.fields import at, ids_at, list_at, number_at, object_at, objects_at
from specmesh.errors import RemoteProtocolError, SpecmeshError
from specmesh.paths import instance_lock

CHUNK = {"choices": [{"index": 0, "text": "A", "finish_reason": None}], "specmesh": {}}


def sse(*events: object) -> bytes:
    told = ("[DONE]" if event == "[DONE]" else json.dumps(event) for event in events)
    return b"".join(f"data: {data}\n\n".encode() for data in told)


@pytest.mark.parametrize("name", ["Busy", "Unheard", "FrameError", None])
@pytest.mark.parametrize("place", ["status", "stream", "get"])
def test_daemons_errors_are_raised_as_their_class(
    fake_daemon: Callable[..., Path], name: str | None, place: str
):
    told = {
        "error": {
            "message": "the sentence",
            "code": "its_own",
            "specmesh": {"error": name, "exit_code": 1},
        }
    }
    raw = json.dumps(told).encode()
    completion = (200, sse(CHUNK, told)) if place == "stream" else (500, raw)
    path = fake_daemon({"/v1/completions": completion, "/x": (400, raw)})
    with pytest.raises(SpecmeshError, match=r"^the sentence$") as caught:
        Client(path).get("/x") if place == "get" else list(Client(path).complete({}))
    assert type(caught.value) is (errors.Busy if name == "Busy" else SpecmeshError)


@pytest.mark.parametrize(
    "answer",
    [(200, sse(CHUNK)), (200, b""), (200, sse(CHUNK) + b"data: {\n\n"), (500, b"<html>"), None],
    ids=["no [DONE]", "nothing", "half an event", "not JSON", "hangs up"],
)
def test_broken_answers_are_unreachable(
    fake_daemon: Callable[..., Path], answer: tuple[int, bytes] | None
):
    """A daemon that goes away or talks nonsense is DaemonUnreachable; what had come was given."""
    asking = Client(fake_daemon({"/v1/completions": answer}))
    got = []
    with pytest.raises(errors.DaemonUnreachable):
        got += list(asking.complete({}))
    assert len(got) <= 1


def test_a_daemon_that_is_starting(
    fake_daemon: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    """First it holds its lock only, then it loads, then it answers: each is waited for, and said once."""
    loading = json.dumps(
        {"error": {"message": "loading", "specmesh": {"error": "Starting"}}}
    ).encode()
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


# --- the tree of errors

OF_FIELDS = {
    errors.FrameError,
    errors.InvalidTransition,
}  # more than a sentence: they end in no answer


def tree(
    cls: type[SpecmeshError] = SpecmeshError, depth: int = 0
) -> Iterator[tuple[int, type[SpecmeshError]]]:
    """A class and those below it, in the order of the module."""
    yield depth, cls
    for below in cls.__subclasses__():
        if below.__module__ == errors.__name__:
            yield from tree(below, depth + 1)


def test_the_tree_of_errors_is_drawn():
    """Each class once, below its base, with whose fault it is and what."""
    drawn = re.findall(
        r"^    ( *)(\w+)(?: +(?:ours|who asks|peer|nobody): .+)?$", errors.__doc__, re.MULTILINE
    )
    assert drawn == [(" " * 4 * depth, cls.__name__) for depth, cls in tree()]


PLAIN = [cls("the sentence") for _, cls in tree() if cls not in OF_FIELDS]
MADE: dict[SpecmeshError, dict[str, object]] = {
    errors.ConfigError("wrong", "mend it"): {"what": "wrong", "remedy": "mend it"},
    errors.WentAway("gone", "start it", "tcp://host:1"): {"address": "tcp://host:1"},
    errors.NoSuchModel.of("m"): {"name": "m", "param": "model"},
    errors.EndLost.of(3, 5): {"came": 3, "length": 5},
    errors.PromptTooLong.of(9, 5): {"prompt_tokens": 9, "context": 5, "param": "prompt"},
}


def test_a_sentence_is_made_of_fields():
    for error, fields in MADE.items():
        assert (str(error), vars(error) | fields) == (f"{error.what}: {error.remedy}", vars(error))


@pytest.mark.parametrize("error", [*PLAIN, *MADE], ids=lambda error: type(error).__name__)
def test_an_error_comes_back(fake_daemon: Callable[..., Path], error: SpecmeshError):
    """What a daemon answers is raised by its client as its class, with its sentence and the request's field."""
    same = type(error)(str(error))
    if isinstance(error, errors.RequestError):
        same.param = error.param = error.param or "its_field"
    with pytest.raises(SpecmeshError) as caught:
        Client(fake_daemon({"/x": (400, json.dumps(error_body(error)).encode())})).get("/x")
    assert (type(caught.value), str(caught.value), vars(caught.value)) == (
        type(error),
        str(error),
        vars(same),
    )


# --- what JSON has at a path

JSON = {
    "model": {"name": "m", "ms": 1.5, "ids": [1, 2]},
    "peers": [{"name": "a"}, None, 3],
    "count": 2,
    "none": None,
}


@pytest.mark.parametrize(
    ("read", "path", "found"),
    [
        (at, "model.name", "m"),
        (at, "model.name.first", None),
        (at, "others.name", None),
        (number_at, "model.ms", 1.5),
        (object_at, "model", JSON["model"]),
        (object_at, "none", {}),
        (list_at, "peers", JSON["peers"]),
        (list_at, "model", []),
        (objects_at, "peers", [{"name": "a"}]),
        (ids_at, "model.ids", [1, 2]),
        (ids_at, "peers", []),
    ],
)
def test_what_is_not_of_the_kind_counts_as_nothing(read, path, found):
    assert read(JSON, path) == found


@pytest.mark.parametrize("path", ["model.name", "none", "others.ms"])
def test_a_number_that_is_missed_is_no_zero(path):
    with pytest.raises(RemoteProtocolError, match=path):
        number_at(JSON, path)
    assert number_at(JSON, path, 7) == 7


def test_a_daemon_of_another_version_may_answer_a_text():
    assert at("starting", "error.message") is None
