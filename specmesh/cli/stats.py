"""`specmesh stats`: what a daemon is doing, as lines, as JSON, or live."""

from pathlib import Path

import click
from click.core import ParameterSource

from specmesh import client as daemon
from specmesh.cli.options import json_option, number, print_json, socket_option


@click.command()
@json_option
@click.option("--watch", is_flag=True, help="Show it live, or a line at a time where stdout is no terminal.")
@number("--interval", click.FloatRange(0.1), 1.0, "SECONDS", "Time between two updates of --watch.")
@socket_option
@click.pass_context
def stats(ctx: click.Context, json: bool, watch: bool, interval: float, socket_path: Path | None) -> None:
    """Show what a daemon is doing."""
    if not watch and ctx.get_parameter_source("interval") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--interval needs --watch: give both")
    if watch and json:
        raise click.UsageError("--watch and --json do not go together: leave one out")
    if watch:
        from specmesh.cli.stats_view import watch as show

        show(daemon.Client(socket_path, timeout=max(3.0, 2 * interval)), interval)
        return
    snapshot = daemon.Client(socket_path).get("/stats")
    if json:
        print_json(snapshot)
    else:
        from specmesh.cli.stats_lines import lines

        click.echo("\n".join(lines(snapshot)))
