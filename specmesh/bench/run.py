"""What a benchmark of a live pair measured, summed up and judged: pure functions from samples to words."""

from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to generate: its name in tables, and the draft_n asked for."""

    name: str
    draft_n: int | str


ALONE = Variant("alone", 0)
ADAPTIVE = Variant("adaptive", "auto")
VARIANTS = (ALONE, Variant("draft_n 2", 2), Variant("draft_n 4", 4), Variant("draft_n 8", 8), ADAPTIVE)


@dataclass(frozen=True, slots=True)
class Sample:
    """One text. latency_s: from the request to its last token, on the client's clock; the rest is of its report.

    decode_s is the time without prompt processing; restart_ms what passed from corrections to the first drafts on them,
    the network's part of which is network_ms.
    """

    variant: str
    prompt: int
    iteration: int
    ids: tuple[int, ...]
    latency_s: float
    decode_s: float
    rounds: int
    drafted: int
    accepted: int
    verify_ms: float
    wait_ms: float
    draft_ms: float
    network_ms: float
    restart_ms: float
    wire_bytes: int
    drafter: str | None


class Spread(NamedTuple):
    """The median of some iterations, the lowest and the highest."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """A variant's texts together.

    tokens_per_second: over all texts of an iteration; speedup: against the verifier alone in the same iteration, None
    without it. Times in milliseconds are means per text: verifying and waiting follow each other, drafting and network
    go on beside them, and `other_ms` is what latency has beyond these two, the reading of the prompt above all.
    identical: texts equal to the verifier's alone, of `compared`. without_drafter: texts that ended without a drafter.
    """

    variant: str
    iterations: int
    texts: int
    tokens: int
    rounds: int
    tokens_per_second: Spread
    speedup: Spread | None
    acceptance_rate: float | None
    mean_draft_n: float
    mean_length: float
    latency_ms: float
    decode_ms: float
    verify_ms: float
    wait_ms: float
    draft_ms: float
    network_ms: float
    restart_ms: float
    other_ms: float
    bytes_per_token: float
    identical: int
    compared: int
    without_drafter: int

    def as_json(self) -> Json:
        """The outcome as a JSON object."""
        told: Json = {name: getattr(self, name) for name in self.__slots__}
        for name in ("tokens_per_second", "speedup"):
            spread = getattr(self, name)
            told[name] = None if spread is None else spread._asdict()
        return told


def sample(variant: Variant, prompt: int, iteration: int, ids: list[int], latency_s: float, report: Json) -> Sample:
    """A sample out of a text's ids and its report; what the report lacks is 0."""
    rate = _number(report, "tokens_per_second")
    drafter = report.get("drafter")
    return Sample(
        variant=variant.name,
        prompt=prompt,
        iteration=iteration,
        ids=tuple(ids),
        latency_s=latency_s,
        decode_s=len(ids) / rate if rate > 0 else 0.0,
        rounds=int(_number(report, "rounds")),
        drafted=int(_number(report, "drafted")),
        accepted=int(_number(report, "accepted")),
        verify_ms=_number(report, "verify_ms"),
        wait_ms=_number(report, "wait_ms"),
        draft_ms=_number(report, "draft_ms"),
        network_ms=_number(report, "network_ms"),
        restart_ms=_number(report, "restart_ms"),
        wire_bytes=int(_number(report, "bytes_sent") + _number(report, "bytes_received")),
        drafter=drafter if isinstance(drafter, str) else None,
    )


def aggregate(samples: list[Sample]) -> list[Outcome]:
    """Sum up each variant, in the order of VARIANTS; those without samples are left out."""
    alone = [one for one in samples if one.variant == ALONE.name]
    truth: dict[int, tuple[int, ...]] = {}
    for one in alone:
        truth.setdefault(one.prompt, one.ids)
    outcomes = []
    for variant in VARIANTS:
        own = [one for one in samples if one.variant == variant.name]
        if own:
            outcomes.append(_outcome(variant, own, _rates(alone), truth))
    return outcomes


