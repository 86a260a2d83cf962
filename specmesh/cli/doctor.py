"""`specmesh doctor`."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from specmesh.cli.options import POSITIVE_SHARE, json_option, number, print_result
from specmesh.cli.status import find
from specmesh.paths import bundled

if TYPE_CHECKING:
    from specmesh.doctor.check import Checks


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
    """Check this machine, its settings, services, daemons and their links; exit code 1 if a check fails.

    With --model and --against: compare two models' vocabularies, as a drafter does; exit code 1 if they do not fit.
    """
    from specmesh import logs
    from specmesh.doctor.vocabularies import diagnose

    logs.configure("error", "auto")
    if model is None and against is None:
        checks = examine(ctx.find_root(), colour=coloured(sys.stdout, os.environ))
        print_result(checks, as_json=json)
        ctx.exit(1 if checks.failed else 0)
    if model is None or against is None:
        raise click.UsageError("--model and --against go together")
    draft, target = (
        Path(bundled(name) if path == "bundled" else path)
        for path, name in ((model, "drafter.gguf"), (against, "target.gguf"))
    )
    found = diagnose(draft, target, min_vocab_overlap)
    print_result(found, as_json=json)
    ctx.exit(0 if found.usable else 1)


def examine(root: click.Context, *, colour: bool) -> "Checks":
    """Look at everything; takes a second or two. `root`: the command line's own context, which knows the settings."""
    from specmesh.doctor import machine, mesh
    from specmesh.doctor.check import Checks

    (settings, wrong), running = mesh.in_force(root), find()
    return Checks(
        (
            *machine.software(),
            *machine.models(settings),
            *mesh.files(root),
            *wrong,
            *mesh.ports(settings),
            *machine.sockets(),
            *mesh.daemons(running),
            *machine.services(),
            *mesh.keys(),
            *mesh.network(settings, running),
        ),
        colour,
    )


def coloured(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether colour goes there: to a terminal whose owner does not mind (no-color.org)."""
    return stream.isatty() and not environment.get("NO_COLOR")
