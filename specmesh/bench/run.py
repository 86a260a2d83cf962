"""`specmesh bench run`: the same prompts on a live pair, alone and with drafts in several ways, and an assessment."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, NamedTuple

from specmesh.bench import collect
from specmesh.client import Client, Fields, Json

WARM_UP_TOKENS = 32
_COUNTS = ("rounds", "drafted", "accepted")
_TIMES = ("verify_ms", "wait_ms", "draft_ms", "network_ms")

Sample = dict[str, Any]
"""One text: latency_s, from the request to its last token on the client's clock; decode_s, without the prompt; ids; and
numbers of the daemon's report, 0 where it told none."""

Outcome = dict[str, Any]
"""A variant's texts together, see `aggregate`."""


class Variant(NamedTuple):
    """A way to generate: its name in tables, and the draft_n asked for."""

    name: str
    draft_n: int | str


ALONE = Variant("alone", 0)
VARIANTS = (ALONE, *(Variant(f"draft_n {n}", n) for n in (2, 4, 8)), Variant("adaptive", "auto"))


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
                ids, latency_s, last, _ = collect(client, plan.body(number, variant))
                named = {"variant": variant.name, "prompt": number, "iteration": iteration}
                samples.append(named | _sample(ids, latency_s, Fields(last["report"])))
                advance()
    return samples


def _sample(ids: list[int], latency_s: float, report: Fields) -> Sample:
    rate = report.number("tokens_per_second") or 0.0
    return {
        "latency_s": latency_s,
        "decode_s": len(ids) / rate if rate > 0 else 0.0,
        "wire_bytes": sum(report.number(f"bytes_{way}") or 0.0 for way in ("sent", "received")),
        "drafter": report.text("drafter") or None,
        **{name: report.number(name) or 0.0 for name in (*_COUNTS, *_TIMES)},
        "tokens": len(ids),
        "ids": ids,
    }


def aggregate(samples: list[Sample]) -> list[Outcome]:
    """Sum up each variant, in the order of VARIANTS; those without samples are left out."""
    alone = [one for one in samples if one["variant"] == ALONE.name]
    truth = {one["prompt"]: one["ids"] for one in reversed(alone)}  # of the first iteration
    texts = {variant: [one for one in samples if one["variant"] == variant.name] for variant in VARIANTS}
    return [_outcome(variant, own, _rates(alone), truth) for variant, own in texts.items() if own]


def _outcome(variant: Variant, own: list[Sample], alone: dict[int, float], truth: dict[int, list[int]]) -> Outcome:
    """Sum up the texts of one variant. Milliseconds are means per text.

    alone: the verifier's tokens per second alone, by iteration. truth: its tokens, by prompt.
    """
    rates = _rates(own)
    paired = [rate / alone[n] for n, rate in rates.items() if alone.get(n)]
    tokens, rounds, drafted, accepted = (int(sum(one[name] for one in own)) for name in ("tokens", *_COUNTS))
    compared = [one for one in own if one["prompt"] in truth]
    latency, decode = (fmean(one[name] for one in own) * 1e3 for name in ("latency_s", "decode_s"))
    times = {name: fmean(one[name] for one in own) for name in _TIMES}
    other = max(latency - times["verify_ms"] - times["wait_ms"], 0.0)  # mostly processing the prompt
    return {
        "variant": variant.name,
        "iterations": len(rates),
        "texts": len(own),
        "tokens": tokens,
        "rounds": rounds,
        "tokens_per_second": _spread(list(rates.values())),
        "speedup": _spread(paired) if paired else None,
        "acceptance_rate": round(accepted / drafted, 4) if drafted else None,
        "mean_draft_n": round(drafted / rounds, 4) if rounds else 0.0,
        "mean_length": round(1 + accepted / rounds, 4) if rounds else 0.0,
        "latency_ms": round(latency, 3),
        "decode_ms": round(decode, 3),
        **{name: round(value, 3) for name, value in times.items()},
        "other_ms": round(other, 3),
        "bytes_per_token": round(sum(one["wire_bytes"] for one in own) / tokens, 2) if tokens else 0.0,
        "identical": sum(one["ids"] == truth[one["prompt"]] for one in compared),
        "compared": len(compared),
        "without_drafter": 0 if variant == ALONE else sum(one["drafter"] is None for one in own),
    }


