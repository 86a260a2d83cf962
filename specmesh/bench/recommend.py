"""`specmesh recommend`: which drafter suits a target, from what others published and a simulation of this project's own
scheduler. pairs.toml has the numbers; each is shown with where it is from."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from specmesh.bench import PAYS
from specmesh.bench.steps import costs_of
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.fields import Json, at, list_at, number_at, object_at, objects_at
from specmesh.core.simulation import Deployment, Forecast, Simulation, Workload
from specmesh.machines import DRAFT_MS, STEPS_MS

UNKNOWN = "unknown: measure with `specmesh bench run`"
UNKNOWN_ALPHA = (0.5, 0.8)
"""Acceptance per draft that is assumed where nobody published any: from a stranger's to a good drafter's."""
SPREAD = 0.1  # what is assumed of a published acceptance on either side: other prompts, templates and weights
HIGHEST_ALPHA = 0.95
PROMPT, TOKENS, PAUSE_S = 64, 256, 0.5e-3  # of simulated texts, and between two steps
NEAR_SIZE = 3.0  # targets whose sizes differ by less have steps that are worth a look
SAME_SIZE = (
    1.5  # a drafter up to so many times as large as the one timed on a chip is taken to be as fast
)


@dataclass(frozen=True)
class StepTimes:
    """How long steps of the target take, and how that is known: measured (here), given, or table (another target's)."""

    costs: StepCosts
    kind: str
    source: str

    @property
    def ms(self) -> float:
        return self.costs.seconds(1) * 1e3


@cache
def known() -> Json:
    """What pairs.toml has."""
    return tomllib.loads((Path(__file__).parent / "pairs.toml").read_text(encoding="utf-8"))


def family_of(name: str, metadata: Mapping[str, str]) -> tuple[Json | None, str]:
    """Return a target's family and what gave it: its file's metadata, else its name; None where neither is known."""
    families = objects_at(known(), "families")
    architecture, pre = (
        metadata.get(key) for key in ("general.architecture", "tokenizer.ggml.pre")
    )
    for family in families:
        if architecture in list_at(family, "architectures"):
            return family, f"architecture {architecture} of its file"
    for called in (metadata.get("general.name", ""), name):
        for family in families:
            if re.search(str(family["names"]), re.sub(r"[\s_]+", "-", called.lower())):
                return family, f"the name {called}"
    for family in families:
        if pre == family["tokenizer"]:
            return family, f"tokenizer {pre} of its file"
    return None, "neither its name nor its file"


def size_of(name: str) -> float | None:
    """Return the billions of weights that a name tells."""
    found = re.search(r"(?<![\w.])(\d+(?:\.\d+)?)b(?![a-z])", name.lower())
    return float(found[1]) if found else None


def pairs_for(family: Json, size: float | None) -> list[Json]:
    """Return the family's pairs for targets of this size; else all whose drafter is clearly smaller."""
    pairs = objects_at(family, "pairs")
    same = [pair for pair in pairs if size is not None and size_of(str(pair["target"])) == size]
    return same or [
        pair for pair in pairs if size is None or 3 * number_at(pair, "draft_b") <= size
    ]


def tables(size: float | None) -> list[StepTimes]:
    """Return the step times of known machines with targets of about this size; of all where there are none."""
    facts = {name: object_at(known(), f"machines.{name}") for name in STEPS_MS}
    near = [
        name
        for name, fact in facts.items()
        if size and 1 / NEAR_SIZE < number_at(fact, "b") / size < NEAR_SIZE
    ]
    return [
        StepTimes(
            costs_of({0: STEPS_MS[name]}),
            "table",
            f"of another target, {fact['kind']}: {source_of(fact)}",
        )
        for name, fact in facts.items()
        if name in near or not near
    ]


def given(step_ms: float) -> StepTimes:
    """Return step times of which the user gave one row's; more rows cost in proportion what they do on the machine
    whose step is nearest."""
    like = min(STEPS_MS, key=lambda name: abs(STEPS_MS[name][1] - step_ms))
    scale = step_ms / STEPS_MS[like][1]
    costs = costs_of({0: {rows: ms * scale for rows, ms in STEPS_MS[like].items()}})
    return StepTimes(costs, "given", f"--step-ms; more rows estimated, as on {like}")


def draft_time(chip: str | None, draft_b: float) -> Json:
    """Return the milliseconds of a draft, and how they are known."""
    if chip is None:
        return {
            "ms": DRAFT_MS,
            "kind": "estimated",
            "source": "a model of about 1B on a Mac; --chip knows others",
        }
    fact = object_at(known(), f"chips.{chip}")
    if draft_b <= SAME_SIZE * number_at(fact, "b"):
        return {"ms": fact["ms"], "kind": fact["kind"], "source": source_of(fact)}
    ms = round(number_at(fact, "ms") * draft_b / number_at(fact, "b"), 1)
    return {
        "ms": ms,
        "kind": "estimated",
        "source": f"at most, by weights: {fact['ms']} ms are of {source_of(fact)}",
    }


def source_of(fact: Json) -> str:
    return ", ".join(str(fact[key]) for key in ("conditions", "source", "date") if key in fact)


def alphas(pair: Json) -> tuple[float, float]:
    """Return the range of acceptance per draft that is reckoned with."""
    if "acceptance" not in pair:
        return UNKNOWN_ALPHA
    rate, draft_n = number_at(pair, "acceptance"), int(number_at(pair, "draft_n", 0))
    alpha = _per_draft(rate, draft_n) if draft_n else rate - SPREAD  # of drafts that it was sure of
    return round(alpha - SPREAD, 2), round(min(alpha + SPREAD, HIGHEST_ALPHA), 2)


def _per_draft(rate: float, draft_n: int) -> float:
    """Return the chance that a draft after accepted ones is accepted, where `rate` of chains of `draft_n` are."""
    low, high = 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        enough = sum(middle**place for place in range(1, draft_n + 1)) > rate * draft_n
        low, high = (low, middle) if enough else (middle, high)
    return low


def simulated(site: Deployment, texts: Workload, users: int, alpha: float) -> Forecast:
    """Simulate so many users whose drafts are accepted with probability `alpha`, with the same luck each time."""
    chance = Random(1)  # noqa: S311 - luck, not a secret
    return Simulation(site, texts, users, lambda _: chance.random() < alpha).run()


def speedup(costs: StepCosts, draft_ms: float, round_trip_ms: float, alpha: float) -> float:
    """Simulate one user's texts with adaptive drafts and without."""
    site = Deployment(
        costs=costs, draft=draft_ms / 1e3, round_trip=round_trip_ms / 1e3, pause=PAUSE_S
    )
    drafting, alone = (
        simulated(site, Workload(PROMPT, TOKENS, draft_n), 1, alpha).total for draft_n in (None, 0)
    )
    return round(drafting / alone, 2)


def report(
    target: str,
    metadata: Mapping[str, str],
    step: StepTimes | None,
    chip: str | None,
    round_trip_ms: float,
) -> Json:
    """Return what --json prints. metadata: of the target's file; empty where only its name is known. step: None for
    those of known machines."""
    family, by = family_of(target, metadata)
    size = size_of(metadata.get("general.size_label", "")) or size_of(target)
    steps = tables(size) if step is None else [step]
    shown = list[Json]()
    for pair in pairs_for(family, size) if family else []:
        draft, alpha, rate = (
            draft_time(chip, number_at(pair, "draft_b")),
            alphas(pair),
            pair.get("acceptance"),
        )
        pays = [
            sorted(
                speedup(times.costs, number_at(draft, "ms"), round_trip_ms, one) for one in alpha
            )
            for times in steps
        ]
        acceptance = {
            "rate": rate,
            "kind": "unknown" if rate is None else "published",
            "draft_n": pair.get("draft_n"),
        }
        acceptance["source"] = None if rate is None else source_of(pair)
        shown.append(
            {"drafter": pair["drafter"], "measured_with": pair["target"], "acceptance": acceptance}
        )
        shown[-1] |= {
            "assumed": alpha,
            "draft": draft,
            "speedup": [{"low": low, "high": high} for low, high in pays],
        }
    result: Json = {
        "schema_version": 1,
        "target": target,
        "family": family and family["name"],
        "known_by": by,
    }
    result |= {
        "tokenizer": metadata.get("tokenizer.ggml.pre") or (family and family["tokenizer"]),
        "chip": chip,
    }
    result |= {
        "steps": [{"ms": round(one.ms, 2), "kind": one.kind, "source": one.source} for one in steps]
    }
    result |= {"round_trip_ms": round_trip_ms, "pairs": shown}
    experts = re.search(
        r"-a\d+b|moe", f"{target} {metadata.get('general.architecture', '')}".lower()
    )
    return result | {"advice": list(_advice(family, shown, experts=experts is not None))}


def _advice(family: Json | None, pairs: list[Json], *, experts: bool) -> Iterator[str]:
    if family is None:
        yield "No pair is known: try a drafter of the same family and generation, a tenth of the size or less."
    elif "instead" in family:
        yield f"Instead of a draft model: {_fact(object_at(family, 'instead'))}"
    if experts:
        yield f"Expect less than the forecast: {_fact(object_at(known(), 'experts'))}"
    ranges = [one for pair in pairs for one in objects_at(pair, "speedup")]
    if ranges and max(number_at(one, "high") for one in ranges) < PAYS:
        yield "Better without a drafter: no pair pays at these times."
    elif ranges and min(number_at(one, "low") for one in ranges) < PAYS:
        yield "Where the low end is about 1, drafts may not pay; specmesh stops drafting then."
    yield f"For edits, agents and other repeated text, also: {_fact(object_at(known(), 'suffix'))}"
    yield "Forecasts are simulated with chances that do not change in a text; `specmesh bench run --suite` measures."


def _fact(fact: Json) -> str:
    where = f"published, {fact['source']}, {fact['date']}"
    return f"{fact['what']} ({fact['how']}): {fact['result']} ({where})"


def rows(result: Json) -> list[Json]:
    """Return a report's pairs as rows of one table."""
    return [
        {
            "drafter": pair["drafter"],
            "acceptance": UNKNOWN
            if (rate := at(pair, "acceptance.rate")) is None
            else f"{rate} published",
            "with": pair["measured_with"],
            "assumed": "-".join(map(str, list_at(pair, "assumed"))),
            "draft ms": f"{at(pair, 'draft.ms')} {at(pair, 'draft.kind')}",
            "step ms": f"{step['ms']} {step['kind']}",
            "speed-up": f"{one['low']:.2f}-{one['high']:.2f} simulated",
        }
        for pair in objects_at(result, "pairs")
        for one, step in zip(objects_at(pair, "speedup"), objects_at(result, "steps"), strict=True)
    ]


def sources(result: Json) -> list[str]:
    """Return a line for each thing that a report's numbers are from."""
    pairs, steps = objects_at(result, "pairs"), objects_at(result, "steps")
    drafts = (object_at(one, "draft") for one in pairs)
    lines = [f"step {step['ms']} ms: {step['kind']}, {step['source']}" for step in steps]
    lines += [f"draft {one['ms']} ms: {one['kind']}, {one['source']}" for one in drafts]
    shown = ((one["drafter"], one["measured_with"], at(one, "acceptance.source")) for one in pairs)
    lines += [f"{drafter} for {of}: {source}" for drafter, of, source in shown if source]
    return list(dict.fromkeys(lines))


def summary() -> list[tuple[str, str, str]]:
    """Return a row per family for the README: target, drafter, and what came of it with a link."""
    found = list[tuple[str, str, str]]()
    for family in objects_at(known(), "families"):
        best = object_at(family, "instead") or objects_at(family, "pairs")[0]
        what = best.get("what") or best["drafter"]
        share = (
            f"{best['acceptance']} accepted"
            if "acceptance" in best
            else best.get("result", "unknown")
        )
        found.append(
            (
                str(family["name"]),
                str(what),
                f"[{share}]({best['source']})" if "source" in best else str(share),
            )
        )
    return found
