"""An answer over several connections."""

from collections.abc import Generator

import pytest

from specmesh.cli import streaming
from specmesh.cli.streaming import Answer
from specmesh.client import Json
from specmesh.errors import Busy, DaemonUnreachable, RequestError, SpecmeshError

NAME = "cmpl-" + 32 * "a"
STARTED = {"session": 1, "prompt_tokens": 2, "prompt_token_ids": [7, 8], "request": {"seed": 4}}


class Fake:
    """A client whose answer begins, and ends with an error."""

    def __init__(self, error: SpecmeshError) -> None:
        self._error = error

    def complete(self, body: Json) -> Generator[Json, None, None]:
        yield {"id": NAME, "model": "m", "choices": [{"text": "t", "finish_reason": None}], "specmesh": STARTED}
        raise self._error


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time that passes only by sleeping."""
    now = [0.0]
    monkeypatch.setattr(streaming.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(streaming.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


@pytest.mark.parametrize("timeout", [0.0, 20.0])
@pytest.mark.parametrize("error", [DaemonUnreachable("its verifier"), Busy("full"), RequestError("bad")])
def test_what_the_daemon_says_is_not_waited_for(clock: list[float], timeout: float, error: SpecmeshError):
    """It has waited itself, or waiting does not help."""
    with pytest.raises(type(error), match=str(error)):
        list(Answer(Fake(error), {"prompt": "hi"}, timeout).chunks())  # type: ignore[arg-type]
    assert clock[0] == 0.0
