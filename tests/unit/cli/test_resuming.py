"""An answer over several connections."""

from collections.abc import Generator

import pytest

from specmesh.cli import streaming
from specmesh.cli.streaming import Answer
from specmesh.client import Json
from specmesh.errors import Busy, DaemonUnreachable, RequestError, SpecmeshError, Starting, WentAway

NAME = "cmpl-" + 32 * "a"
REQUEST = {"max_tokens": 9, "temperature": 0.5, "top_k": 0, "top_p": 1.0, "seed": 4, "stop": ["x"]}
STARTED = {"session": 1, "prompt_tokens": 2, "prompt_token_ids": [7, 8], "request": REQUEST}


def chunk(**told: object) -> Json:
    return {"id": NAME, "model": "m", "choices": [{"text": "t", "finish_reason": None}], "specmesh": told}


class Fake:
    """A client whose connections give chunks, then raise; notes what it was asked."""

    def __init__(self, *connections: list[Json | SpecmeshError]) -> None:
        self._connections = list(connections)
        self.asked: list[Json] = []

    def complete(self, body: Json) -> Generator[Json, None, None]:
        self.asked.append(dict(body))
        for what in self._connections.pop(0):
            if isinstance(what, SpecmeshError):
                raise what
            yield what


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time that passes only by sleeping."""
    now = [0.0]
    monkeypatch.setattr(streaming.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(streaming.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


def all_of(client: Fake, timeout: float = 30.0) -> list[Json]:
    body: Json = {"prompt": "hi", "draft_n": 3}
    return list(Answer(client, body, timeout).chunks())  # type: ignore[arg-type]


def test_asked_again_with_all_that_came(clock: list[float]):
    """By its id, the prompt's ids and those so far; the parameters are those that the daemon told."""
    client = Fake(
        [chunk(**STARTED), chunk(token_ids=[1, 2]), WentAway("gone")],
        [DaemonUnreachable("nobody")],
        [Starting("loading")],
        [Busy("full")],
        [chunk(**STARTED), chunk(token_ids=[3]), WentAway("gone")],
        [chunk(**STARTED), chunk(token_ids=[4])],
    )
    told = [chunk["specmesh"].get("token_ids") for chunk in all_of(client)]  # type: ignore[attr-defined]
    assert told == [None, [1, 2], None, [3], None, [4]]
    shared = {"resumable": True, "reconnect_timeout": 30.0, "draft_n": 3}
    assert client.asked[0] == {"prompt": "hi", **shared}
    for asked, ids in ((client.asked[1], [1, 2]), (client.asked[4], [1, 2]), (client.asked[5], [1, 2, 3])):
        resume = {"id": NAME, "model": "m", "prompt_token_ids": [7, 8], "token_ids": ids}
        assert asked == {**REQUEST, **shared, "resume": resume}


def test_it_is_waited_for_so_long(clock: list[float]):
    """Then the error says how to go on with the text."""
    client = Fake([chunk(**STARTED), WentAway("gone")], *([DaemonUnreachable("nobody")] for _ in range(60)))
    with pytest.raises(DaemonUnreachable, match=f"nobody; .*--resume {NAME}"):
        all_of(client, 20.0)
    assert clock[0] == pytest.approx(20.0)


@pytest.mark.parametrize("timeout", [0.0, 20.0])
@pytest.mark.parametrize("error", [DaemonUnreachable("its verifier"), Busy("full"), RequestError("bad")])
def test_what_the_daemon_says_is_not_waited_for(clock: list[float], timeout: float, error: SpecmeshError):
    """It has waited itself, or waiting does not help."""
    client = Fake([chunk(**STARTED), error])
    with pytest.raises(type(error), match=str(error)):
        all_of(client, timeout)
    assert clock[0] == 0.0
