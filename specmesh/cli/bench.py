"""`specmesh bench` and `audit`: what drafting brings and costs, measured and checked."""

from pathlib import Path

import click

from specmesh import client as daemon
from specmesh.bench.run import BUILT_IN, bar, read_prompts
from specmesh.cli.options import (
    COUNT,
    MAX_DRAFT_N,
    Decorator,
    combined,
    counts_option,
    draft_n_option,
    json_option,
    number,
    print_json,
    print_result,
    prompts_option,
    sampling_options,
    socket_option,
)
from specmesh.errors import DaemonUnreachable

_first_prompts = click.option("--num-prompts", type=COUNT, metavar="N", help="Use the first N prompts only.")


def _plan_options(iterations: int) -> Decorator:
    return combined(
        prompts_option,
        _first_prompts,
        number("--iterations", COUNT, iterations, "N", "Number of runs of each prompt."),
        number("--max-tokens", COUNT, 64, "N", "Tokens per completion."),
    )


def _prompts(path: Path | None, count: int | None, default: int | None = None) -> tuple[str, ...]:
    """Return the first `count` prompts of the file; without a file, of the built-in ones `default` where not told."""
    texts = read_prompts(path) if path is not None else BUILT_IN[: count or default]
    return tuple(texts[:count])


@click.group()
def bench() -> None:
    """Measure what drafting brings, and what it costs."""


@bench.command()
@socket_option
@json_option
def steps(socket_path: Path | None, json: bool) -> None:
    """Show how long the running verifier's steps take by number of rows; `!` marks one slower than a wider one."""
    from specmesh.bench import steps as step_tables

    snapshot = daemon.Client(socket_path).get("/stats")
    tables = step_tables.step_tables(snapshot)
    if json:
        print_json(step_tables.as_json(snapshot, tables))
    else:
        click.echo("\n".join(step_tables.lines(tables)))


@bench.command()
@_plan_options(iterations=3)
@socket_option
@json_option
def run(
    prompts: Path | None,
    num_prompts: int | None,
    iterations: int,
    max_tokens: int,
    socket_path: Path | None,
    json: bool,
) -> None:
    """Compare, on a live pair: the verifier alone, fixed draft_n 2, 4 and 8, and adaptive draft_n.

    The same prompts, greedily, one completion at a time, in rotating order. Without a drafter only the verifier alone
    is run.
    """
    from specmesh.bench import report
    from specmesh.bench.run import ALONE, VARIANTS, RunPlan, has_drafter, measure

    client = daemon.Client(socket_path)
    drafted = has_drafter(client.get("/stats"))
    if not drafted:
        click.echo("specmesh: no drafter is attached: only the verifier alone is run", err=True)
    variants = VARIANTS if drafted else (ALONE,)
    plan = RunPlan(_prompts(prompts, num_prompts, 4), iterations, max_tokens, variants)
    with bar(plan.texts) as advance:
        samples = measure(client, plan, advance)
    print_result(report.RunResult(plan, samples, client.get("/stats")), as_json=json)


@bench.command()
@counts_option("--sessions", "1,2,4,8,16,32", "Numbers of concurrent clients to run with.", 1024)
@_plan_options(iterations=1)
@draft_n_option
@click.option(
    "--url",
    metavar="URL",
    help="Measure another OpenAI-compatible server instead of a daemon, such as http://127.0.0.1:8080.",
)
@socket_option
@json_option
def load(
    sessions: tuple[int, ...],
    prompts: Path | None,
    num_prompts: int | None,
    iterations: int,
    max_tokens: int,
    draft_n: int | str,
    url: str | None,
    socket_path: Path | None,
    json: bool,
) -> None:
    """Run concurrent clients: throughput, time to the first token, gaps, acceptance and fairness.

    Clients begin together, each with a prompt of its own as long as there are enough; completions are greedy and
    equally long.
    """
    from specmesh.bench.load import LoadPlan, LoadResult, Server, measure

    if url is None:
        client = daemon.Client(socket_path)
        options: daemon.Json = {"draft_n": draft_n}
        about = client.get("/stats")
    else:
        client = server = Server(url)
        # A field that others do not know is sent only where it was asked for.
        options = {"model": server.model()} | ({} if draft_n == "auto" else {"draft_n": draft_n})
        about = {"url": url, "model": {"name": options["model"]}}
    plan = LoadPlan(sessions, _prompts(prompts, num_prompts), iterations, max_tokens, options)
    with bar(plan.texts) as advance:
        result = LoadResult(plan, measure(client, plan, advance), about)
    print_result(result, as_json=json)


@click.command()
@prompts_option
@_first_prompts
@number("--tokens", COUNT, 128, "N", "Tokens per completion.")
@counts_option("--draft-n", "auto,4,8", "Numbers of drafts per step to check.", MAX_DRAFT_N, auto=True)
@sampling_options(temperature=0.0)
@socket_option
@json_option
@click.pass_context
def audit(
    ctx: click.Context,
    prompts: Path | None,
    num_prompts: int | None,
    tokens: int,
    draft_n: tuple[int | str, ...],
    sampling: dict[str, object],
    socket_path: Path | None,
    json: bool,
) -> None:
    """Compare the texts of a live pair with the verifier's alone, token by token; exit code 1 if one is wrong.

    Where two texts differ, the verifier is asked again: a near tie is a choice so close that the kernels of another
    batch width, whose logits differ slightly, can turn it. Everything else is an error.
    """
    from specmesh.bench.audit import AuditPlan
    from specmesh.bench.audit import audit as run
    from specmesh.bench.run import has_drafter

    if sampling.get("strategy", "deterministic") not in ("deterministic", "greedy"):
        raise click.UsageError(f"--strategy {sampling['strategy']} does not promise the same text: audit another")
    client = daemon.Client(socket_path)
    snapshot = client.get("/stats")
    if not has_drafter(snapshot):
        raise DaemonUnreachable("no drafter is attached, so there is nothing to compare: start specmesh drafter")
    plan = AuditPlan(_prompts(prompts, num_prompts), tokens, tuple(dict.fromkeys(draft_n)), sampling)
    with bar(plan.texts) as advance:
        result = run(client, plan, snapshot, advance)
    print_result(result, as_json=json)
    ctx.exit(int(result.failed))