def _rates(samples: list[Sample]) -> dict[int, float]:
    rates = {}
    for iteration in sorted({one["iteration"] for one in samples}):
        own = [one for one in samples if one["iteration"] == iteration]
        seconds = sum(one["decode_s"] for one in own)
        rates[iteration] = sum(one["tokens"] for one in own) / seconds if seconds > 0 else 0.0
    return rates


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": round(median(values), 4), "low": round(min(values), 4), "high": round(max(values), 4)}


def report(plan: RunPlan, samples: list[Sample], snapshot: Json) -> dict[str, Any]:
    """Return what --json prints. snapshot: the daemon's /stats afterwards."""
    outcomes = aggregate(samples)
    return {
        "schema_version": 1,
        "model": snapshot.get("model"),
        "drafters": sorted({one["drafter"] for one in samples if one["drafter"] is not None}),
        "prompts": len(plan.prompts),
        "iterations": plan.iterations,
        "max_tokens": plan.max_tokens,
        "variants": outcomes,
        "assessment": assess(outcomes),
        "samples": [{name: value for name, value in one.items() if name != "ids"} for one in samples],
    }


_HEADINGS = (
    f"{'':<11}{'tokens/s':>9}{'spread':>16}{'speed-up':>10}{'accept':>8}{'drafts':>8}{'latency':>9}"
    f"{'verify':>9}{'wait':>8}{'draft':>8}{'network':>9}{'other':>8}{'B/token':>9}{'same':>8}"
)
_ROW = (
    "{variant:<11}{tokens_per_second[median]:>9.1f}{spread:>16}{times:>10}{accept:>8}{mean_draft_n:>8.2f}"
    "{latency_ms:>9.0f}{verify_ms:>9.0f}{wait_ms:>8.0f}{draft_ms:>8.0f}{network_ms:>9.0f}{other_ms:>8.0f}"
    "{bytes_per_token:>9.1f}{same:>8}"
)


def lines(told: dict[str, Any]) -> list[str]:
    """Return a `report` as text."""
    model = Fields(told["model"] or {})
    name = f"{model.text('name')} on {model.text('backend')}" if model.raw else "unknown model"
    return [
        f"{name}, drafter {', '.join(told['drafters']) or 'none'}",
        f"prompts {told['prompts']}, iterations {told['iterations']}, at most {told['max_tokens']} tokens",
        "",
        _HEADINGS,
        *map(_row, told["variants"]),
        "latency and its parts: ms per text; drafts: verified per step; same: texts equal to the first alone",
        "",
        *told["assessment"],
    ]


def _row(one: Outcome) -> str:
    return _ROW.format(
        **one,
        spread="{low:.1f}-{high:.1f}".format(**one["tokens_per_second"]),
        times="-" if one["speedup"] is None else f"{_speedup(one):.2f}x",
        accept="-" if one["acceptance_rate"] is None else f"{one['acceptance_rate']:.0%}",
        same=f"{one['identical']}/{one['compared']}",
    )


def assess(outcomes: list[Outcome]) -> list[str]:
    """Return sentences, the most important first."""
    alone, *drafting = outcomes
    if not alone["tokens"]:
        return ["No tokens came from the verifier alone: try other prompts."]
    if not drafting:
        return ["Only the verifier alone was run. Start a drafter: specmesh drafter --connect ADDRESS"]
    lost, texts, same, compared = (
        sum(one[name] for one in drafting) for name in ("without_drafter", "texts", "identical", "compared")
    )
    said = [f"{lost} of {texts} texts ended without a drafter: see its log, and run again."] if lost else []
    best = max(drafting, key=_speedup)
    said.append(f"The fastest with drafts is {best['variant']}: {_speedup(best):.2f}x the verifier alone.")
    return [*said, f"{same} of {compared} texts with drafts are those of the verifier alone (see docs/usage.md)."]


def _speedup(one: Outcome) -> float:
    return one["speedup"]["median"] if one["speedup"] else 0.0