def _outcome(
    variant: Variant, own: list[Sample], alone: dict[int, float], truth: dict[int, tuple[int, ...]]
) -> Outcome:
    rates = _rates(own)
    paired = [rate / alone[n] for n, rate in rates.items() if alone.get(n)]
    tokens, rounds = sum(len(one.ids) for one in own), sum(one.rounds for one in own)
    drafted, accepted = sum(one.drafted for one in own), sum(one.accepted for one in own)
    compared = [one for one in own if one.prompt in truth]
    latency, verify, wait = _mean(own, "latency_s") * 1e3, _mean(own, "verify_ms"), _mean(own, "wait_ms")
    return Outcome(
        variant=variant.name,
        iterations=len(rates),
        texts=len(own),
        tokens=tokens,
        rounds=rounds,
        tokens_per_second=_spread(list(rates.values())),
        speedup=_spread(paired) if paired else None,
        acceptance_rate=round(accepted / drafted, 4) if drafted else None,
        mean_draft_n=round(drafted / rounds, 4) if rounds else 0.0,
        mean_length=round(1 + accepted / rounds, 4) if rounds else 0.0,
        latency_ms=round(latency, 3),
        decode_ms=round(_mean(own, "decode_s") * 1e3, 3),
        verify_ms=round(verify, 3),
        wait_ms=round(wait, 3),
        draft_ms=round(_mean(own, "draft_ms"), 3),
        network_ms=round(_mean(own, "network_ms"), 3),
        restart_ms=round(_mean(own, "restart_ms"), 3),
        other_ms=round(max(latency - verify - wait, 0.0), 3),
        bytes_per_token=round(sum(one.wire_bytes for one in own) / tokens, 2) if tokens else 0.0,
        identical=sum(one.ids == truth[one.prompt] for one in compared),
        compared=len(compared),
        without_drafter=0 if variant == ALONE else sum(one.drafter is None for one in own),
    )


def _rates(samples: list[Sample]) -> dict[int, float]:
    """Tokens per second by iteration."""
    tokens, seconds = dict[int, int](), dict[int, float]()
    for one in samples:
        tokens[one.iteration] = tokens.get(one.iteration, 0) + len(one.ids)
        seconds[one.iteration] = seconds.get(one.iteration, 0.0) + one.decode_s
    return {n: tokens[n] / seconds[n] if seconds[n] > 0 else 0.0 for n in tokens}


def _spread(values: list[float]) -> Spread:
    return Spread(round(median(values), 4), round(min(values), 4), round(max(values), 4))


def _mean(samples: list[Sample], name: str) -> float:
    return float(sum(getattr(one, name) for one in samples) / len(samples))


def _number(report: Json, name: str) -> float:
    value = report.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


_HEADINGS = (
    f"{'':<11}{'tokens/s':>9}{'spread':>16}{'speed-up':>10}{'accept':>8}{'drafts':>8}{'latency':>9}"
    f"{'verify':>9}{'wait':>8}{'draft':>8}{'network':>9}{'other':>8}{'B/token':>9}{'same':>8}"
)


def lines(outcomes: list[Outcome]) -> list[str]:
    """The table: one line per variant."""
    told = [_HEADINGS]
    for one in outcomes:
        rate = one.tokens_per_second
        speedup = "-" if one.speedup is None else f"{one.speedup.median:.2f}x"
        acceptance = "-" if one.acceptance_rate is None else f"{one.acceptance_rate:.0%}"
        told.append(
            f"{one.variant:<11}{rate.median:>9.1f}{f'{rate.low:.1f}-{rate.high:.1f}':>16}{speedup:>10}{acceptance:>8}"
            f"{one.mean_draft_n:>8.2f}{one.latency_ms:>9.0f}{one.verify_ms:>9.0f}{one.wait_ms:>8.0f}{one.draft_ms:>8.0f}"
            f"{one.network_ms:>9.0f}{one.other_ms:>8.0f}{one.bytes_per_token:>9.1f}"
            f"{f'{one.identical}/{one.compared}':>8}"
        )
    told.append("latency and its parts: ms per text; drafts: verified per step; same: texts equal to the first alone")
    return told
