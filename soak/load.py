"""Clients of a pair: each asks for one text after the other, at either daemon, until it is told to stop."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from soak.pair import Pair
from soak.schedule import Lane, Order
from soak.truth import Text, Told
from specmesh.client import Client, answer
from specmesh.core.fields import Json
from specmesh.errors import SpecmeshError

WAITS_S = 90.0
"""Seconds that a client which waits does so: longer than some faults in a row, on a busy machine."""

HANGS_S = 120.0
"""Seconds without a byte after which a client gives up."""

REFUSED_PAUSE_S = 0.2
"""Seconds until a client that got nothing asks again."""


def ask(path: Path, text: Text, order: Order, clock: Callable[[], float]) -> Told:
    """One generation at a daemon's socket, to its end, an error, or where the order says that the client leaves."""
    told, how, client = Told(begun=clock()), text.sampling, Client(path, HANGS_S)
    body: Json = {
        "prompt": text.prompt,
        "max_tokens": order.max_tokens,
        "temperature": how.temperature,
    }
    body |= {"top_k": how.top_k, "top_p": how.top_p, "seed": how.seed}
    if order.draft_n is not None:
        body["draft_n"] = order.draft_n
    waiting = answer(client, body, WAITS_S) if order.waits else None
    try:
        with closing(waiting or client.complete(body | {"reconnect_timeout": 0})) as chunks:
            for chunk in chunks:
                told.opened = True
                match chunk:
                    case {
                        "choices": [{"text": str(more), "finish_reason": finish}],
                        "specmesh": dict(about),
                    }:
                        told.text += more
                        told.finish = finish
                        told.ids += about.get("token_ids", ())
                if (
                    order.leaves_after is not None
                    and len(told.ids) >= order.leaves_after
                    and told.finish is None
                ):
                    told.left = True
                    break
    except SpecmeshError as error:
        told.error = f"{type(error).__name__}: {error}"
    told.ended = clock()
    return told


class Clients:
    """The clients of one pair, a thread each. `heard` is what they got, with what they had asked for; `at`: whom
    each is asking now."""

    def __init__(
        self,
        pair: Pair,
        texts: list[Text],
        clock: Callable[[], float],
        orders: list[Iterator[Order]],
    ) -> None:
        self._pair, self._texts, self._clock = pair, texts, clock
        self._over = threading.Event()
        self.heard: list[tuple[Order, Told]] = []
        self.at: list[Lane | None] = [None] * len(orders)
        self.threads = [
            threading.Thread(target=self._live, args=each, daemon=True)
            for each in enumerate(orders)
        ]
        for thread in self.threads:
            thread.start()

    def _live(self, number: int, orders: Iterator[Order]) -> None:
        for order in orders:
            if self._over.is_set():
                return
            self.at[number] = order.at
            told = ask(
                self._pair.daemons[order.at].socket, self._texts[order.text], order, self._clock
            )
            self.at[number] = None
            self.heard.append((order, told))
            self._over.wait(order.pause_s + REFUSED_PAUSE_S * (told.error is not None))

    def stop(self) -> bool:
        """Have them leave; return whether all did."""
        self._over.set()
        until = time.monotonic() + HANGS_S
        for thread in self.threads:
            thread.join(max(until - time.monotonic(), 0.0))
        return not any(thread.is_alive() for thread in self.threads)
