"""`specmesh bench run` as a table or JSON, with an assessment: does drafting pay, how, and what limits it."""

from dataclasses import asdict, dataclass

from specmesh.bench.run import ADAPTIVE, ALONE, Outcome, RunPlan, Sample, aggregate, lines
from specmesh.bench.steps import measured
from specmesh.client import Fields, Json

FLAT, STEEP = 1.25, 2.0
"""Cost of a wide step over that of one row: up to FLAT drafts are almost free, from STEEP on they are dear."""

CLOSE = 0.97  # share of the best speed from which a setting counts as good as the best
OFF = 0.5  # drafts per step below which the adaptive variant says nothing about what limits drafting


@dataclass(frozen=True, slots=True)
class RunResult:
    """What was run and measured, and the daemon's /stats after it."""

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
