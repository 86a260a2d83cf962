"""`specmesh bench run`: the same prompts without drafts, with those of each source, and of all.

`--suite` uses prompts by category: acceptance depends more on the task than on the models.
"""

import itertools
import tomllib
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from secrets import token_hex
from statistics import median

from specmesh.bench.texts import (
    BUILT_IN,
    SIZES,
    WARM_UP_TOKENS,
    count_tokens,
    generate,
    has_drafter,
    ratio,
    requests_of,
    summed,
    totals,
)
from specmesh.client import Client, GeneratedText
from specmesh.core.draft_sources import REMOTE
from specmesh.core.fields import Json, at, number_at, object_at, objects_at
from specmesh.errors import ConfigError

ALONE = "alone"
ALL_SOURCES = "all sources"

_IN_PROCESS = ("mtp", "local")

Ways = dict[str, Json]
"""The fields of each variant's requests. The first one is the verifier alone."""

MEDIAN = "tokens_per_second.median"  # in an outcome

Runs = dict[str, list[list[GeneratedText]]]
"""By variant and iteration, the text of each prompt."""


def sources_at(client: Client, snapshot: Json) -> list[str]:
    """Return the names of the sources that draft texts with neither a grammar nor a prediction.

    Drafters, if any, come first, then repeated text. A head or a draft model in the verifier's
    process is known by the drafts of a short text, since a drafter does not know of them.

    snapshot: the daemon's /stats. Raises the errors of the daemon.
    """
    found = ["suffix"]
    if has_drafter(snapshot):
        found.insert(0, REMOTE)
    body: Json = {"prompt": BUILT_IN[0], "max_tokens": WARM_UP_TOKENS, "temperature": 0}
    for name in _IN_PROCESS:
        # Drafts that a client counts come whether or not they pay.
        chosen = {"ignore_eos": True, "draft_n": 4, "draft_sources": [name]}
        text = generate(client, body | chosen)
        if name in object_at(text.report, "by_source"):
            found.append(name)
    return found


def ways_of(sources: Sequence[str], draft_ns: Iterable[int | str] = ()) -> Ways:
    """Return the variants: alone, each source, all of them, and all with each constant draft_n.

    A single source is all there is.
    """
    ways: Ways = {ALONE: {"draft_n": 0}}
    if len(sources) > 1:
        for name in sources:
            ways[name] = {"draft_sources": [name]}
    ways[ALL_SOURCES] = {}
    for draft_n in draft_ns:
        ways[f"draft_n {draft_n}"] = {"draft_n": draft_n}
    return ways


def measure(
    client: Client,
    bodies: list[Json],
    iterations: int,
    advance: Callable[[], None],
    ways: Ways,
) -> Runs:
    """Generate each body's text with each variant in each iteration, one text at a time.

    `advance` is called after each. An unmeasured text of the first and of the last variant comes
    first. Raises the errors of the daemon.
    """
    # With its cache the daemon would find a prompt in memory the second time.
    bodies = [body | {"cache_prompt": False} for body in bodies]
    variants = [*ways]
    for variant in (variants[0], variants[-1]):
        generate(client, bodies[0] | ways[variant] | {"max_tokens": WARM_UP_TOKENS})
    runs = Runs()
    for variant in variants:
        runs[variant] = []
    for iteration in range(iterations):
        for texts in runs.values():
            texts.append([])
        for number, body in enumerate(bodies):
            shift = (iteration + number) % len(variants)  # no variant always follows the same one
            for variant in variants[shift:] + variants[:shift]:
                text = generate(client, body | ways[variant])
                runs[variant][-1].append(text)
                advance()
    return runs


def outcomes(runs: Runs) -> list[Json]:
    """Sum up each variant.

    Rates are without prompt processing, by iteration. Speed-ups compare with the first variant,
    which has no drafts.
    """
    expected = runs[ALONE][0]
    texts = itertools.chain.from_iterable(itertools.chain.from_iterable(runs.values()))
    sources = _sources(texts)
    found = list[Json]()
    for name, iterations in runs.items():
        outcome = {"variant": name} | _outcome(iterations, expected)
        outcome["by_source"] = _by_source(iterations, sources)
        found.append(outcome)
    plain = number_at(found[0], MEDIAN)
    for outcome in found:
        outcome["speedup"] = ratio(number_at(outcome, MEDIAN), plain, 4) or 0.0
    return found


def _outcome(iterations: list[list[GeneratedText]], expected: list[GeneratedText]) -> Json:
    texts = list(itertools.chain.from_iterable(iterations))
    rates = list(map(_rate, iterations))
    outcome = totals(texts)
    drafts = summed(texts, "drafted")
    tokens = number_at(outcome, "tokens")
    outcome["tokens_per_second"] = {
        "median": round(median(rates), 3),
        "low": round(min(rates), 3),
        "high": max(rates),
    }
    outcome["mean_draft_n"] = ratio(drafts, summed(texts, "rounds"), 4) or 0.0
    outcome["bytes_per_token"] = ratio(summed(texts, *SIZES), tokens, 2) or 0.0
    identical = 0
    for text, truth in zip(texts, expected * len(iterations), strict=True):
        if text.ids == truth.ids:
            identical += 1
    outcome["identical"] = identical
    return outcome


