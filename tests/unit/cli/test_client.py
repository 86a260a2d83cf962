"""The client against a daemon that answers what the test says, over a real Unix socket."""

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from specmesh import client, errors
from specmesh.client import Client, known_sockets, listens
from specmesh.daemons.runtime.instance import Instance
from specmesh.paths import lock_of

CHUNK = {"choices": [{"text": "A", "finish_reason": None}], "specmesh": {}}


def sse(*events: object) -> bytes:
    told = ("[DONE]" if event == "[DONE]" else json.dumps(event) for event in events)
    return b"".join(f"data: {data}\n\n".encode() for data in told)


def test_get(fake_daemon: Callable[..., Path]):
    """GET gives the JSON, also of a 503 that is no error."""
    path = fake_daemon({"/stats": (200, b'{"a": 1}'), "/health": (503, b'{"status": "unavailable"}')})
    assert Client(path).get("/stats") == {"a": 1}
    assert Client(path).get("/health") == {"status": "unavailable"}


def test_stream(fake_daemon: Callable[..., Path]):
    """A completion is asked for as a stream; its chunks come until [DONE], comments and blank lines left out."""
    path = fake_daemon({"/v1/completions": (200, b": ping\n\n" + sse(CHUNK, CHUNK, "[DONE]", {"never": "seen"}))})
    assert list(Client(path).complete({"prompt": "x"})) == [CHUNK, CHUNK]
    [(_, _, body)] = fake_daemon.requests  # type: ignore[attr-defined]
    assert json.loads(body) == {"prompt": "x", "stream": True}


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("Busy", errors.Busy),
        ("Starting", errors.Starting),
        ("ConfigError", errors.ConfigError),
        ("DaemonUnreachable", errors.DaemonUnreachable),
        ("EngineError", errors.EngineError),
        ("RequestError", errors.RequestError),
        ("PromptTooLong", errors.PromptTooLong),
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


def test_not_for_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A daemon whose socket is somebody else's is not said to be missing only."""

    def refused(self: socket.socket, address: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "connect", refused)
    with pytest.raises(errors.DaemonUnreachable, match=f"join the group {tmp_path.group()} and log in again"):
        Client(tmp_path / "verifier.sock").get("/stats")
    with pytest.raises(errors.DaemonUnreachable, match=r"gone is closed to this user$"):
        Client(tmp_path / "gone/verifier.sock").get("/stats")


def test_first_live_socket_is_taken(fake_daemon: Callable[..., Path], monkeypatch: pytest.MonkeyPatch):
    """A stale socket is passed over for one that answers; SPECMESH_SOCKET and an argument come before all."""
    live = fake_daemon({"/stats": (200, b'{"who": "live"}')})
    folder = live.parent / "specmesh"
    folder.mkdir()
    (folder / "drafter.sock").symlink_to(live)
    (folder / "verifier.sock").write_text("stale")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(live.parent))
    monkeypatch.delenv("SPECMESH_SOCKET", raising=False)
    assert Client().get("/stats") == {"who": "live"}
    monkeypatch.setenv("SPECMESH_SOCKET", str(live.parent / "none.sock"))
    with pytest.raises(errors.DaemonUnreachable):
        Client().get("/stats")
    assert Client(live).get("/stats") == {"who": "live"}


def test_other_streams(fake_daemon: Callable[..., Path]):
    """Any resource that answers with events can be read as they come."""
    path = fake_daemon({"/ping": (200, sse({"number": 1}, "[DONE]"))})
    assert list(Client(path).stream("/ping", {"count": 1})) == [{"number": 1}]


def test_patience(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A daemon that takes the connection and says nothing is given up where a timeout was given."""
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("mute.sock")
        server.listen()
        assert listens(Path("mute.sock"))
        with pytest.raises(errors.DaemonUnreachable, match="does not answer"):
            Client(Path("mute.sock"), 0.05).get("/stats")
    assert not listens(Path("mute.sock"))
    assert not listens(Path("none.sock"))


def test_known_sockets(monkeypatch: pytest.MonkeyPatch):
    """The user's and the system's; one of the environment before them, each once."""
    monkeypatch.delenv("SPECMESH_SOCKET", raising=False)
    usual = known_sockets()
    assert [path.name for path in usual] == ["verifier.sock", "drafter.sock"] * 2
    monkeypatch.setenv("SPECMESH_SOCKET", "/elsewhere/v.sock")
    assert known_sockets() == [Path("/elsewhere/v.sock"), *usual]
    monkeypatch.setenv("SPECMESH_SOCKET", str(usual[1]))
    assert known_sockets() == [usual[1], usual[0], *usual[2:]]


def test_a_daemon_that_is_starting(fake_daemon: Callable[..., Path], monkeypatch: pytest.MonkeyPatch):
    """First it holds its lock only, then it loads, then it answers: each is waited for, and said once."""
    answers = {
        "/v1/completions": (
            503,
            json.dumps({"error": {"message": "loading", "specmesh": {"error": "Starting"}}}).encode(),
        )
    }
    listening = fake_daemon(answers)
    path = listening.with_name("late.sock")
    instance, heard = Instance(path), list[str]()
    later = [
        lambda: path.symlink_to(listening),
        lambda: answers.update({"/v1/completions": (200, sse(CHUNK, "[DONE]"))}),
    ]
    monkeypatch.setattr(client.time, "sleep", lambda _: later.pop(0)())
    assert list(Client(path, waits=heard.append).complete({})) == [CHUNK]
    assert heard == [f"the daemon at {path} is starting"]
    instance.close()


def test_one_that_is_starting_comes_before_those_after_it(
    fake_daemon: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    """A verifier that was just started is waited for although its drafter, later on the list, answers already; who does
    not wait is answered by that one."""
    drafter = fake_daemon({"/v1/completions": (502, b"{}"), "/stats": (200, b'{"who": "drafter"}')})
    verifier = drafter.with_name("v.sock")
    monkeypatch.delenv("SPECMESH_SOCKET", raising=False)
    monkeypatch.setattr(client, "candidate_sockets", lambda: [verifier, drafter])
    with Instance(verifier):
        assert Client().get("/stats") == {"who": "drafter"}
        monkeypatch.setattr(client, "PATIENCE", -1.0)
        with pytest.raises(errors.Starting, match=r"v\.sock is starting"):
            list(Client(waits=lambda _: None).complete({}))


def test_a_daemon_that_does_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Without waiting, and at the end of it, it is told that it starts; where it has gone, that nobody is there."""
    path = tmp_path / "s"
    with Instance(path):
        with pytest.raises(errors.Starting, match="is starting: try again"):
            Client(path).get("/stats")
        with pytest.raises(errors.Starting):
            list(Client(path).complete({}))
        monkeypatch.setattr(client, "PATIENCE", -1.0)
        with pytest.raises(errors.Starting):
            list(Client(path, waits=lambda _: None).complete({}))
    monkeypatch.setattr(client, "PATIENCE", 300.0)
    with pytest.raises(errors.DaemonUnreachable, match="no daemon answers"):
        list(Client(path, waits=lambda _: None).complete({}))
    lock_of(path).write_text("1")  # a crash leaves it, and nobody holds it
    with pytest.raises(errors.DaemonUnreachable):
        Client(path).get("/stats")
