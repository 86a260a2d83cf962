"""The client against daemons over real Unix sockets, the tree of errors, and paths into JSON."""

import asyncio
import json
import re
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from click.testing import CliRunner

from specmesh import AsyncClient, ReadingProgress, errors
from specmesh.api.error_body import error_body
from specmesh.cli import main
from specmesh.client import Client, answer, sync
from specmesh.core.fields import at, ids_at, list_at, number_at, object_at, objects_at
from specmesh.errors import RemoteProtocolError, SpecmeshError
from specmesh.paths import instance_lock

STARTED = {"request": {"seed": 3}, "prompt_token_ids": [1]}
CHUNK = {"choices": [{"index": 0, "text": "A", "finish_reason": None}], "specmesh": {}}


def event(data):
    return f"data: {json.dumps(data)}\n\n".encode()


DONE = b"data: [DONE]\n\n"


@pytest.fixture
def client_of(fake_daemon):
    """Return the client of a daemon that gives this answer to every request."""

    def made(status, body):
        reply = None if status is None else (status, body)
        return Client(fake_daemon({"/v1/completions": reply, "/x": reply}))

    return made


def named(name):
    """Return an error of a daemon by the name of its class."""
    details = {"error": name, "exit_code": 1}
    return {"error": {"message": "the sentence", "code": "its_own", "specmesh": details}}


@pytest.mark.parametrize("name", ["Unheard", "FrameError", None])
def test_an_error_of_no_class_that_a_daemon_has(client_of, name):
    with pytest.raises(SpecmeshError, match=r"^the sentence$") as caught:
        client_of(500, json.dumps(named(name)).encode()).get("/x")
    assert type(caught.value) is SpecmeshError


def test_an_error_of_a_text_is_raised_as_its_class(client_of):
    """As a status, or in the stream."""
    busy = named("Busy")
    for asking in (
        client_of(500, json.dumps(busy).encode()),
        client_of(200, event(CHUNK) + event(busy)),
    ):
        with pytest.raises(errors.Busy, match=r"^the sentence$"):
            list(asking.complete({}))


BROKEN = [
    pytest.param(200, event(CHUNK), id="no [DONE]"),
    pytest.param(200, b"", id="nothing"),
    pytest.param(200, event(CHUNK) + b"data: {\n\n", id="half an event"),
    pytest.param(500, b"<html>", id="not JSON"),
    pytest.param(None, b"", id="hangs up"),
]


@pytest.mark.parametrize(("status", "body"), BROKEN)
def test_broken_answers_are_unreachable(client_of, status, body):
    """The chunks that came before are given."""
    chunks = client_of(status, body).complete({})
    if body.startswith(b"data"):
        assert next(chunks) == CHUNK
    with pytest.raises(errors.DaemonUnreachable):
        next(chunks)


@pytest.mark.parametrize(("status", "body"), BROKEN)
def test_broken_answers_of_the_asynchronous_client(fake_daemon, status, body):
    """The pieces that came before are given."""
    reply = None if status is None else (status, body)
    asking = AsyncClient(fake_daemon({"/v1/completions": reply}), reconnect_timeout=0)
    stream = asking.stream("x")
    with pytest.raises(errors.DaemonUnreachable):
        asyncio.run(stream.result())
    assert stream.completion.text == ("A" if body.startswith(b"data") else "")


@pytest.fixture(params=["sync", "async"])
def result(request, fake_daemon):
    """Return the text of a daemon's chunks, and the progress that was reported."""

    def read(*chunks):
        body = b"".join(map(event, chunks)) + DONE
        path = fake_daemon({"/v1/completions": (200, body)})
        reports = []
        if request.param == "sync":
            return Client(path).generate("x", on_progress=reports.append), reports
        asked = AsyncClient(path).generate("x", on_progress=reports.append)
        return asyncio.run(asked), reports

    return read


def chunk_from(*runs):
    """Return a chunk whose tokens are from these sources."""
    ids = [7] * sum(count for _, count in runs)
    choice = {"index": 0, "text": "ab", "finish_reason": None}
    return {"choices": [choice], "specmesh": {"token_ids": ids, "source": runs}}


def test_sources_are_joined_runs(result):
    first = chunk_from(["remote", 2], ["target", 1])
    answer, _ = result(first, chunk_from(["target", 1], ["grammar", 3]))
    assert answer.text == "abab"
    assert answer.sources == (("remote", 2), ("target", 2), ("grammar", 3))


def test_progress_is_reported(result):
    reading = {"total": 9, "cache": 2, "processed": 5, "time_ms": 1200}
    begun = CHUNK | {"prompt_progress": reading, "specmesh": STARTED}
    answer, reports = result(begun, CHUNK)
    assert (answer.text, answer.seed) == ("A", 3)
    assert reports == [ReadingProgress(total=9, cached=2, processed=5, time_ms=1200)]


def test_a_daemon_that_is_starting(fake_daemon, monkeypatch):
    """It holds its lock, then it loads, then it answers; it is waited for with one notice."""
    loading = {"error": {"message": "loading", "specmesh": {"error": "Starting"}}}
    answers = {"/v1/completions": (503, json.dumps(loading).encode())}
    listening = fake_daemon(answers)
    path = listening.with_name("late.sock")

    def changes():
        yield path.symlink_to(listening)
        yield answers.update({"/v1/completions": (200, event(CHUNK) + DONE)})

    change = changes()
    monkeypatch.setattr(sync.time, "sleep", lambda _: next(change))
    notices = []
    with instance_lock(path):
        assert list(answer(Client(path), {}, 0, notices.append)) == [CHUNK]
    assert notices == [f"the daemon at {path} is starting; it is waited for, 300 s at most"]