def _sources(texts: Iterable[GeneratedText]) -> list[str]:
    """Return the names of the sources whose drafts were verified in any text."""
    found = set[str]()
    for text in texts:
        found.update(object_at(text.report, "by_source"))
    return sorted(found)


def _by_source(iterations: list[list[GeneratedText]], sources: list[str]) -> Json:
    """Return the drafts of each source that were verified, and the part that was accepted."""
    found: Json = {}
    for source in sources:
        drafted = 0.0
        accepted = 0.0
        for text in itertools.chain.from_iterable(iterations):
            drafted += number_at(text.report, f"by_source.{source}.drafted", 0)
            accepted += number_at(text.report, f"by_source.{source}.accepted", 0)
        found[source] = {"drafted": drafted, "acceptance_rate": ratio(accepted, drafted, 4)}
    return found


def _rate(texts: list[GeneratedText]) -> float:
    """Return the tokens per second of decoding, of texts that came one after the other."""
    seconds = 0.0
    for text in texts:
        rate = number_at(text.report, "tokens_per_second")
        if rate:
            seconds += len(text.ids) / rate
    return ratio(count_tokens(texts), seconds, 3) or 0.0


def prompts(count: int | None) -> dict[str, list[str]]:
    """Return the first `count` prompts of each category, or all.

    Each follows a new random number, so that no cache and no earlier text helps.
    """
    text = (Path(__file__).parent / "suite.toml").read_text(encoding="utf-8")
    suite: dict[str, list[str]] = tomllib.loads(text)
    for category, texts in suite.items():
        suite[category] = list(map(_renewed, texts[:count]))
    return suite


def _renewed(prompt: str) -> str:
    return f"No. {token_hex(8)}\n\n{prompt}"


def run_suite(
    client: Client,
    suite: dict[str, list[str]],
    body: Json,
    iterations: int,
    advance: Callable[[], None],
    ways: Ways,
) -> list[Json]:
    """Generate each prompt's text with each variant, as `measure`.

    Return the outcomes of each category, and those of all together at the end.
    """
    bodies = requests_of(itertools.chain.from_iterable(suite.values()), body)
    runs = measure(client, bodies, iterations, advance, ways)
    found = list[Json]()
    first = 0
    for category, texts in suite.items():
        end = first + len(texts)
        part = Runs()
        for source, by_iteration in runs.items():
            part[source] = [generated[first:end] for generated in by_iteration]
        found.append({"category": category, "sources": outcomes(part)})
        first = end
    found.append({"category": "all", "sources": outcomes(runs)})
    return found


def rows(found: list[Json]) -> list[dict[str, object]]:
    """Return a row for each variant with drafts in each category."""
    table = list[dict[str, object]]()
    for category in found:
        plain, *drafting = objects_at(category, "sources")
        for drafted in drafting:
            row = {"category": category["category"], "source": drafted["variant"]}
            table.append(row | _compared(plain, drafted))
    return table


def _compared(plain: Json, drafted: Json) -> dict[str, object]:
    """Return the cells of a variant beside the verifier alone."""
    rate = drafted["acceptance_rate"]
    return {
        "alone tok/s": f"{at(plain, MEDIAN):.1f}",
        "tok/s": f"{at(drafted, MEDIAN):.1f}",
        "speed-up": f"{drafted['speedup']:.2f}",
        "acceptance": None if rate is None else f"{rate:.2f}",
        "same text": f"{drafted['identical']}/{drafted['texts']}",
    }


def draw(found: list[Json], title: str, file: Path) -> None:
    """Write the speed-ups as a PNG, with a bar for each variant in each category.

    Raises ConfigError without matplotlib, OSError if the file cannot be written.
    """
    try:
        figure = import_module("matplotlib.figure").Figure(figsize=(8, 4.5), layout="constrained")
    except ImportError:
        raise ConfigError("--png needs matplotlib", "pip install matplotlib") from None
    labels = [str(category["category"]).replace("_", " ") for category in found]
    speedups = dict[str, list[object]]()
    for category in found:
        for drafted in objects_at(category, "sources")[1:]:
            speedups.setdefault(str(drafted["variant"]), []).append(drafted["speedup"])
    axes = figure.subplots()
    width = 0.8 / max(len(speedups), 1)
    for place, (name, heights) in enumerate(speedups.items()):
        shift = (place - (len(speedups) - 1) / 2) * width
        positions = [category + shift for category in range(len(found))]
        bars = axes.bar(positions, heights, width, label=name)
        axes.bar_label(bars, fmt="%.2f")
    axes.axhline(1, color="black", linewidth=1)
    axes.set_xticks(range(len(found)), labels, rotation=20)
    axes.set_ylabel("speed-up against the verifier alone")
    axes.set_title(title)
    axes.legend()
    figure.savefig(file, format="png", dpi=150)
