"""Many clients at once, each a thread that asks for a text, reads it to its end, and asks for the next."""

import time
from collections.abc import Callable, Generator
from contextlib import closing
from queue import SimpleQueue
from threading import Barrier, Thread
from typing import Protocol

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

    Raise what the source raises, but Busy from the first text only: later a client waits.
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
    begun, refused = time.perf_counter(), 0
    while True:
        text = Text(client, prompt, begun, refused=refused)
        try:
            with closing(source.complete(body)) as chunks:
                for chunk in chunks:
                    text.take(chunk, time.perf_counter())
        except Busy:
            refused += 1
            time.sleep(AGAIN)
        else:
            return text
