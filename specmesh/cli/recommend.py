"""`specmesh recommend`: a drafter for a target."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from specmesh.bench import bar
from specmesh.cli.options import json_option, option, print_result, table
from specmesh.paths import bundled, models_dir

if TYPE_CHECKING:
    from specmesh.bench.recommend import StepTimes


@click.command()
@option(
    "--target",
    str,
    "FILE|NAME",
    "GGUF file, whose steps are measured here, or the name of a model or repository (default: all that is known).",
)
@option("--step-ms", click.FloatRange(0, min_open=True), "MS", "Target's time per step (default: see below).")
@option("--chip", str, "NAME", "Chip of the drafter's machine (default: a guess).")
@option("--rtt-ms", click.FloatRange(0), "MS", "Network round trip.", 0.5)
@json_option
def recommend(target: str | None, step_ms: float | None, chip: str | None, rtt_ms: float, json: bool) -> None:
    """Which drafter suits a target, and what would it bring?

    Known pairs with the acceptance that was published for them, drafting speed by chip, and the speed-up that a
    simulation expects of them, as a range. Each number says whether it is measured, published, given or estimated, and
    its source. Steps take what --step-ms says; else a file is loaded and measured; else they are those of known
    machines.
    """
    from specmesh.bench.recommend import given, known, report, rows, sources, summary

    chips = known()["chips"]
    if chip is not None and chip not in chips:
        raise click.UsageError(f"no speed of {chip!r} is known: give one of {', '.join(chips)}, or plan --draft-ms")
    if target is None:
        found = summary()
        shown = table([dict(zip(("target", "drafter", "result"), row, strict=True)) for row in found])
        print_result({"schema_version": 1} | known(), shown, as_json=json)
        return
    path = Path(bundled("target.gguf") if target == "bundled" else target)
    metadata = dict[str, str]()
    step = None if step_ms is None else given(step_ms)
    if path.suffix == ".gguf" and not path.exists():
        from specmesh.models import resolve

        path = Path(resolve(target, models_dir()))
    if path.is_file():
        from specmesh import logs
        from specmesh.engines.llama.metadata import metadata as read

        logs.configure("error")
        metadata = read(path)
        step = step or _measured(path)
    with bar(3) as advance:
        result = report(path.stem if metadata else target, metadata, step, chip, rtt_ms, advance)
    lines = [f"{target}: {result['family'] or 'unknown family'}, by {result['known_by']}", ""]
    lines += [*(table(rows(result)) if result["pairs"] else []), "", *sources(result), "", *result["advice"]]
    print_result(result, lines, as_json=json)


def _measured(path: Path) -> "StepTimes":
    """Load a target and measure its steps, as a verifier does at its start."""
    from specmesh.bench.recommend import StepTimes
    from specmesh.config import ModelSettings
    from specmesh.core.draft_length.estimates import StepCosts
    from specmesh.engines.load import calibrate, load_verifier

    costs = StepCosts()
    engine = load_verifier(ModelSettings("llama", str(path), max_sessions=1, gpu_layers=-1), lambda _: None)
    try:
        calibrate(engine, costs)
    finally:
        engine.close()
    return StepTimes(costs, "measured", f"{path.name} here, on {engine.info.backend}")
