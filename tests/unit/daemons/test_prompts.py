"""Which ids a request continues, and the line that makes them."""

import queue
import threading
from collections.abc import Iterator

import pytest

from specmesh.api.requests import Request
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import ChatMessage, SessionParams
from specmesh.daemons.runtime.prompts import Encoded, Opening, PromptLine, prompt_ids
from specmesh.engines.sim import SimSettings, SimVerifier
from specmesh.errors import EngineError, RequestError

PATIENCE = 20.0
PARAMS = SessionParams(SamplingParams(), 1)
SAID = (ChatMessage("user", "hi"),)


class NoChat:
    """An engine without a chat template."""

    def __init__(self) -> None:
        self.encode = SimVerifier(SimSettings()).encode


def test_ids_before_a_chat_before_a_text():
    """The first that is given counts."""
    engine = SimVerifier(SimSettings())
    assert prompt_ids(engine, Request("text", (1, 2), PARAMS, False, SAID)) == (1, 2)
    assert prompt_ids(engine, Request("text", None, PARAMS, False, SAID)) == list(b"user: hi\nassistant: ")
    assert prompt_ids(engine, Request("text", None, PARAMS)) == list(b"text")
    assert prompt_ids(engine, Request("", None, PARAMS)) == sorted(engine.vocabulary.end_ids)[:1]
    assert prompt_ids(engine, Request(None, None, PARAMS, False, SAID, continued=True)) == list(b"user: hi")


def test_an_engine_that_cannot_chat():
    """It continues texts, and refuses chats."""
    assert prompt_ids(NoChat(), Request("text", None, PARAMS)) == list(b"text")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="cannot chat"):
        prompt_ids(NoChat(), Request(None, None, PARAMS, False, SAID))  # type: ignore[arg-type]


class Gate(SimVerifier):
    """A target whose tokenizer waits to be let on."""

    def __init__(self) -> None:
        super().__init__(SimSettings())
        self.begun: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.go_on = threading.Semaphore(0)

    def encode(self, text: str) -> list[int]:
        self.begun.put(text)
        assert self.go_on.acquire(timeout=PATIENCE)
        if text == "defect":
            raise ZeroDivisionError(text)
        return super().encode(text)


class Line:
    """A line, and what it delivers."""

    def __init__(self) -> None:
        self.engine = Gate()
        self.delivered: queue.SimpleQueue[Encoded] = queue.SimpleQueue()
        self.line = PromptLine(self.engine, self.delivered.put)

    def add(self, text: str, owner: bytes | None = None) -> Opening:
        opening = Opening(Request(text, None, PARAMS), None, owner)  # type: ignore[arg-type]
        self.line.add(opening)
        return opening

    def next(self) -> Encoded:
        """Let the prompt at hand be encoded."""
        self.engine.go_on.release()
        return self.delivered.get(timeout=PATIENCE)


@pytest.fixture
def line() -> Iterator[Line]:
    made = Line()
    yield made
    made.engine.go_on.release(100)
    assert made.line.close(PATIENCE)


def test_one_after_the_other(line: Line):
    """In the order they came."""
    first, second = line.add("a"), line.add("b")
    told = line.next()
    assert (told.opening, told.ids) == (first, list(b"a"))
    assert line.next() == Encoded(second, list(b"b"))


def test_what_cannot_be_encoded_is_an_error(line: Line):
    """The client's own mistakes as they are, others as the engine's; the line goes on."""
    line.add("\udcff")
    assert isinstance(line.next().ids, RequestError)
    line.add("defect")
    error = line.next().ids
    assert isinstance(error, EngineError)
    assert "ZeroDivisionError" in str(error)
    line.add("a", b"drafter")
    assert line.next().ids == list(b"a")


def test_withdrawn(line: Line):
    """What waits is not encoded; what was begun is delivered all the same."""
    begun, _ = line.add("a", b"one"), line.add("b", b"one")
    last = line.add("c", b"two")
    assert line.engine.begun.get(timeout=PATIENCE) == "a"
    line.line.withdraw(lambda opening: opening.owner == b"one")
    assert line.next().opening is begun
    assert line.next().opening is last
    assert line.engine.begun.get(timeout=PATIENCE) == "c"


def test_closing_under_a_prompt(line: Line):
    """Whether the thread has ended is told, so that nobody frees the model under it."""
    line.add("a")
    line.engine.begun.get(timeout=PATIENCE)
    assert not line.line.close(0.0)
