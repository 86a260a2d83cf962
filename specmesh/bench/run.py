"""`specmesh bench run`: the same prompts on a live pair, alone and with drafts in several ways, and an assessment.

Does drafting pay, how, and what limits it?"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import NamedTuple

from specmesh.bench import collect
from specmesh.bench.steps import measured
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


FLAT, STEEP = 1.25, 2.0
"""Cost of a wide step over that of one row: up to FLAT drafts are almost free, from STEEP on they are dear."""

CLOSE = 0.97  # share of the best speed from which a setting counts as good as the best
OFF = 0.5  # drafts per step below which the adaptive variant says nothing about what limits drafting


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
            *self._assessment(outcomes),
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
            "assessment": self._assessment(outcomes),
            "samples": [one.as_json() for one in self.samples],
        }

    def _assessment(self, outcomes: list[Outcome]) -> list[str]:
        return assess(outcomes, measured(self.snapshot)[0] if "steps_ms" in self.snapshot else {})

    def _drafters(self) -> list[str]:
        return sorted({one.drafter for one in self.samples if one.drafter is not None})


def assess(outcomes: list[Outcome], steps_ms: dict[int, float]) -> list[str]:
    """Return sentences, the most important first. steps_ms: the verifier's milliseconds of a step by its rows."""
    named = {one.variant: one for one in outcomes}
    alone = named.get(ALONE.name)
    if alone is None or not alone.tokens:
        return ["No tokens came from the verifier alone: try other prompts."]
    drafting = [one for one in outcomes if one.speedup is not None and one is not alone]
    if not drafting:
        return ["Only the verifier alone was run. Start a drafter: specmesh drafter --connect ADDRESS"]
    lost, texts = sum(one.without_drafter for one in drafting), sum(one.texts for one in drafting)
    said = [f"{lost} of {texts} texts ended without a drafter: see its log, and run again."] if lost else []
    drafting = [one for one in drafting if one.without_drafter < one.texts]
    if not drafting:
        return [*said, "Nothing was drafted, so whether drafting pays is open."]
    said.append(_pays(max(drafting, key=_speedup)))
    adaptive = next((one for one in drafting if one.variant == ADAPTIVE.name), None)
    fixed = [one for one in drafting if one is not adaptive]
    if fixed and adaptive is not None:
        said.append(_best_fixed(max(fixed, key=_speedup), adaptive))
    telling = [one for one in drafting if one.mean_draft_n >= OFF] or drafting
    said.append(_limit(max(telling, key=_speedup), alone))
    if len(steps_ms) > 1 and steps_ms.get(1):
        said.append(_steepness(steps_ms))
    same, compared = sum(one.identical for one in drafting), sum(one.compared for one in drafting)
    if same == compared:
        return [*said, f"All {compared} texts with drafts are those of the verifier alone."]
    parted = "the others differ, as a rule where two tokens nearly tie: steps of another width round differently"
    return [*said, f"{same} of {compared} texts with drafts are those of the verifier alone; {parted} (docs/usage.md)."]


def _speedup(one: Outcome) -> float:
    return one.speedup.median if one.speedup is not None else 0.0


def _times(one: Outcome) -> str:
    seen = "one iteration"
    if one.speedup is not None and one.iterations > 1:
        seen = f"{one.speedup.low:.2f} to {one.speedup.high:.2f}"
    return f"{_speedup(one):.2f}x the verifier alone ({seen})"


def _pays(best: Outcome) -> str:
    if best.speedup is not None and best.speedup.low > 1 and best.iterations > 1:
        return f"Drafting pays: {best.variant} is {_times(best)}."
    if _speedup(best) > 1:
        return f"Whether drafting pays is not clear: {best.variant} is {_times(best)}. Try more iterations."
    return f"Drafting does not pay here: the best, {best.variant}, is {_times(best)}."


def _best_fixed(best: Outcome, adaptive: Outcome) -> str:
    said = f"Of the fixed settings {best.variant} is best, {_times(best)}"
    which = "the best fixed setting" if _speedup(best) > 1 else "the verifier alone"
    share = _speedup(adaptive) / max(_speedup(best), 1.0)
    if share >= CLOSE:
        return f"{said}; adaptive is as good as {which} or better ({_speedup(adaptive):.2f}x)."
    return f"{said}; adaptive reaches {share:.0%} of {which}."


def _limit(one: Outcome, alone: Outcome) -> str:
    """Name the one thing that, were it perfect and all else as it is, would make `one` the fastest.

    Perfect: every draft accepted; a step with drafts as cheap as one without; no waiting (for draft speed or network,
    whichever is the larger part of a restart); no time between steps but waiting.
    """
    if not (one.rounds and alone.rounds and one.mean_draft_n and one.decode_ms and one.verify_ms and alone.verify_ms):
        return "What limits it cannot be told: no drafts were verified. Is a drafter attached, and fast enough?"
    one_row = alone.verify_ms * alone.texts / alone.rounds
    waiting = "network" if one.network_ms > 0.5 * one.restart_ms else "draft speed"
    rest = max(one.decode_ms - one.verify_ms, 0.0)
    saved = {
        "step costs": max(one.verify_ms - one_row * one.rounds / one.texts, 0.0),
        waiting: min(one.wait_ms, rest),
        "handling": max(rest - one.wait_ms, 0.0),
    }
    found = {name: one.decode_ms / max(one.decode_ms - ms, 1e-9 * one.decode_ms) for name, ms in saved.items()}
    found["acceptance"] = (1 + one.mean_draft_n) / one.mean_length
    name = max(found, key=lambda key: found[key])
    gain = f"{found[name]:.2f}x more at most"
    rate = one.acceptance_rate or 0.0
    waited = f"{one.wait_ms:.0f} of {one.decode_ms:.0f} ms a text are waits for drafts"
    words = {
        "acceptance": f"acceptance: {rate:.0%} of drafts stand; if all did, {gain}. Try a closer draft model.",
        "step costs": f"step costs: wide steps are dearer than one row; if they were not, {gain}. Try fewer drafts.",
        "draft speed": f"draft speed: {waited}; without, {gain}. Try a smaller draft model or a faster machine.",
        "network": f"the network: {waited}, more for the way than for drafting; without, {gain}. Try a shorter way.",
        "handling": f"handling: time between steps that is no waiting; without, {gain}. The target may be too fast.",
    }
    return f"What limits {one.variant} is {words[name]}"


def _steepness(steps_ms: dict[int, float]) -> str:
    rows = max([width for width in steps_ms if width <= 9], default=1)
    if rows == 1:
        rows = min(width for width in steps_ms if width > 1)
    ratio = steps_ms[rows] / steps_ms[1]
    kind = "flat, drafts are cheap to verify" if ratio <= FLAT else "moderate" if ratio < STEEP else "steep"
    return f"Step costs are {kind}: {rows} rows cost {ratio:.2f} of one."
