"""Many clients at once, each a thread that asks for a text, reads it to its end, and asks for the next."""

import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Barrier, Thread
from typing import Protocol, cast

from specmesh.bench.load import Load, Text
from specmesh.client import Json
from specmesh.errors import Busy

WARM_UP_TOKENS = 16
AGAIN = 0.1
"""Seconds after which a client that was refused asks again."""


class Source(Protocol):
    """A server of completions, as specmesh.client.Client is one for a daemon's socket."""

    def complete(self, body: Json) -> Generator[Json, None, None]:
        """The chunks of a streamed completion. Raises Busy where there is no place for it."""


def measure(source: Source, load: Load, advance: Callable[[], None]) -> list[tuple[int, list[Text]]]:
    """Run `load`, calling `advance` after each text; a short text before, unmeasured. (clients, their texts) each.

    Raises what the source raises, but Busy from the first text only: later it means that a client waits.
    """
    with closing(source.complete(load.body(0) | {"max_tokens": min(load.max_tokens, WARM_UP_TOKENS)})) as chunks:
        for _ in chunks:
            pass
    return [(count, crowd(source, load, count, advance)) for count in load.sessions]


def crowd(source: Source, load: Load, count: int, advance: Callable[[], None]) -> list[Text]:
    """The texts of `count` clients that begin together."""
    told = SimpleQueue[Text | Exception]()
    gate = Barrier(count)
    for client in range(count):  # as daemons: Ctrl-C must not wait for texts
        Thread(target=_client, args=(source, load, client, gate, told), daemon=True).start()
    texts: list[Text] = []
    while len(texts) < count * load.iterations:
        match told.get():
            case Text() as text:
                texts.append(text)
                advance()
            case error:
                raise error
    return texts


def _client(source: Source, load: Load, client: int, gate: Barrier, told: "SimpleQueue[Text | Exception]") -> None:
    try:
        gate.wait()
        for iteration in range(load.iterations):
            prompt = load.prompt(client, iteration)
            told.put(_text(source, load.body(prompt), client, prompt))
    except Exception as error:  # noqa: BLE001 - raised again by who waits for the texts
        told.put(error)


def _text(source: Source, body: Json, client: int, prompt: int) -> Text:
    begun = time.perf_counter()
    refused = 0
    while True:
        came = _Coming()
        try:
            with closing(source.complete(body)) as chunks:
                for chunk in chunks:
                    came.take(chunk, time.perf_counter())
        except Busy:
            refused += 1
            time.sleep(AGAIN)
            continue
        arrivals, text = tuple(came.arrivals), "".join(came.text)
        return Text(client, prompt, begun, arrivals, came.tokens, text, came.drafted, came.accepted, refused)


@dataclass(slots=True)
class _Coming:
    """A text as it comes.

    Our own daemon tells each chunk's ids. Of another server a chunk with text counts as one token until its `usage`
    tells them all, and drafts are known where it has llama-server's `timings`.
    """

    arrivals: list[float] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0

    def take(self, chunk: Json, now: float) -> None:
        """Add what a chunk brings."""
        text, ours = _text_of(chunk), chunk.get("specmesh")
        ids = len(cast("list[int]", ours.get("token_ids", ()))) if isinstance(ours, dict) else int(bool(text))
        if ids or text:
            self.arrivals.append(now)
        self.text.append(text)
        self.tokens += ids
        match chunk.get("usage"):
            case {"completion_tokens": int(whole)} if whole:
                self.tokens = whole
        match ours, chunk.get("timings"):
            case ({"report": {"drafted": int(drafted), "accepted": int(accepted)}}, _) | (
                _,
                {"draft_n": int(drafted), "draft_n_accepted": int(accepted)},
            ):
                self.drafted, self.accepted = drafted, accepted


def _text_of(chunk: Json) -> str:
    match chunk.get("choices"):
        case [{"text": str(text)}, *_]:
            return text
    return ""
