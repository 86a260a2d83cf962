"""`specmesh bench`: what drafting brings and what it costs, measured. Thin functions, like those of cli.py."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

F = TypeVar("F", bound=Callable[..., object])


@click.group()
def bench() -> None:
    """Measure what drafting brings, and what it costs."""


def _socket_option(command: F) -> F:
    return click.option(
        "--socket",
        "socket_path",
        type=click.Path(path_type=Path),
        metavar="PATH",
        envvar="SPECMESH_SOCKET",
        help="The daemon's local socket (default: found as `specmesh generate` does).",
    )(command)


def _json_option(envvar: str) -> Callable[[F], F]:
    return click.option("--json", "as_json", envvar=envvar, is_flag=True, help="Print one JSON object instead.")


def _print_json(value: object) -> None:
    import json

    click.echo(json.dumps(value, indent=2))


@bench.command()
@_socket_option
@_json_option("SPECMESH_BENCH_STEPS_JSON")
def steps(socket_path: Path | None, as_json: bool) -> None:
    """Show what the running verifier's steps cost by their width; `!` marks a width dearer than a wider one."""
    from specmesh import bench_steps
    from specmesh.client import Client

    snapshot = Client(socket_path).get("/stats")
    table = bench_steps.step_table(bench_steps.steps_ms(snapshot))
    if as_json:
        _print_json(bench_steps.as_json(snapshot, table))
    else:
        click.echo("\n".join(bench_steps.lines(table)))


@bench.command()
@click.option(
    "--prompts",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help='One prompt per line, or JSON lines with "prompt" (default: a few of our own).',
)
@click.option(
    "--num-prompts", type=click.IntRange(1), metavar="N", help="The first N only (default: 4 of ours, or all)."
)
@click.option("--iterations", type=click.IntRange(1), default=3, show_default=True, metavar="N")
@click.option("--max-tokens", type=click.IntRange(1), default=64, show_default=True, metavar="N", help="Per text.")
@_socket_option
@_json_option("SPECMESH_BENCH_RUN_JSON")
def run(
    prompts: Path | None,
    num_prompts: int | None,
    iterations: int,
    max_tokens: int,
    socket_path: Path | None,
    as_json: bool,
) -> None:
    """Compare, on a live pair: the verifier alone, fixed draft_n 2, 4 and 8, and adaptive draft_n.

    The same prompts, greedily, one text at a time, in an order that rotates. Without a drafter only the verifier alone
    is run.
    """
    from specmesh import bench_measure, bench_report
    from specmesh.bench_progress import bar
    from specmesh.bench_prompts import BUILT_IN, read_prompts
    from specmesh.bench_run import ALONE, VARIANTS
    from specmesh.client import Client

    texts = read_prompts(prompts) if prompts is not None else list(BUILT_IN[: num_prompts or 4])
    client = Client(socket_path)
    drafted = bench_measure.has_drafter(client.get("/stats"))
    variants = VARIANTS if drafted else (ALONE,)
    if not drafted:
        click.echo("specmesh: no drafter is attached: only the verifier alone is run", err=True)
    plan = bench_measure.Plan(tuple(texts[:num_prompts]), iterations, max_tokens, variants)
    with bar(plan.texts) as advance:
        samples = bench_measure.measure(client, plan, advance)
    result = bench_report.Result(plan, samples, client.get("/stats"))
    if as_json:
        _print_json(result.as_json())
    else:
        click.echo("\n".join(result.lines()))
