"""`specmesh bench run`: the same prompts on a live pair, alone and with drafts in several ways, and an assessment.

Does drafting pay, how, and what limits it?"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import NamedTuple

from specmesh.bench import collect
from specmesh.client import Client, Fields, Json

WARM_UP_TOKENS = 32
_TIMES = ("verify_ms", "wait_ms", "draft_ms", "network_ms", "restart_ms")


class Variant(NamedTuple):
    """A way to generate: its name in tables, and the draft_n asked for."""

    name: str
    draft_n: int | str


ALONE = Variant("alone", 0)
ADAPTIVE = Variant("adaptive", "auto")
VARIANTS = (ALONE, Variant("draft_n 2", 2), Variant("draft_n 4", 4), Variant("draft_n 8", 8), ADAPTIVE)


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What to run: each prompt with each variant in each iteration, greedily, `max_tokens` tokens."""

    prompts: tuple[str, ...]
    iterations: int
    max_tokens: int
    variants: tuple[Variant, ...] = VARIANTS

    @property
    def texts(self) -> int:
        return len(self.prompts) * self.iterations * len(self.variants)

    def body(self, prompt: int, variant: Variant) -> Json:
        return {
            "prompt": self.prompts[prompt],
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "draft_n": variant.draft_n,
            "cache_prompt": False,  # else whichever comes second finds its prompt in memory
        }


@dataclass(frozen=True, slots=True)
class Sample:
    """One text. latency_s: from the request to its last token, on the client's clock. report: the numbers that the
    daemon told of it; what is missing is 0."""

    variant: str
    prompt: int
    iteration: int
    ids: tuple[int, ...]
    latency_s: float
    drafter: str | None
    report: defaultdict[str, float]

    @property
    def decode_s(self) -> float:
        """Without prompt processing."""
        rate = self.report["tokens_per_second"]
        return len(self.ids) / rate if rate > 0 else 0.0

    @property
    def wire_bytes(self) -> float:
        return self.report["bytes_sent"] + self.report["bytes_received"]

    def as_json(self) -> Json:
        names = ("variant", "prompt", "iteration", "latency_s", "decode_s", "wire_bytes", "drafter")
        told = {name: self.report[name] for name in ("rounds", "drafted", "accepted", *_TIMES)}
        return {name: getattr(self, name) for name in names} | told | {"tokens": len(self.ids)}


