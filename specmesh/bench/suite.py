"""`specmesh bench run --suite`: prompts by what they ask for, since drafts are accepted by that more than by models."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex

from specmesh.bench.run import ALONE, Runs, measure, outcomes
from specmesh.client import Client, Json
from specmesh.errors import ConfigError

SOURCES: dict[str, int | str] = {ALONE: 0, "drafter": "auto"}
"""The draft_n that is asked for, by where drafts are from."""


def prompts(count: int | None) -> dict[str, list[str]]:
    """Return the first `count` prompts of each category, all without it, each after a number that nobody has seen, so
    that no cache and no earlier text helps."""
    suite: dict[str, list[str]] = tomllib.loads((Path(__file__).parent / "suite.toml").read_text(encoding="utf-8"))
    return {name: [f"No. {token_hex(8)}\n\n{text}" for text in texts[:count]] for name, texts in suite.items()}


def run(
    client: Client, suite: dict[str, list[str]], body: Json, iterations: int, advance: Callable[[], None]
) -> list[Json]:
    """Generate each prompt's text from each source, as `measure` does; return what came of each category, and of all
    together at the end."""
    bodies = [body | {"prompt": prompt} for texts in suite.values() for prompt in texts]
    runs, first, found = measure(client, bodies, iterations, advance, SOURCES), 0, list[Json]()
    for name, texts in suite.items():
        found.append({"category": name, "sources": outcomes(_part(runs, first, first + len(texts)))})
        first += len(texts)
    return [*found, {"category": "all", "sources": outcomes(runs)}]


def _part(runs: Runs, first: int, end: int) -> Runs:
    return {name: [texts[first:end] for texts in iterations] for name, iterations in runs.items()}


def rows(found: list[Json]) -> list[dict[str, object]]:
    """Return a row for each category and source of drafts."""
    return [
        {
            "category": one["category"],
            "source": drafted["variant"],
            "alone tok/s": f"{alone['tokens_per_second']['median']:.1f}",
            "tok/s": f"{drafted['tokens_per_second']['median']:.1f}",
            "speed-up": f"{drafted['speedup']:.2f}",
            "acceptance": None if (rate := drafted["acceptance_rate"]) is None else f"{rate:.2f}",
            "same text": f"{drafted['identical']}/{drafted['texts']}",
        }
        for one in found
        for alone, *others in [one["sources"]]
        for drafted in others
    ]


def draw(found: list[Json], title: str, file: Path) -> None:
    """Write the speed-ups as a PNG. Raise ConfigError without matplotlib, OSError where the file cannot be written."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("--png needs matplotlib: pip install matplotlib") from None
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes, width = figure.subplots(), 0.8 / (len(SOURCES) - 1)
    for place, name in enumerate(list(SOURCES)[1:]):
        bars = [next(source["speedup"] for source in one["sources"] if source["variant"] == name) for one in found]
        drawn = axes.bar([at + place * width for at in range(len(found))], bars, width, label=name)
        axes.bar_label(drawn, fmt="%.2f")
    axes.axhline(1, color="black", linewidth=1)
    axes.set_xticks(range(len(found)), [one["category"].replace("_", " ") for one in found], rotation=20)
    axes.set_ylabel("speed-up against the verifier alone")
    axes.set_title(title)
    axes.legend()
    figure.savefig(file, format="png", dpi=150)
