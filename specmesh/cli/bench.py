"""`specmesh bench`: what drafting brings and what it costs, measured. Thin functions, like those of cli.py."""

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import click

from specmesh.cli.imagined_pair_options import STEPS_FILE, draft_ms_option, rtt_ms_option
from specmesh.cli.options import FOUND, json_option, print_json, print_result, prompts_option, socket_option
from specmesh.cli.sampling_options import draft_n_option

_SOCKET = socket_option(f"The daemon's local socket (default: {FOUND}).")
F = TypeVar("F", bound=Callable[..., object])


@click.group()
def bench() -> None:
    """Measure what drafting brings, and what it costs."""


def _plan_options(iterations: int) -> Callable[[F], F]:
    """What to run, and how often."""
    options = (
        prompts_option,
        click.option(
            "--num-prompts",
            type=click.IntRange(1),
            metavar="N",
            help="The first N only (default: 4 of ours, or all).",
        ),
        click.option(
            "--iterations",
            type=click.IntRange(1),
            default=iterations,
            show_default=True,
            metavar="N",
            help="Times each prompt is run.",
        ),
        click.option(
            "--max-tokens", type=click.IntRange(1), default=64, show_default=True, metavar="N", help="Per text."
        ),
    )

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@bench.command()
@_SOCKET
@json_option("SPECMESH_BENCH_STEPS_JSON")
def steps(socket_path: Path | None, as_json: bool) -> None:
    """Show what the running verifier's steps cost by their width; `!` marks a width dearer than a wider one."""
    from specmesh.bench import steps as step_tables
    from specmesh.client import Client

    snapshot = Client(socket_path).get("/stats")
    tables = step_tables.step_tables(snapshot)
    if as_json:
        print_json(step_tables.as_json(snapshot, tables))
    else:
        click.echo("\n".join(step_tables.lines(tables)))


@bench.command()
@_plan_options(iterations=3)
@_SOCKET
@json_option("SPECMESH_BENCH_RUN_JSON")
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
    from specmesh.bench import measure, report
    from specmesh.bench.progress import bar
    from specmesh.bench.prompts import BUILT_IN, read_prompts
    from specmesh.bench.run import ALONE, VARIANTS
    from specmesh.client import Client

    texts = read_prompts(prompts) if prompts is not None else list(BUILT_IN[: num_prompts or 4])
    client = Client(socket_path)
    drafted = measure.has_drafter(client.get("/stats"))
    variants = VARIANTS if drafted else (ALONE,)
    if not drafted:
        click.echo("specmesh: no drafter is attached: only the verifier alone is run", err=True)
    plan = measure.Plan(tuple(texts[:num_prompts]), iterations, max_tokens, variants)
    with bar(plan.texts) as advance:
        samples = measure.measure(client, plan, advance)
    result = report.Result(plan, samples, client.get("/stats"))
    print_result(result, as_json=as_json)


def _numbers(
    _: click.Context, __: click.Parameter, text: str, separator: str, least: float, most: float, optional: bool = False
) -> list[float]:
    """Numbers out of an option's list; raises BadParameter."""
    if optional and not text:
        return []
    try:
        values = [float(part) for part in text.split(separator)]
    except ValueError:
        values = []
    if not values or not all(least <= value <= most for value in values):
        raise click.BadParameter(f"{text!r} is no list of numbers from {least:g} to {most:g} like 1{separator}2")
    return values


