"""`specmesh doctor`."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

import click

from specmesh.cli.options import POSITIVE_SHARE, json_option, number, print_json, print_result


@click.command()
@click.option("--model", metavar="PATH", help="Draft model to compare: a GGUF file or Hugging Face directory.")
@click.option("--against", metavar="PATH", help="Target model to compare it with, likewise.")
@number(
    "--min-vocab-overlap",
    POSITIVE_SHARE,
    0.9,
    "SHARE",
    "Least share of the draft model's tokens that the target's vocabulary must have.",
)
@json_option
@click.pass_context
def doctor(ctx: click.Context, model: str | None, against: str | None, min_vocab_overlap: float, json: bool) -> None:
    """Check this machine, its settings, services, daemons and their links; exit code 1 where a check fails.

    With --model and --against: compare two models' vocabularies, as a drafter does; exit code 1 where they do not fit.
    """
    from specmesh import logs
    from specmesh.doctor import check
    from specmesh.doctor.examine import examine
    from specmesh.doctor.vocabularies import diagnose
    from specmesh.paths import bundled

    logs.configure("error", "auto")
    if model is None and against is None:
        checks = examine(ctx.find_root())
        if json:
            print_json(check.as_json(checks))
        else:
            click.echo("\n".join(check.lines(checks, colour=coloured(sys.stdout, os.environ))))
        ctx.exit(1 if check.failed(checks) else 0)
    if model is None or against is None:
        raise click.UsageError("--model and --against go together")
    draft, target = (
        Path(bundled(name) if path == "bundled" else path)
        for path, name in ((model, "drafter.gguf"), (against, "target.gguf"))
    )
    found = diagnose(draft, target, min_vocab_overlap)
    print_result(found, as_json=json)
    ctx.exit(0 if found.usable else 1)


def coloured(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether colour goes there: to a terminal whose owner does not mind (no-color.org)."""
    return stream.isatty() and not environment.get("NO_COLOR")
