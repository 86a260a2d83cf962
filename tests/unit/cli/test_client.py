"""The client against a daemon that answers what the test says, over a real Unix socket."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from specmesh import client, errors
from specmesh.client import Client
from specmesh.daemons.runtime.instance import InstanceLock
from specmesh.paths import lock_of

CHUNK = {"choices": [{"text": "A", "finish_reason": None}], "specmesh": {}}


def sse(*events: object) -> bytes:
    told = ("[DONE]" if event == "[DONE]" else json.dumps(event) for event in events)
    return b"".join(f"data: {data}\n\n".encode() for data in told)


def test_stream(fake_daemon: Callable[..., Path]):
    """A completion is asked for as a stream; its chunks come until [DONE], comments and blank lines left out."""
    path = fake_daemon({"/v1/completions": (200, b": ping\n\n" + sse(CHUNK, CHUNK, "[DONE]", {"never": "seen"}))})
    assert list(Client(path).complete({"prompt": "x"})) == [CHUNK, CHUNK]
    [(_, _, body)] = fake_daemon.requests  # type: ignore[attr-defined]
    assert json.loads(body) == {"prompt": "x", "stream": True}


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        *((cls.__name__, cls) for cls in (errors.Busy, errors.Starting, errors.ConfigError, errors.PromptTooLong)),
        ("Unheard", errors.SpecmeshError),
        (None, errors.SpecmeshError),
    ],
)
@pytest.mark.parametrize("place", ["status", "stream", "get"])
def test_daemons_errors_are_raised_as_their_class(
    fake_daemon: Callable[..., Path], name: str | None, cls: type[Exception], place: str
):
    """The error of a refusal, of a broken stream or of a GET is raised as its own class, with its sentence."""
    told = {"error": {"message": "the sentence", "code": "its_own", "specmesh": {"error": name, "exit_code": 1}}}
    raw = json.dumps(told).encode()
    completion = (200, sse(CHUNK, told)) if place == "stream" else (500, raw)
    path = fake_daemon({"/v1/completions": completion, "/x": (400, raw)})
    with pytest.raises(errors.SpecmeshError, match=r"^the sentence$") as caught:
        Client(path).get("/x") if place == "get" else list(Client(path).complete({}))
    assert type(caught.value) is cls


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


def test_nobody_there(fake_daemon: Callable[..., Path], monkeypatch: pytest.MonkeyPatch):
    """Where nobody answers, every path tried is named, in order."""
    folder = fake_daemon({}).parent
    with pytest.raises(errors.DaemonUnreachable, match=f"{folder}/none.sock.*--socket"):
        Client(folder / "none.sock").get("/stats")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder / "run"))
    monkeypatch.delenv("SPECMESH_SOCKET", raising=False)
    with pytest.raises(errors.DaemonUnreachable) as caught:
        Client().get("/stats")
    told = str(caught.value)
    tried = [folder / "run/specmesh/verifier.sock", folder / "run/specmesh/drafter.sock", "/run/specmesh/drafter.sock:"]
    places = [told.index(str(path)) for path in tried]
    assert places == sorted(places)


def test_a_daemon_that_is_starting(fake_daemon: Callable[..., Path], monkeypatch: pytest.MonkeyPatch):
    """First it holds its lock only, then it loads, then it answers: each is waited for, and said once."""
    loading = json.dumps({"error": {"message": "loading", "specmesh": {"error": "Starting"}}}).encode()
    answers = {"/v1/completions": (503, loading)}
    listening = fake_daemon(answers)
    path = listening.with_name("late.sock")
    instance, heard = InstanceLock(path), list[str]()
    later = [
        lambda: path.symlink_to(listening),
        lambda: answers.update({"/v1/completions": (200, sse(CHUNK, "[DONE]"))}),
    ]
    monkeypatch.setattr(client.time, "sleep", lambda _: later.pop(0)())
    assert list(Client(path, waits=heard.append).complete({})) == [CHUNK]
    assert heard == [f"the daemon at {path} is starting"]
    instance.close()


def test_a_daemon_that_does_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Without waiting, and at the end of it, it is told that it starts; where it has gone, that nobody is there."""
    path = tmp_path / "s"
    with InstanceLock(path):
        with pytest.raises(errors.Starting, match="is starting: try again"):
            Client(path).get("/stats")
        with pytest.raises(errors.Starting):
            list(Client(path).complete({}))
        monkeypatch.setattr(client, "START_TIMEOUT_S", -1.0)
        with pytest.raises(errors.Starting):
            list(Client(path, waits=lambda _: None).complete({}))
    monkeypatch.setattr(client, "START_TIMEOUT_S", 300.0)
    with pytest.raises(errors.DaemonUnreachable, match="no daemon answers"):
        list(Client(path, waits=lambda _: None).complete({}))
    lock_of(path).write_text("1")  # a crash leaves it, and nobody holds it
    with pytest.raises(errors.DaemonUnreachable):
        Client(path).get("/stats")
