"""`specmesh recommend`: drafters for a target, by published numbers and simulations.

The simulations run this project's own scheduler. pairs.toml has the numbers. Each is shown with its
source.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from specmesh.bench.step_times import costs_of
from specmesh.bench.texts import PAYS
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.fields import Json, at, list_at, number_at, object_at, objects_at
from specmesh.core.simulation import Deployment, Forecast, Simulation, Workload
from specmesh.machines import DRAFT_MS, STEPS_MS

UNKNOWN = "unknown: measure with `specmesh bench run`"
UNKNOWN_ALPHA = (0.5, 0.8)
"""Acceptance per draft without a published number: from an unrelated to a good drafter."""

SPREAD = 0.1
"""Assumed spread of a published acceptance on either side.

Prompts, templates and weights may be others.
"""

HIGHEST_ALPHA = 0.95
PROMPT = 64  # ids of a simulated prompt
TOKENS = 256  # tokens of a simulated text
PAUSE_S = 0.5e-3  # seconds between two simulated steps
NEAR_SIZE = 3.0  # targets whose sizes differ by less have similar steps
SAME_SIZE = 1.5
"""Ratio of sizes up to which a drafter is assumed to be as fast as the one timed on a chip."""


@dataclass(frozen=True)
class StepTimes:
    """The times of the target's steps.

    kind: measured (on this machine), given (by the user) or table (of another target).
    """

    costs: StepCosts
    kind: str
    source: str

    def as_json(self) -> Json:
        """Return the milliseconds of a step of one row, with their kind and source."""
        ms = round(self.costs.seconds(1) * 1e3, 2)
        return {"ms": ms, "kind": self.kind, "source": self.source}


@cache
def known() -> Json:
    """Return the content of pairs.toml."""
    return tomllib.loads((Path(__file__).parent / "pairs.toml").read_text(encoding="utf-8"))


def family_of(name: str, metadata: Mapping[str, str]) -> tuple[Json | None, str]:
    """Return a target's family, if it is known, and the evidence: its file or a name."""
    families = objects_at(known(), "families")
    architecture = metadata.get("general.architecture")
    pre = metadata.get("tokenizer.ggml.pre")
    for family in families:
        if architecture in list_at(family, "architectures"):
            return family, f"architecture {architecture} of its file"
    for called in (metadata.get("general.name", ""), name):
        spelt = re.sub(r"[\s_]+", "-", called.lower())
        for family in families:
            if re.search(str(family["names"]), spelt):
                return family, f"the name {called}"
    for family in families:
        if pre == family["tokenizer"]:
            return family, f"tokenizer {pre} of its file"
    return None, "neither its name nor its file"


def size_of(name: str) -> float | None:
    """Return the billions of weights in a name."""
    found = re.search(r"(?<![\w.])(\d+(?:\.\d+)?)b(?![a-z])", name.lower())
    return float(found[1]) if found else None


def pairs_for(family: Json, size: float | None) -> list[Json]:
    """Return the family's pairs for targets of this size.

    Without any, return all pairs whose drafter is clearly smaller.
    """
    pairs = objects_at(family, "pairs")
    if size is None:
        return pairs
    same = list[Json]()
    smaller = list[Json]()
    for pair in pairs:
        if size_of(str(pair["target"])) == size:
            same.append(pair)
        if 3 * number_at(pair, "draft_b") <= size:
            smaller.append(pair)
    return same or smaller


def tables(size: float | None) -> list[StepTimes]:
    """Return the step times of known machines with targets of about this size, or else of all."""
    near = list[StepTimes]()
    others = list[StepTimes]()
    for name, steps_ms in STEPS_MS.items():
        fact = object_at(known(), f"machines.{name}")
        source = f"of another target, {fact['kind']}: {source_of(fact)}"
        times = StepTimes(costs_of({0: steps_ms}), "table", source)
        if size and 1 / NEAR_SIZE < number_at(fact, "b") / size < NEAR_SIZE:
            near.append(times)
        else:
            others.append(times)
    return near or others


def given(step_ms: float) -> StepTimes:
    """Return step times from that of one row, which the user gave.

    More rows cost the same multiple of it as on the machine whose step is nearest.
    """
    like = min(STEPS_MS, key=lambda name: abs(STEPS_MS[name][1] - step_ms))
    scale = step_ms / STEPS_MS[like][1]
    steps_ms = dict[int, float]()
    for rows, ms in STEPS_MS[like].items():
        steps_ms[rows] = ms * scale
    costs = costs_of({0: steps_ms})
    return StepTimes(costs, "given", f"--step-ms; more rows estimated, as on {like}")