@dataclass(frozen=True, slots=True)
class Spread:
    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """A variant's texts together.

    tokens_per_second: over all texts of an iteration. speedup: against the verifier alone in the same iteration.
    Milliseconds are means per text; other_ms is latency without verifying and waiting, mostly the prompt's processing.
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


def measure(client: Client, plan: RunPlan, advance: Callable[[], None]) -> list[Sample]:
    """Run `plan`, one text at a time, calling `advance` after each; first a text of the first and of the last variant,
    unmeasured. Raise what the daemon raises."""
    for variant in dict.fromkeys((plan.variants[0], plan.variants[-1])):
        collect(client, plan.body(0, variant) | {"max_tokens": min(plan.max_tokens, WARM_UP_TOKENS)})
    samples = []
    for iteration in range(plan.iterations):
        for number in range(len(plan.prompts)):
            shift = (iteration + number) % len(plan.variants)  # so that none always follows the same one
            for variant in plan.variants[shift:] + plan.variants[:shift]:
                samples.append(_sample(client, plan, variant, number, iteration))
                advance()
    return samples


def _sample(client: Client, plan: RunPlan, variant: Variant, prompt: int, iteration: int) -> Sample:
    ids, latency_s, last, _ = collect(client, plan.body(prompt, variant))
    report = Fields(last["report"])
    told = defaultdict[str, float](float, report.by_name())
    return Sample(variant.name, prompt, iteration, tuple(ids), latency_s, report.text("drafter") or None, told)


def aggregate(samples: list[Sample]) -> list[Outcome]:
    """Sum up each variant, in the order of VARIANTS; those without samples are left out."""
    alone = [one for one in samples if one.variant == ALONE.name]
    truth = {one.prompt: one.ids for one in reversed(alone)}  # of the first iteration
    texts = {variant: [one for one in samples if one.variant == variant.name] for variant in VARIANTS}
    return [_outcome(variant, own, _rates(alone), truth) for variant, own in texts.items() if own]


def _outcome(
    variant: Variant, own: list[Sample], alone: dict[int, float], truth: dict[int, tuple[int, ...]]
) -> Outcome:
    rates = _rates(own)
    paired = [rate / alone[n] for n, rate in rates.items() if alone.get(n)]
    tokens = sum(len(one.ids) for one in own)
    counts = ("rounds", "drafted", "accepted")
    rounds, drafted, accepted = (int(sum(one.report[name] for one in own)) for name in counts)
    compared = [one for one in own if one.prompt in truth]
    times = {name: fmean(one.report[name] for one in own) for name in _TIMES}
    times["latency_ms"] = fmean(one.latency_s for one in own) * 1e3
    times["decode_ms"] = fmean(one.decode_s for one in own) * 1e3
    times["other_ms"] = max(times["latency_ms"] - times["verify_ms"] - times["wait_ms"], 0.0)
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
        bytes_per_token=round(sum(one.wire_bytes for one in own) / tokens, 2) if tokens else 0.0,
        identical=sum(one.ids == truth[one.prompt] for one in compared),
        compared=len(compared),
        without_drafter=0 if variant == ALONE else sum(one.drafter is None for one in own),
        **{name: round(value, 3) for name, value in times.items()},
    )


def _rates(samples: list[Sample]) -> dict[int, float]:
    rates = {}
    for iteration in sorted({one.iteration for one in samples}):
        own = [one for one in samples if one.iteration == iteration]
        seconds = sum(one.decode_s for one in own)
        rates[iteration] = sum(len(one.ids) for one in own) / seconds if seconds > 0 else 0.0
    return rates


def _spread(values: list[float]) -> Spread:
    return Spread(*(round(value, 4) for value in (median(values), min(values), max(values))))


_HEADINGS = (
    f"{'':<11}{'tokens/s':>9}{'spread':>16}{'speed-up':>10}{'accept':>8}{'drafts':>8}{'latency':>9}"
    f"{'verify':>9}{'wait':>8}{'draft':>8}{'network':>9}{'other':>8}{'B/token':>9}{'same':>8}"
)


def lines(outcomes: list[Outcome]) -> list[str]:
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


@dataclass(frozen=True, slots=True)
class RunResult:
    plan: RunPlan
    samples: list[Sample]
    snapshot: Json

    def lines(self) -> list[str]:
        outcomes, plan = aggregate(self.samples), self.plan
        model = Fields(self.snapshot).part("model")
        name = f"{model.text('name')} on {model.text('backend')}" if model.raw else "unknown model"
        return [
            f"{name}, drafter {', '.join(self._drafters()) or 'none'}",
            f"prompts {len(plan.prompts)}, iterations {plan.iterations}, at most {plan.max_tokens} tokens",
            "",
            *lines(outcomes),
            "",
            *assess(outcomes),
        ]

    def as_json(self) -> Json:
        outcomes = aggregate(self.samples)
        return {
            "schema_version": 1,
            "model": self.snapshot.get("model"),
            "drafters": self._drafters(),
            "prompts": len(self.plan.prompts),
            "iterations": self.plan.iterations,
            "max_tokens": self.plan.max_tokens,
            "variants": [asdict(outcome) for outcome in outcomes],
            "assessment": assess(outcomes),
            "samples": [one.as_json() for one in self.samples],
        }

    def _drafters(self) -> list[str]:
        return sorted({one.drafter for one in self.samples if one.drafter is not None})


def assess(outcomes: list[Outcome]) -> list[str]:
    """Return sentences, the most important first."""
    alone, *drafting = outcomes
    if not alone.tokens:
        return ["No tokens came from the verifier alone: try other prompts."]
    if not drafting:
        return ["Only the verifier alone was run. Start a drafter: specmesh drafter --connect ADDRESS"]
    lost, texts = sum(one.without_drafter for one in drafting), sum(one.texts for one in drafting)
    said = [f"{lost} of {texts} texts ended without a drafter: see its log, and run again."] if lost else []
    best = max(drafting, key=_speedup)
    said.append(f"The fastest with drafts is {best.variant}: {_speedup(best):.2f}x the verifier alone.")
    verified = [one for one in drafting if one.rounds and one.mean_draft_n]
    if verified:
        best = max(verified, key=_speedup)
        found = limits(best, alone)
        name = max(found, key=lambda key: found[key])
        said.append(f"What limits {best.variant} is {name}: without, {found[name]:.2f}x more at most. {_ADVICE[name]}")
    same, compared = sum(one.identical for one in drafting), sum(one.compared for one in drafting)
    return [*said, f"{same} of {compared} texts with drafts are those of the verifier alone (see docs/usage.md)."]


_ADVICE = {
    "rejected drafts": "Try a closer draft model.",
    "step costs": "Try fewer drafts.",
    "draft speed": "Try a smaller draft model or a faster machine.",
    "the network": "Try a shorter way.",
    "handling": "The target may be too fast.",
}


def _speedup(one: Outcome) -> float:
    return one.speedup.median if one.speedup is not None else 0.0


def limits(one: Outcome, alone: Outcome) -> dict[str, float]:
    """Return how much faster `one` would be without each limit, all else as it is.

    Without: every draft accepted; a step with drafts as cheap as one without; no waiting (for draft speed or network,
    whichever is the larger part of a restart); no time between steps but waiting.
    """
    one_row = alone.verify_ms * alone.texts / max(alone.rounds, 1)
    rest = max(one.decode_ms - one.verify_ms, 0.0)
    saved_ms = {
        "step costs": max(one.verify_ms - one_row * one.rounds / one.texts, 0.0),
        "the network" if one.network_ms > 0.5 * one.restart_ms else "draft speed": min(one.wait_ms, rest),
        "handling": max(rest - one.wait_ms, 0.0),
    }
    gains = {name: one.decode_ms / max(one.decode_ms - ms, 1e-9) for name, ms in saved_ms.items()}
    return {"rejected drafts": (1 + one.mean_draft_n) / one.mean_length} | gains