@pytest.fixture
def listener(tmp_path):
    """A daemon's socket whose connections a test accepts, or not."""
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(tmp_path / "s"))
        yield opened


def test_a_daemon_that_dies_while_answering(listener):
    listener.listen()
    with ThreadPoolExecutor() as others:
        asked = others.submit(Client(listener.getsockname()).get, "/stats")
        with listener.accept()[0] as connection:
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{")
        with pytest.raises(errors.WentAway):
            asked.result(30)


def generate(client):
    return client.generate("x")


def generate_asynchronously(client):
    return asyncio.run(client.generate("x"))


@pytest.mark.parametrize(
    ("kind", "ask"), [(Client, generate), (AsyncClient, generate_asynchronously)]
)
def test_a_daemon_that_is_silent(listener, kind, ask):
    """The time-out is the client's own limit, so nothing is waited for after it."""
    listener.listen()
    notices = []
    client = kind(listener.getsockname(), timeout=0.01, on_wait=notices.append)
    with pytest.raises(errors.TimedOut):
        ask(client)
    assert notices == []


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS refuses who comes to a full queue")
def test_a_daemon_that_hangs_is_not_starting(listener, tmp_path):
    listener.listen(0)
    for _ in range(2):
        with socket.socket(socket.AF_UNIX) as earlier, suppress(BlockingIOError):
            earlier.setblocking(False)
            earlier.connect(listener.getsockname())
    hanging = pytest.raises(errors.WentAway, match=listener.getsockname())
    with instance_lock(tmp_path / "s"), hanging:
        Client(tmp_path / "s", timeout=30).get("/stats")


def test_names_cannot_move_the_cursor(fake_daemon):
    """A terminal gets no control characters of a peer's name."""
    ping = {"peer": "mac\x1b[2J\n", "address": "tcp://127.0.0.1", "time_ms": 1.0}
    path = fake_daemon({"/ping": (200, json.dumps({"peers": [ping]}).encode())})
    done = CliRunner().invoke(main, ["ping", "--count", "1", "--socket", str(path)])
    assert done.stdout.startswith("from mac?[2J? via tcp://127.0.0.1: time=1.00 ms\n")


# --- the tree of errors


def tree(cls=SpecmeshError, depth=0):
    """Yield a class and those below it with their depths, in the order of the module."""
    yield depth, cls
    for below in cls.__subclasses__():
        if below.__module__ == errors.__name__:
            yield from tree(below, depth + 1)


def test_the_tree_of_errors_is_drawn():
    """Each class is there once, below its base, with the party at fault."""
    row = r"^    ( *)(\w+)(?: +(?:ours|client|peer|nobody): .+)?$"
    drawn = re.findall(row, errors.__doc__, re.MULTILINE)
    assert drawn == [(" " * 4 * depth, cls.__name__) for depth, cls in tree()]


SENTENCES = [
    (errors.ConfigError("wrong", "mend it"), "wrong"),
    (errors.NoSuchModel.of("m"), "no model m is served here"),
    (errors.EndLost.of(3, 5), "3 of 5 tokens came"),
    (errors.PromptTooLong.of(9, 5), "context length is 5 tokens, and your prompt has 9 tokens"),
]


@pytest.mark.parametrize(("error", "fact"), SENTENCES)
def test_a_sentence_has_the_fault_and_the_remedy(error, fact):
    assert fact in error.what
    assert str(error) == f"{error.what}: {error.remedy}"


NEVER_ANSWERED = (errors.FrameError, errors.InvalidTransition)
PLAIN = [cls("the sentence") for _, cls in tree() if cls not in NEVER_ANSWERED]


@pytest.mark.parametrize(
    "error", [*PLAIN, *dict(SENTENCES)], ids=lambda error: type(error).__name__
)
def test_an_error_comes_back(client_of, error):
    """A daemon's error is raised as its class, with its sentence and the request's field.

    No other field comes, but for what the class reads from its sentence.
    """
    same = type(error).read(str(error))
    if isinstance(error, errors.RequestError):
        same.param = error.param = error.param or "its_field"
    with pytest.raises(type(error)) as caught:
        client_of(400, json.dumps(error_body(error)).encode()).get("/x")
    assert type(caught.value) is type(error)
    assert (str(caught.value), vars(caught.value)) == (str(error), vars(same))


# --- paths into JSON

JSON = {
    "model": {"name": "m", "ms": 1.5, "ids": [1, 2]},
    "peers": [{"name": "a"}, None, 3],
    "none": None,
}


@pytest.mark.parametrize(
    ("read", "path", "found"),
    [
        (at, "model.name", "m"),
        (number_at, "model.ms", 1.5),
        (list_at, "peers", JSON["peers"]),
        (objects_at, "peers", [{"name": "a"}]),
        (ids_at, "model.ids", [1, 2]),
    ],
)
def test_values_at_a_path(read, path, found):
    assert read(JSON, path) == found


@pytest.mark.parametrize("path", ["model.name.first", "others.name", "none"])
def test_nothing_is_at_a_path(path):
    assert at(JSON, path) is None


def test_values_of_another_kind_count_as_nothing():
    assert object_at(JSON, "peers") == object_at(JSON, "none") == {}
    assert list_at(JSON, "model") == []
    assert ids_at(JSON, "peers") == ids_at(JSON, "none") == []


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_no_double_holds_is_missed(number):
    assert number_at({"ms": number}, "ms", 7) == 7


@pytest.mark.parametrize("path", ["model.name", "none", "others.ms"])
def test_a_number_that_is_missed_is_no_zero(path):
    assert number_at(JSON, path, 7) == 7
    with pytest.raises(RemoteProtocolError, match=path):
        number_at(JSON, path)


def test_a_daemon_of_another_version_may_answer_a_text():
    assert at("starting", "error.message") is None