def draft_time(chip: str | None, draft_b: float) -> Json:
    """Return the milliseconds of a draft, with their kind and source."""
    if chip is None:
        source = "a model of about 1B on a Mac; --chip knows others"
        return {"ms": DRAFT_MS, "kind": "estimated", "source": source}
    fact = object_at(known(), f"chips.{chip}")
    if draft_b <= SAME_SIZE * number_at(fact, "b"):
        return {"ms": fact["ms"], "kind": fact["kind"], "source": source_of(fact)}
    ms = round(number_at(fact, "ms") * draft_b / number_at(fact, "b"), 1)
    source = f"at most, by weights: {fact['ms']} ms are of {source_of(fact)}"
    return {"ms": ms, "kind": "estimated", "source": source}


def source_of(fact: Json) -> str:
    parts = map(fact.get, ("conditions", "source", "date"))
    return ", ".join(map(str, filter(None, parts)))


def alphas(pair: Json) -> tuple[float, float]:
    """Return the assumed range of acceptance per draft."""
    if "acceptance" not in pair:
        return UNKNOWN_ALPHA
    rate = number_at(pair, "acceptance")
    draft_n = int(number_at(pair, "draft_n", 0))
    alpha = rate - SPREAD  # the rate is of drafts that the drafter was sure of
    if draft_n:
        alpha = _per_draft(rate, draft_n)
    return round(alpha - SPREAD, 2), round(min(alpha + SPREAD, HIGHEST_ALPHA), 2)


def _per_draft(rate: float, draft_n: int) -> float:
    """Return the probability of acceptance after accepted drafts.

    rate: the share of accepted drafts in chains of `draft_n`.
    """
    found = 0.0
    for halving in range(1, 21):
        middle = found + 0.5**halving
        accepted = sum(middle**place for place in range(1, draft_n + 1))
        if accepted <= rate * draft_n:
            found = middle
    return found


def simulated(site: Deployment, texts: Workload, users: int, alpha: float) -> Forecast:
    """Simulate users whose drafts are accepted with probability `alpha`.

    The luck is the same each time.
    """
    chance = Random(1)  # noqa: S311 - luck, not a secret
    return Simulation(site, texts, users, lambda _: chance.random() < alpha).run()


def speedup(costs: StepCosts, draft_ms: float, round_trip_ms: float, alpha: float) -> float:
    """Simulate one user's texts with adaptive drafts and without."""
    site = Deployment(
        costs=costs, draft=draft_ms / 1e3, round_trip=round_trip_ms / 1e3, pause=PAUSE_S
    )
    drafting = simulated(site, Workload(PROMPT, TOKENS, None), 1, alpha)
    plain = simulated(site, Workload(PROMPT, TOKENS, 0), 1, alpha)
    return round(drafting.total / plain.total, 2)


def report(
    target: str,
    metadata: Mapping[str, str],
    step: StepTimes | None,
    chip: str | None,
    round_trip_ms: float,
) -> Json:
    """Return the report that --json prints.

    metadata: of the target's file; empty if only its name is known.
    step: the times of the target's steps. None: those of known machines.
    """
    family, evidence = family_of(target, metadata)
    size = size_of(metadata.get("general.size_label", "")) or size_of(target)
    steps = tables(size) if step is None else [step]
    shown = list[Json]()
    if family:
        for pair in pairs_for(family, size):
            shown.append(_forecast(pair, steps, chip, round_trip_ms))
    words = f"{target} {metadata.get('general.architecture', '')}".lower()
    experts = re.search(r"-a\d+b|moe", words) is not None
    return {
        "target": target,
        "family": family and family["name"],
        "known_by": evidence,
        "tokenizer": metadata.get("tokenizer.ggml.pre") or (family and family["tokenizer"]),
        "chip": chip,
        "steps": list(map(StepTimes.as_json, steps)),
        "round_trip_ms": round_trip_ms,
        "pairs": shown,
        "advice": list(_advice(family, shown, experts=experts)),
    }


