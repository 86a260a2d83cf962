"""`specmesh bench load`: what many clients at once get, each a thread that asks for one text after the other."""

import itertools
import time
from collections.abc import Callable, Iterable
from math import ceil
from queue import SimpleQueue
from statistics import fmean
from threading import Thread

from specmesh.bench import generate, totals
from specmesh.client import Client, GeneratedText
from specmesh.core.fields import Json
from specmesh.errors import Busy

RETRY_AFTER_S = 0.1

Texts = list[list[GeneratedText]]  # the texts of each client


def run_clients(
    client: Client, bodies: list[Json], iterations: int, count: int, advance: Callable[[], None]
) -> Texts:
    """Run `count` clients at once, each with `iterations` texts in a row, calling `advance` after each text. Neighbours
    have different bodies as long as there are. Raise what one of them is answered with."""
    ended = SimpleQueue[tuple[int, GeneratedText | Exception]]()

    def run(number: int) -> None:
        try:
            for iteration in range(iterations):
                ended.put((number, _patiently(client, bodies[(number + iteration) % len(bodies)])))
        except Exception as error:  # noqa: BLE001 - raised again by who waits for the texts
            ended.put((number, error))

    for number in range(count):  # as daemons: Ctrl-C must not wait for texts
        Thread(target=run, args=(number,), daemon=True).start()
    found: Texts = [[] for _ in range(count)]
    for _ in range(count * iterations):
        number, text = ended.get()
        if isinstance(text, Exception):
            raise text
        found[number].append(text)
        advance()
    return found


def _patiently(client: Client, body: Json) -> GeneratedText:
    """Ask until there is room; the time until then counts."""
    begun = time.perf_counter()
    while True:
        try:
            text = generate(client, body)
        except Busy:
            time.sleep(RETRY_AFTER_S)
        else:
            text.begun = begun
            return text


def level(clients: Texts) -> Json:
    """Sum up what so many clients at once got. slowest, mean: of their own rates, waiting included."""
    texts = [text for own in clients for text in own]
    rates = [_rate(own) for own in clients]
    gaps = (late - early for text in texts for early, late in itertools.pairwise(text.arrivals))
    counts = {"sessions": len(clients)} | totals(texts)
    return counts | {
        "tokens_per_second": round(_rate(texts), 3),
        "mean": round(fmean(rates), 3),
        "slowest": round(min(rates), 3),
        "fairness": round(min(rates) / fmean(rates), 4) if any(rates) else 0.0,
        "first_token_ms": _percentiles(
            text.arrivals[0] - text.begun for text in texts if text.arrivals
        ),
        "inter_token_latency_ms": _percentiles(gaps),
    }


def _rate(texts: list[GeneratedText]) -> float:
    """Tokens per second, from the first request to the last token."""
    seconds = max(text.ended for text in texts) - min(text.begun for text in texts)
    return sum(len(text.ids) for text in texts) / seconds if seconds > 0 else 0.0


def _percentiles(seconds: Iterable[float]) -> dict[str, float]:
    found = sorted(seconds) or [0.0]
    return {
        f"p{share}": round(found[ceil(share * len(found) / 100) - 1] * 1e3, 3) for share in (50, 99)
    }
