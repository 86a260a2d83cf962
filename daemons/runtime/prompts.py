"""Prompts as ids and grammars as constraints, made on a thread of their own: a long text takes seconds, and sessions
must not wait for it."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specmesh.api.requests import EventSink, Request
from specmesh.core.sampling.constraint import Constraint
from specmesh.engines.base import ChatEncoder, VerifyEngine
from specmesh.engines.grammar import Grammars
from specmesh.errors import EngineError, RequestError, SpecmeshError


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """A request on its way to a session. owner: the drafter whose client asked, by `ref`; None for a client here."""

    request: Request
    client: EventSink
    owner: bytes | None
    ref: int = 0


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """An opening's prompt as ids, or why it has none, and its grammar where it asked for one."""

    opening: Opening
    ids: Sequence[int] | SpecmeshError
    constraint: Constraint | None = None


class PromptEncoder:
    """Encodes one prompt after the other, on a thread; each goes to `deliver`, on that thread."""

    def __init__(self, engine: VerifyEngine, deliver: Callable[[EncodedPrompt], None]) -> None:
        self._engine, self._deliver = engine, deliver
        self._grammars = Grammars(engine.vocabulary)
        self._waiting: list[Opening] = []
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="prompts", daemon=True)
        self._thread.start()

    def add(self, opening: Opening) -> None:
        with self._changed:
            self._waiting.append(opening)
            self._changed.notify()

    def withdraw(self, unwanted: Callable[[Opening], bool]) -> None:
        """Remove prompts that nobody wants any more; the one under way is delivered all the same."""
        with self._changed:
            self._waiting = [opening for opening in self._waiting if not unwanted(opening)]

    def close(self, timeout: float) -> bool:
        """End the thread after the prompt it is at; return True if it ended within `timeout` seconds."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._grammars.close()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (opening := self._next()) is not None:
            encoded = self._encoded(opening)
            if not self._closed:  # else nobody listens any more
                self._deliver(encoded)

    def _next(self) -> Opening | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            return None if self._closed else self._waiting.pop(0)

    def _encoded(self, opening: Opening) -> EncodedPrompt:
        request = opening.request
        try:
            ids, grammar = prompt_ids(self._engine, request), request.params.grammar
            return EncodedPrompt(opening, ids, self._grammars.compile(grammar) if grammar is not None else None)
        except SpecmeshError as error:
            return EncodedPrompt(opening, error)
        except Exception as error:  # noqa: BLE001  (whatever it is, a client waits for an answer)
            reason = f"the prompt could not be encoded ({type(error).__name__}: {error})"
            return EncodedPrompt(opening, EngineError(reason))


def prompt_ids(engine: VerifyEngine, request: Request) -> Sequence[int]:
    """Return the ids to continue, by the target's tokenizer and chat template; safe from any thread.

    An empty text, where the target begins none with a token of its own, is what ends others, as at OpenAI's. Raises
    RequestError for text that cannot be encoded, and for a chat where the target has no template.
    """
    if request.prompt_ids is not None:
        return request.prompt_ids
    if not request.messages:
        return engine.encode(request.prompt or "") or sorted(engine.vocabulary.end_ids)[:1]
    if not isinstance(engine, ChatEncoder):
        raise RequestError("this target cannot chat: use /v1/completions", "messages")
    return engine.encode_chat(request.messages, continued=request.continued)
