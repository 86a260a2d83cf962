"""`specmesh doctor`. A thin function, like those of cli.py."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn, TextIO

import click


@click.command()
@click.option("--model", metavar="PATH", help="A draft model to compare: a GGUF file or Hugging Face directory.")
@click.option("--against", metavar="PATH", help="The verifier's model to compare it with, likewise.")
@click.option(
    "--min-vocab-overlap",
    type=click.FloatRange(0.0, 1.0, min_open=True),
    default=0.9,
    show_default=True,
    metavar="SHARE",
    help="Share of tokens with a counterpart that the drafter will ask for.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
@click.pass_context
def doctor(ctx: click.Context, model: str | None, against: str | None, min_vocab_overlap: float, as_json: bool) -> None:
    """Check this machine, its settings, services, daemons and their links; exit code 1 where a check fails.

    With --model and --against: compare two models' vocabularies, as a drafter does; exit code 1 where they do not fit.
    """
    from specmesh import logs

    logs.configure("error", "auto")
    if model is None and against is None:
        _examine(ctx, as_json=as_json)
    if model is None or against is None:
        raise click.UsageError("--model and --against go together")
    _compare(ctx, model, against, min_vocab_overlap, as_json=as_json)


def _examine(ctx: click.Context, *, as_json: bool) -> NoReturn:
    from specmesh.doctor import check
    from specmesh.doctor.examine import examine

    checks = examine(ctx.find_root())
    if as_json:
        click.echo(json.dumps(check.as_json(checks), indent=2))
    else:
        click.echo("\n".join(check.lines(checks, colour=coloured(sys.stdout, os.environ))))
    ctx.exit(1 if check.failed(checks) else 0)


def coloured(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether colour goes there: to a terminal whose owner does not mind (no-color.org)."""
    return stream.isatty() and not environment.get("NO_COLOR")


def _compare(ctx: click.Context, model: str, against: str, least: float, *, as_json: bool) -> None:
    from specmesh.doctor.vocabularies import diagnose
    from specmesh.paths import bundled

    names = ((model, "drafter.gguf"), (against, "target.gguf"))
    paths = [bundled(name) if path == "bundled" else path for path, name in names]
    found = diagnose(Path(paths[0]), Path(paths[1]), least)
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=2))
    else:
        click.echo("\n".join(found.lines()))
    ctx.exit(0 if found.usable else 1)
