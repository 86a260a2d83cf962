"""`specmesh bench run`: the same prompts on a live pair, alone and with drafts in several ways. With `--suite` prompts
by what they ask for, since drafts are accepted by that more than by models."""

import tomllib
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from secrets import token_hex
from statistics import median

from specmesh.bench import SIZES, WARM_UP_TOKENS, generate, summed, totals
from specmesh.client import Client, GeneratedText
from specmesh.core.fields import Json, at, number_at, objects_at
from specmesh.errors import ConfigError

ALONE = "alone"
VARIANTS: dict[str, int | str] = {
    ALONE: 0,
    "draft_n 2": 2,
    "draft_n 4": 4,
    "draft_n 8": 8,
    "adaptive": "auto",
}
"""The draft_n that is asked for, by name."""
SOURCES: dict[str, int | str] = {
    ALONE: 0,
    "drafter": "auto",
}  # the same of a suite, by where drafts are from
MEDIAN = "tokens_per_second.median"  # in an outcome
Runs = dict[str, list[list[GeneratedText]]]  # by variant and iteration, the text of each prompt


def measure(
    client: Client,
    bodies: list[Json],
    iterations: int,
    advance: Callable[[], None],
    ways: Mapping[str, int | str],
) -> Runs:
    """Generate each body's text with each variant, by its draft_n of `ways`, in each iteration, one text at a time,
    calling `advance` after each; first an unmeasured text of the first and of the last variant. Raise what the daemon
    raises."""
    bodies = [
        body | {"cache_prompt": False} for body in bodies
    ]  # else the second finds its prompt in memory
    variants = [*ways]
    for variant in (variants[0], variants[-1]):
        generate(client, bodies[0] | {"draft_n": ways[variant], "max_tokens": WARM_UP_TOKENS})
    runs: Runs = {variant: [[] for _ in range(iterations)] for variant in variants}
    for iteration in range(iterations):
        for number, body in enumerate(bodies):
            shift = (iteration + number) % len(variants)  # so that none always follows the same one
            for variant in variants[shift:] + variants[:shift]:
                runs[variant][iteration].append(generate(client, body | {"draft_n": ways[variant]}))
                advance()
    return runs


def outcomes(runs: Runs) -> list[Json]:
    """Sum up each variant. Rates are without prompt processing, by iteration; speed-ups against the verifier alone."""
    found: list[Json] = [
        {"variant": name} | _outcome(iterations, runs[ALONE][0])
        for name, iterations in runs.items()
    ]
    alone = number_at(found[0], MEDIAN)
    return [
        one | {"speedup": round(number_at(one, MEDIAN) / alone, 4) if alone else 0.0}
        for one in found
    ]


def _outcome(iterations: list[list[GeneratedText]], alone: list[GeneratedText]) -> Json:
    texts = [text for texts in iterations for text in texts]
    rates = [_rate(own) for own in iterations]
    sums = totals(texts)
    tokens, rounds, size = number_at(sums, "tokens"), summed(texts, "rounds"), summed(texts, *SIZES)
    return sums | {
        "tokens_per_second": {
            "median": round(median(rates), 3),
            "low": round(min(rates), 3),
            "high": max(rates),
        },
        "mean_draft_n": round(summed(texts, "drafted") / rounds, 4) if rounds else 0.0,
        "bytes_per_token": round(size / tokens, 2) if tokens else 0.0,
        "identical": sum(
            text.ids == truth.ids
            for own in iterations
            for text, truth in zip(own, alone, strict=True)
        ),
    }


def _rate(texts: list[GeneratedText]) -> float:
    """Tokens per second of decoding, of texts that came one after the other."""
    rates = [(len(text.ids), number_at(text.report, "tokens_per_second")) for text in texts]
    seconds = sum(tokens / rate for tokens, rate in rates if rate)
    return round(sum(tokens for tokens, _ in rates) / seconds, 3) if seconds else 0.0


def prompts(count: int | None) -> dict[str, list[str]]:
    """Return the first `count` prompts of each category, all without it, each after a number that nobody has seen, so
    that no cache and no earlier text helps."""
    suite: dict[str, list[str]] = tomllib.loads(
        (Path(__file__).parent / "suite.toml").read_text(encoding="utf-8")
    )
    return {
        name: [f"No. {token_hex(8)}\n\n{text}" for text in texts[:count]]
        for name, texts in suite.items()
    }


def run_suite(
    client: Client,
    suite: dict[str, list[str]],
    body: Json,
    iterations: int,
    advance: Callable[[], None],
) -> list[Json]:
    """Generate each prompt's text from each source, as `measure` does; return what came of each category, and of all
    together at the end."""
    bodies = [body | {"prompt": prompt} for texts in suite.values() for prompt in texts]
    runs, first, found = measure(client, bodies, iterations, advance, SOURCES), 0, list[Json]()
    for name, texts in suite.items():
        end = first + len(texts)
        part = {
            source: [made[first:end] for made in iterations] for source, iterations in runs.items()
        }
        found.append({"category": name, "sources": outcomes(part)})
        first = end
    return [*found, {"category": "all", "sources": outcomes(runs)}]


def rows(found: list[Json]) -> list[dict[str, object]]:
    """Return a row for each category."""
    return [
        {
            "category": one["category"],
            "source": drafted["variant"],
            "alone tok/s": f"{at(alone, MEDIAN):.1f}",
            "tok/s": f"{at(drafted, MEDIAN):.1f}",
            "speed-up": f"{drafted['speedup']:.2f}",
            "acceptance": None if (rate := drafted["acceptance_rate"]) is None else f"{rate:.2f}",
            "same text": f"{drafted['identical']}/{drafted['texts']}",
        }
        for one in found
        for alone, drafted in [objects_at(one, "sources")]
    ]


def draw(found: list[Json], title: str, file: Path) -> None:
    """Write the speed-ups as a PNG. Raise ConfigError without matplotlib, OSError where the file cannot be written."""
    try:
        figure = import_module("matplotlib.figure").Figure(figsize=(8, 4.5), layout="constrained")
    except ImportError:
        raise ConfigError("--png needs matplotlib", "pip install matplotlib") from None
    axes, (_, drafted) = figure.subplots(), SOURCES
    bars = axes.bar(
        [*range(len(found))],
        [objects_at(one, "sources")[1]["speedup"] for one in found],
        label=drafted,
    )
    axes.bar_label(bars, fmt="%.2f")
    axes.axhline(1, color="black", linewidth=1)
    axes.set_xticks(
        range(len(found)), [str(one["category"]).replace("_", " ") for one in found], rotation=20
    )
    axes.set_ylabel("speed-up against the verifier alone")
    axes.set_title(title)
    axes.legend()
    figure.savefig(file, format="png", dpi=150)
