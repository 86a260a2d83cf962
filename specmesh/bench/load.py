"""`specmesh bench load`: what many clients at once get, each a thread that asks for one text after the other."""

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from math import ceil
from queue import SimpleQueue
from statistics import fmean
from threading import Barrier, Thread
from typing import Any

from specmesh.client import Client, Fields, Json
from specmesh.errors import Busy

WARM_UP_TOKENS = 16
RETRY_AFTER_S = 0.1


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What to run: for each count of `sessions` so many clients at once, each with `iterations` texts in a row.

    options: further fields of each request. Neighbours have different prompts as long as there are.
    """

    sessions: tuple[int, ...]
    prompts: tuple[str, ...]
    iterations: int
    max_tokens: int
    options: Json

    @property
    def texts(self) -> int:
        return sum(self.sessions) * self.iterations

    def body(self, prompt: int) -> Json:
        """Return the request, greedy and to the full length."""
        asked: Json = {"prompt": self.prompts[prompt], "max_tokens": self.max_tokens, "temperature": 0}
        return asked | {"ignore_eos": True} | self.options


@dataclass(slots=True)
class LoadText:
    """One text, with times in seconds on the client's clock. refused: how often the server had no place for it."""

    client: int
    prompt: int
    begun: float
    arrivals: list[float] = field(default_factory=list)
    tokens: int = 0
    text: str = ""
    drafted: int = 0
    accepted: int = 0
    refused: int = 0

    @property
    def ended(self) -> float:
        return self.arrivals[-1] if self.arrivals else self.begun

    def take(self, chunk: Json, now: float) -> None:
        told = Fields(chunk)
        tokens = len(told.numbers("specmesh", "token_ids"))
        text = "".join(str(choice.raw.get("text") or "") for choice in told.parts("choices"))
        if tokens or text:
            self.arrivals.append(now)
        self.text += text
        self.tokens += tokens
        if (report := told.part("specmesh", "report")).raw:
            self.drafted, self.accepted = (int(report.number(name) or 0) for name in ("drafted", "accepted"))


def measure(source: Client, load: LoadPlan, advance: Callable[[], None]) -> list[tuple[int, list[LoadText]]]:
    """Run `load`, calling `advance` after each text; a short text before, unmeasured. (clients, their texts) each.

    Raise what the source raises, but Busy from the first text only: later a client waits.
    """
    with closing(source.complete(load.body(0) | {"max_tokens": min(load.max_tokens, WARM_UP_TOKENS)})) as chunks:
        for _ in chunks:
            pass
    return [(count, crowd(source, load, count, advance)) for count in load.sessions]


def crowd(source: Client, load: LoadPlan, count: int, advance: Callable[[], None]) -> list[LoadText]:
    told = SimpleQueue[LoadText | Exception]()
    gate = Barrier(count)
    for client in range(count):  # as daemons: Ctrl-C must not wait for texts
        Thread(target=_client, args=(source, load, client, gate, told), daemon=True).start()
    texts: list[LoadText] = []
    while len(texts) < count * load.iterations:
        match told.get():
            case LoadText() as text:
                texts.append(text)
                advance()
            case error:
                raise error
    return texts


def _client(
    source: Client, load: LoadPlan, client: int, gate: Barrier, told: "SimpleQueue[LoadText | Exception]"
) -> None:
    try:
        gate.wait()
        for iteration in range(load.iterations):
            prompt = (client + iteration) % len(load.prompts)
            told.put(_text(source, load.body(prompt), client, prompt))
    except Exception as error:  # noqa: BLE001 - raised again by who waits for the texts
        told.put(error)


def _text(source: Client, body: Json, client: int, prompt: int) -> LoadText:
    begun, refused = time.perf_counter(), 0
    while True:
        text = LoadText(client, prompt, begun, refused=refused)
        try:
            with closing(source.complete(body)) as chunks:
                for chunk in chunks:
                    text.take(chunk, time.perf_counter())
        except Busy:
            refused += 1
            time.sleep(RETRY_AFTER_S)
        else:
            return text


def levels(runs: Sequence[tuple[int, Sequence[LoadText]]]) -> list[dict[str, Any]]:
    truth: dict[int, LoadText] = {}
    return [_level(sessions, texts, truth) for sessions, texts in runs]


def _level(sessions: int, texts: Sequence[LoadText], truth: dict[int, LoadText]) -> dict[str, Any]:
    """Return what so many clients at once got. slowest, mean: of their own rates, waiting included.

    identical: of `compared` texts, those equal to the first of the same prompt, which is in `truth`.
    """
    rates = [_rate([text for text in texts if text.client == client]) for client in {text.client for text in texts}]
    drafted = sum(text.drafted for text in texts)
    known = [text for text in texts if truth.setdefault(text.prompt, text) is not text]
    gaps = [late - early for text in texts for early, late in itertools.pairwise(text.arrivals)]
    return {
        "sessions": sessions,
        "texts": len(texts),
        "tokens": sum(text.tokens for text in texts),
        "seconds": round(_seconds(texts), 4),
        "tokens_per_second": round(_rate(texts), 3),
        "mean": round(fmean(rates), 3),
        "slowest": round(min(rates), 3),
        "fairness": round(min(rates) / fmean(rates), 4) if any(rates) else 0.0,
        "first_token_ms": _percentiles(text.arrivals[0] - text.begun for text in texts if text.arrivals),
        "gap_ms": _percentiles(gaps),
        "acceptance_rate": round(sum(text.accepted for text in texts) / drafted, 4) if drafted else None,
        "identical": sum(text.text == truth[text.prompt].text for text in known),
        "compared": len(known),
        "refused": sum(text.refused for text in texts),
    }


def _seconds(texts: Sequence[LoadText]) -> float:
    return max(text.ended for text in texts) - min(text.begun for text in texts)


def _rate(texts: Sequence[LoadText]) -> float:
    """Tokens per second, from the first request to the last token."""
    seconds = _seconds(texts)
    return sum(text.tokens for text in texts) / seconds if seconds > 0 else 0.0


def _percentiles(seconds: Iterable[float]) -> dict[str, float]:
    """In milliseconds; 0 of nothing."""
    found = sorted(seconds) or [0.0]
    return {f"p{share}": round(found[ceil(share * len(found) / 100) - 1] * 1e3, 3) for share in (50, 99)}


_HEADINGS = (
    f"{'sessions':>8}{'tokens/s':>10}{'each':>8}{'slowest':>9}{'/ mean':>8}{'first p50':>11}{'p99':>8}"
    f"{'gap p50':>9}{'p99':>8}{'accept':>8}{'same':>8}{'refused':>9}"
)
_ROW = (
    "{sessions:>8}{tokens_per_second:>10.1f}{mean:>8.1f}{slowest:>9.1f}{fairness:>8.2f}{first_token_ms[p50]:>11.0f}"
    "{first_token_ms[p99]:>8.0f}{gap_ms[p50]:>9.1f}{gap_ms[p99]:>8.1f}{accept:>8}{same:>8}{refused:>9}"
)


def lines(found: Sequence[dict[str, Any]]) -> list[str]:
    told = [_HEADINGS]
    for one in found:
        accept = "-" if one["acceptance_rate"] is None else f"{one['acceptance_rate']:.0%}"
        told.append(_ROW.format(**one, accept=accept, same=f"{one['identical']}/{one['compared']}"))
    return [
        *told,
        "tokens/s: of all together; each, slowest: a client's own, waiting included; first: ms to the first token;",
        "gap: ms between arrivals, a step's tokens coming together; same: texts equal to the first of the same prompt",
    ]
