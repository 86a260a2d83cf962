"""Clients of a pair. Each asks for one text after the other, at either daemon, until stopped."""

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path

from soak.pair import Pair
from soak.schedule import Lane, Order
from soak.truth import Text, Told
from specmesh.client import Client, answer
from specmesh.core.fields import Json
from specmesh.errors import SpecmeshError

WAITS_S = 90.0
"""Seconds for which a client waits for a daemon: more than some faults in a row take."""

HANGS_S = 120.0
"""Seconds without a byte after which a client gives up."""

REFUSED_PAUSE_S = 0.2
"""Seconds until a client asks again after an error."""


def ask(path: Path, text: Text, order: Order, clock: Callable[[], float]) -> Told:
    """Ask a daemon for one generation, and return its answer.

    It lasts until the text ends, an error comes, or the order has the client leave.
    """
    told = Told(begun=clock())
    client = Client(path, HANGS_S)
    sampling = text.sampling
    body: Json = {
        "prompt": text.prompt,
        "max_tokens": order.max_tokens,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
    }
    if order.draft_n is not None:
        body["draft_n"] = order.draft_n
    try:
        with closing(_stream(client, body, order)) as chunks:
            for chunk in chunks:
                _take(told, chunk)
                if _leaves(told, order):
                    told.left = True
                    break
    except SpecmeshError as error:
        told.error = f"{type(error).__name__}: {error}"
    told.ended = clock()
    return told


def _stream(client: Client, body: Json, order: Order) -> Generator[Json, None, None]:
    if order.waits:
        return answer(client, body, WAITS_S)
    return client.complete(body | {"reconnect_timeout": 0})


def _take(told: Told, chunk: Json) -> None:
    told.opened = True
    match chunk:
        case {
            "choices": [{"text": str(more), "finish_reason": finish}],
            "specmesh": dict(extension),
        }:
            told.text += more
            told.finish = finish
            told.ids += extension.get("token_ids", ())
        case _:
            pass


def _leaves(told: Told, order: Order) -> bool:
    if order.leaves_after is None or told.finish is not None:
        return False
    return len(told.ids) >= order.leaves_after


class Clients:
    """The clients of one pair, a thread each.

    heard: their answers, with the orders.
    at: the daemon that each client is asking now.
    """

    def __init__(
        self,
        pair: Pair,
        texts: list[Text],
        clock: Callable[[], float],
        orders: list[Iterator[Order]],
    ) -> None:
        self._pair = pair
        self._texts = texts
        self._clock = clock
        self._over = threading.Event()
        self.heard: list[tuple[Order, Told]] = []
        self.at: list[Lane | None] = [None] * len(orders)
        self.threads: list[threading.Thread] = []
        for each in enumerate(orders):
            thread = threading.Thread(target=self._run, args=each, daemon=True)
            self.threads.append(thread)
            thread.start()

    def _run(self, number: int, orders: Iterator[Order]) -> None:
        for order in orders:
            if self._over.is_set():
                return
            self.at[number] = order.at
            path = self._pair.daemons[order.at].socket
            told = ask(path, self._texts[order.text], order, self._clock)
            self.at[number] = None
            self.heard.append((order, told))
            pause = order.pause_s
            if told.error is not None:
                pause += REFUSED_PAUSE_S
            self._over.wait(pause)

    def stop(self) -> bool:
        """Stop the clients. Return False if one of them hangs."""
        self._over.set()
        until = time.monotonic() + HANGS_S
        for thread in self.threads:
            thread.join(max(until - time.monotonic(), 0.0))
        return not any(thread.is_alive() for thread in self.threads)
