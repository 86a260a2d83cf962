"""`specmesh recommend`: a drafter for a target."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specmesh.cli.options import json_option, option, print_result, table
from specmesh.models import resolve
from specmesh.paths import bundled, models_dir

if TYPE_CHECKING:
    from specmesh.bench.recommend import StepTimes


@click.command()
@option("--target", str, "FILE|NAME", "GGUF file, or name of a model or repository (default: list what is known).")
@option("--step-ms", click.FloatRange(0, min_open=True), "MS", "Target's time per step (default: see above).")
@option("--chip", str, "NAME", "Chip of the drafter's machine (default: a guess).")
@option("--rtt-ms", click.FloatRange(0), "MS", "Network round trip.", 0.5)
@json_option
def recommend(target: str | None, step_ms: float | None, chip: str | None, rtt_ms: float, json: bool) -> None:
    """Which drafter suits a target, and what would it bring?

    Known pairs with the acceptance that was published for them, drafting speed by chip, and the speed-up that a
    simulation expects, as a range. Each number says whether it is measured, published, given or estimated, and its
    source. Steps take what --step-ms says; else a file is loaded and measured; else they are those of known machines.
    """
    from specmesh.bench.recommend import given, known, report, rows, sources, summary

    if chip is not None and chip not in known()["chips"]:
        names = ", ".join(known()["chips"])
        raise click.UsageError(f"no speed of {chip!r} is known: give one of {names}, or `specmesh plan` --draft-ms")
    if target is None:
        found = [dict(zip(("target", "drafter", "result"), row, strict=True)) for row in summary()]
        print_result({"schema_version": 1} | known(), table(found), as_json=json)
        return
    name, metadata, step = target, dict[str, str](), None if step_ms is None else given(step_ms)
    if target == "bundled" or target.endswith(".gguf"):
        from specmesh import logs
        from specmesh.engines.llama.model import metadata as read

        logs.configure("error")
        path = Path(bundled("target.gguf") if target == "bundled" else resolve(target, models_dir()))
        name, metadata, step = path.stem, read(path), step or _measured(path)
    result = report(name, metadata, step, chip, rtt_ms)
    lines = [f"{name}: {result['family'] or 'unknown family'}, by {result['known_by']}"]
    lines += [*(table(rows(result)) if result["pairs"] else []), *sources(result), *result["advice"]]
    print_result(result, lines, as_json=json)


def _measured(path: Path) -> "StepTimes":
    """Load a target and measure its steps, as a verifier does at its start."""
    from specmesh.bench.recommend import StepTimes
    from specmesh.config import ModelSettings
    from specmesh.core.draft_length.estimates import StepCosts
    from specmesh.engines.load import calibrate, load_verifier

    costs, settings = StepCosts(), ModelSettings("llama", str(path), max_sessions=1, gpu_layers=-1)
    with closing(load_verifier(settings, lambda _: None)) as engine:
        calibrate(engine, costs)
    return StepTimes(costs, "measured", f"{path.name} here, on {engine.info.backend}")