def _forecast(pair: Json, steps: list[StepTimes], chip: str | None, round_trip_ms: float) -> Json:
    """Return a pair with its numbers, and the range of its speed-up for each of the steps."""
    draft = draft_time(chip, number_at(pair, "draft_b"))
    draft_ms = number_at(draft, "ms")
    assumed = alphas(pair)
    speedups = list[Json]()
    for times in steps:
        ends = [speedup(times.costs, draft_ms, round_trip_ms, alpha) for alpha in assumed]
        speedups.append({"low": min(ends), "high": max(ends)})
    rate = pair.get("acceptance")
    acceptance: Json = {
        "rate": rate,
        "kind": "unknown" if rate is None else "published",
        "draft_n": pair.get("draft_n"),
        "source": None if rate is None else source_of(pair),
    }
    return {
        "drafter": pair["drafter"],
        "measured_with": pair["target"],
        "acceptance": acceptance,
        "assumed": assumed,
        "draft": draft,
        "speedup": speedups,
    }


def _advice(family: Json | None, pairs: list[Json], *, experts: bool) -> Iterator[str]:
    if family is None:
        advice = "try a drafter of the same family and generation, a tenth of the size or less"
        yield f"No pair is known: {advice}."
    elif "instead" in family:
        yield f"Instead of a draft model: {_fact(object_at(family, 'instead'))}"
    if experts:
        yield f"Expect less than the forecast: {_fact(object_at(known(), 'experts'))}"
    speedups = list[float]()
    for pair in pairs:
        for ends in objects_at(pair, "speedup"):
            speedups += (number_at(ends, "low"), number_at(ends, "high"))
    if speedups and max(speedups) < PAYS:
        yield "Better without a drafter: no pair pays at these times."
    elif speedups and min(speedups) < PAYS:
        yield "Where the low end is about 1, drafts may not pay; specmesh stops drafting then."
    yield f"For edits, agents and other repeated text, also: {_fact(object_at(known(), 'suffix'))}"
    simulation = "Forecasts are simulated with chances that do not change in a text"
    yield f"{simulation}; `specmesh bench run --suite` measures."


def _fact(fact: Json) -> str:
    source = f"published, {fact['source']}, {fact['date']}"
    return f"{fact['what']} ({fact['how']}): {fact['result']} ({source})"


def rows(result: Json) -> list[Json]:
    """Return a report's pairs as rows of one table."""
    table = list[Json]()
    for pair in objects_at(result, "pairs"):
        rate = at(pair, "acceptance.rate")
        speedups = objects_at(pair, "speedup")
        for ends, step in zip(speedups, objects_at(result, "steps"), strict=True):
            row: Json = {
                "drafter": pair["drafter"],
                "acceptance": UNKNOWN if rate is None else f"{rate} published",
                "with": pair["measured_with"],
                "assumed": "-".join(map(str, list_at(pair, "assumed"))),
                "draft ms": f"{at(pair, 'draft.ms')} {at(pair, 'draft.kind')}",
                "step ms": f"{step['ms']} {step['kind']}",
                "speed-up": f"{ends['low']:.2f}-{ends['high']:.2f} simulated",
            }
            table.append(row)
    return table


def sources(result: Json) -> list[str]:
    """Return a line for each source of a report's numbers."""
    pairs = objects_at(result, "pairs")
    lines = list[str]()
    for step in objects_at(result, "steps"):
        lines.append(f"step {step['ms']} ms: {step['kind']}, {step['source']}")
    for pair in pairs:
        draft = object_at(pair, "draft")
        lines.append(f"draft {draft['ms']} ms: {draft['kind']}, {draft['source']}")
    for pair in pairs:
        source = at(pair, "acceptance.source")
        if source:
            lines.append(f"{pair['drafter']} for {pair['measured_with']}: {source}")
    return list(dict.fromkeys(lines))


def summary() -> list[tuple[str, str, str]]:
    """Return a row per family for the README: target, drafter, and its result with a link."""
    found = list[tuple[str, str, str]]()
    for family in objects_at(known(), "families"):
        best = object_at(family, "instead") or objects_at(family, "pairs")[0]
        drafter = best.get("what") or best["drafter"]
        result = str(best.get("result", "unknown"))
        if "acceptance" in best:
            result = f"{best['acceptance']} accepted"
        if "source" in best:
            result = f"[{result}]({best['source']})"
        found.append((str(family["name"]), str(drafter), result))
    return found