@bench.command()
@click.option(
    "--sessions",
    default="1,2,4,8,16,32",
    show_default=True,
    metavar="N[,N...]",
    callback=partial(_numbers, separator=",", least=1, most=1024),
    help="Clients at once, one count after the other.",
)
@_plan_options(iterations=1)
@draft_n_option("auto")
@click.option(
    "--url",
    metavar="URL",
    help="Another OpenAI-compatible server instead of a daemon, such as http://127.0.0.1:8080.",
)
@_SOCKET
@json_option("SPECMESH_BENCH_LOAD_JSON")
def load(
    sessions: list[float],
    prompts: Path | None,
    num_prompts: int | None,
    iterations: int,
    max_tokens: int,
    draft_n: int | str,
    url: str | None,
    socket_path: Path | None,
    as_json: bool,
) -> None:
    """Ask for many texts at once: throughput, time to the first token, gaps, acceptance and fairness.

    Clients begin together, each with a prompt of its own as far as there are; the texts are greedy, and all as long.
    """
    from specmesh.bench import crowd
    from specmesh.bench.load import Load, Result
    from specmesh.bench.progress import bar
    from specmesh.bench.prompts import BUILT_IN, read_prompts
    from specmesh.bench.server import Server
    from specmesh.client import Client

    texts = read_prompts(prompts) if prompts is not None else list(BUILT_IN)
    counts = tuple(map(int, sessions))
    if url is not None:
        server = Server(url)
        source: crowd.Source = server
        # A field that others do not know is sent only where it was asked for.
        options: dict[str, object] = {"model": server.model()} | ({} if draft_n == "auto" else {"draft_n": draft_n})
        about: dict[str, object] = {"url": url, "model": {"name": options["model"]}}
    else:
        client = source = Client(socket_path)
        options, about = {"draft_n": draft_n}, client.get("/stats")
    plan = Load(counts, tuple(texts[:num_prompts]), iterations, max_tokens, options)
    with bar(plan.texts) as advance:
        result = Result(plan, crowd.measure(source, plan, advance), about)
    print_result(result, as_json=as_json)


@bench.command()
@click.option(
    "--step-ms",
    type=click.FloatRange(0, min_open=True),
    default=34.2,
    show_default=True,
    metavar="MS",
    help="A step of one row.",
)
@click.option("--row-ms", type=click.FloatRange(0), default=1.0, show_default=True, metavar="MS", help="Per extra row.")
@draft_ms_option
@click.option(
    "--alpha",
    default="0.75",
    show_default=True,
    metavar="P[/P...]",
    callback=partial(_numbers, separator="/", least=0.0, most=1.0),
    help="Probability that a draft stands.",
)
@click.option("--period", type=click.IntRange(0), default=0, metavar="N", help="Tokens after which alpha is the next.")
@rtt_ms_option(0.3)
@click.option("--jitter-ms", type=click.FloatRange(0), default=0.0, metavar="MS", help="On top of the round trip.")
@click.option(
    "--steps-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help=f"{STEPS_FILE}; in place of --step-ms and --row-ms.",
)
@click.option("--tokens", type=click.IntRange(8), default=600, show_default=True, metavar="N", help="Per text.")
@click.option(
    "--lockstep",
    default="4",
    show_default=True,
    metavar="N[,N...]",
    callback=partial(_numbers, separator=",", least=1, most=16, optional=True),
    help="Fixed draft_n to compare with.",
)
@click.option(
    "--repeats", type=click.IntRange(1), default=1, show_default=True, metavar="N", help="Texts of each kind."
)
@json_option("SPECMESH_BENCH_SIM_JSON")
@click.pass_context
def sim(
    ctx: click.Context,
    step_ms: float,
    row_ms: float,
    draft_ms: float,
    alpha: list[float],
    period: int,
    rtt_ms: float,
    jitter_ms: float,
    steps_file: Path | None,
    tokens: int,
    lockstep: list[float],
    repeats: int,
    as_json: bool,
) -> None:
    """Would a drafter help a verifier of this speed, at this distance? Real daemons, models that only sleep.

    Fixed draft_n is each step's number of drafts, the drafter working ahead: a little better than plain lock-step.
    """
    from specmesh.bench import sim as simulation
    from specmesh.bench.progress import bar

    steps = simulation.steps_of(step_ms, row_ms, steps_file)
    fixed = tuple(map(int, lockstep))
    signal.signal(signal.SIGTERM, lambda *_: ctx.exit(143))  # by an exception, so that no daemon is left behind
    pair = simulation.SimPair(steps, draft_ms / 1e3, rtt_ms / 1e3, jitter_ms / 1e3, tuple(alpha), period)
    with bar((2 + len(fixed)) * repeats) as advance:
        result = simulation.simulate(pair, tokens, fixed, repeats, advance)
    print_result(result, as_json=as_json)
