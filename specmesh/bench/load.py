"""`specmesh bench load`: many clients at once, each a thread with one text after the other."""

import itertools
import time
from collections.abc import Callable
from math import ceil
from operator import attrgetter
from queue import SimpleQueue
from statistics import fmean
from threading import Thread

from specmesh.bench.texts import count_tokens, generate, ratio, totals
from specmesh.client import Client, GeneratedText
from specmesh.core.fields import Json
from specmesh.errors import Busy

RETRY_AFTER_S = 0.1

Texts = list[list[GeneratedText]]  # the texts of each client


def run_clients(
    client: Client, bodies: list[Json], iterations: int, count: int, advance: Callable[[], None]
) -> Texts:
    """Run `count` clients at once, each with `iterations` texts in a row.

    No body comes twice if there are enough. `advance` is called after each text.
    Raises the first error of a client.
    """
    ended = SimpleQueue[tuple[int, GeneratedText | Exception]]()

    def run(number: int) -> None:
        try:
            for iteration in range(iterations):
                body = bodies[(number + iteration * count) % len(bodies)]
                ended.put((number, _patiently(client, body)))
        except Exception as error:  # noqa: BLE001 - raised again by the main thread
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
    """Generate a text once there is room; the time until then counts."""
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
    """Sum up the texts of clients at once.

    slowest, mean: of the clients' own rates, waiting included.
    """
    texts = list(itertools.chain.from_iterable(clients))
    rates = list(map(_rate, clients))
    first_tokens = list[float]()
    gaps = list[float]()
    for text in texts:
        if text.arrivals:
            first_tokens.append(text.arrivals[0] - text.begun)
        for early, late in itertools.pairwise(text.arrivals):
            gaps.append(late - early)
    counts = {"sessions": len(clients)} | totals(texts)
    return counts | {
        "tokens_per_second": round(_rate(texts), 3),
        "mean": round(fmean(rates), 3),
        "slowest": round(min(rates), 3),
        "fairness": ratio(min(rates), fmean(rates), 4) or 0.0,
        "first_token_ms": _percentiles(first_tokens),
        "inter_token_latency_ms": _percentiles(gaps),
    }


def _rate(texts: list[GeneratedText]) -> float:
    """Return the tokens per second, from the first request to the last token."""
    begun: float = min(map(attrgetter("begun"), texts))
    ended: float = max(map(attrgetter("ended"), texts))
    seconds = ended - begun
    if seconds <= 0:
        return 0.0
    return count_tokens(texts) / seconds


def _percentiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds) or [0.0]
    found = dict[str, float]()
    for share in (50, 99):
        rank = ceil(share * len(ordered) / 100)
        found[f"p{share}"] = round(ordered[rank - 1] * 1e3, 3)
    return found
