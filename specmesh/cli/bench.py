"""`specmesh bench`, `audit` and `plan`: what drafting brings and costs, measured, checked and forecast."""

import itertools
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import click

from specmesh import client as daemon
from specmesh.bench import BUILT_IN, bar, has_drafter, read_prompts
from specmesh.cli.options import (
    COUNT,
    MAX_DRAFT_N,
    SHARE,
    Decorator,
    counts_option,
    draft_n_option,
    gathered,
    json_option,
    number,
    path_option,
    print_result,
    sampling_options,
    socket_option,
)
from specmesh.client import Fields, Json
from specmesh.errors import DaemonUnreachable


def _prompts_option(default: int | None = None) -> Decorator:
    """Give a command its `prompts`: of the file, or built-in ones; of these the first `default` where not told."""

    def texts(values: dict[str, Any]) -> tuple[str, ...]:
        path, count = values["prompts"], values["num_prompts"]
        found = read_prompts(path) if path is not None else BUILT_IN[: count or default]
        return tuple(found[:count])

    file = path_option(
        "--prompts", "FILE", 'One prompt per line, or JSON lines with "prompt" (default: built-in prompts).'
    )
    first = click.option("--num-prompts", type=COUNT, metavar="N", help="Use the first N prompts only.")
    return gathered("prompts", {"prompts": file, "num_prompts": first}, texts)


_tokens_option = number("--max-tokens", COUNT, 64, "N", "Tokens per completion.")


@click.group()
def bench() -> None:
    """Measure what drafting brings, and what it costs."""


@bench.command()
@socket_option
@json_option
def steps(socket_path: Path | None, json: bool) -> None:
    """Show how long the running verifier's steps take by number of rows."""
    from specmesh.bench.steps import lines, report

    told = report(daemon.Client(socket_path).get("/stats"))
    print_result(told, lines(told), as_json=json)


@bench.command()
@_prompts_option(default=4)
@number("--iterations", COUNT, 3, "N", "Number of runs of each prompt.")
@_tokens_option
@socket_option
@json_option
def run(prompts: tuple[str, ...], iterations: int, max_tokens: int, socket_path: Path | None, json: bool) -> None:
    """Compare, on a live pair: the verifier alone, fixed draft_n 2, 4 and 8, and adaptive draft_n.

    The same prompts, greedily, one completion at a time, in rotating order. Without a drafter only the verifier alone
    is run.
    """
    from specmesh.bench.run import ALONE, VARIANTS, RunPlan, lines, measure, report

    client = daemon.Client(socket_path)
    drafted = has_drafter(client.get("/stats"))
    if not drafted:
        click.echo("specmesh: no drafter is attached: only the verifier alone is run", err=True)
    variants = VARIANTS if drafted else (ALONE,)
    plan = RunPlan(prompts, iterations, max_tokens, variants)
    with bar(plan.texts) as advance:
        samples = measure(client, plan, advance)
    found = report(plan, samples, client.get("/stats"))
    print_result(found, lines(found), as_json=json)


@bench.command()
@counts_option("--sessions", "1,2,4,8,16,32", "Numbers of concurrent clients to run with.", 1024)
@_prompts_option()
@number("--iterations", COUNT, 1, "N", "Number of runs of each prompt.")
@_tokens_option
@draft_n_option
@socket_option
@json_option
def load(
    sessions: tuple[int, ...],
    prompts: tuple[str, ...],
    iterations: int,
    max_tokens: int,
    draft_n: int | str,
    socket_path: Path | None,
    json: bool,
) -> None:
    """Run concurrent clients: throughput, time to the first token, gaps, acceptance and fairness.

    Clients begin together, each with a prompt of its own as long as there are enough; completions are greedy and
    equally long.
    """
    from specmesh.bench.load import LoadPlan, levels, lines, measure

    client = daemon.Client(socket_path)
    about = Fields(client.get("/stats"))
    plan = LoadPlan(sessions, prompts, iterations, max_tokens, {"draft_n": draft_n})
    with bar(plan.texts) as advance:
        found = levels(measure(client, plan, advance))
    most = about.number("sessions", "max")
    told: Json = {"schema_version": 1, "model": about.raw.get("model"), "max_sessions": most, "prompts": len(prompts)}
    told |= {"iterations": iterations, "max_tokens": max_tokens, "draft_n": draft_n, "levels": found}
    where = f"{about.text('model', 'name') or 'unknown model'}, {most or 0:g} sessions held at once"
    what = f"prompts {len(prompts)}, iterations {iterations}, {max_tokens} tokens each; draft_n {draft_n}\n"
    print_result(told, [where, what, *lines(found)], as_json=json)


@click.command()
@_prompts_option()
@number("--tokens", COUNT, 128, "N", "Tokens per completion.")
@counts_option("--draft-n", "auto,4,8", "Numbers of drafts per step to check.", MAX_DRAFT_N, auto=True)
@sampling_options(temperature=0.0)
@socket_option
@json_option
@click.pass_context
def audit(
    ctx: click.Context,
    prompts: tuple[str, ...],
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
    from specmesh.bench.audit import AuditPlan, lines
    from specmesh.bench.audit import audit as run

    if sampling.get("strategy", "deterministic") not in ("deterministic", "greedy"):
        raise click.UsageError(f"--strategy {sampling['strategy']} does not promise the same text: audit another")
    client = daemon.Client(socket_path)
    snapshot = client.get("/stats")
    if not has_drafter(snapshot):
        raise DaemonUnreachable("no drafter is attached, so there is nothing to compare: start specmesh drafter")
    plan = AuditPlan(prompts, tokens, tuple(dict.fromkeys(draft_n)), sampling)
    with bar(plan.texts) as advance:
        told = run(client, plan, snapshot, advance)
    print_result(told, lines(told), as_json=json)
    ctx.exit(int(told["failed"]))


PAYS = 1.02
"""Minimum speed-up at which drafts pay: two simulations of the same thing differ by 1 %."""

_LEVEL = (
    "{users:>6}{drafting[total]:>10.1f}{drafting[mean]:>8.2f}{drafting[slowest]:>9.2f}{alone[total]:>10.1f}"
    "{alone[mean]:>8.2f}{speedup:>9.2f}x{drafting[drafts]:>8.2f}{accept:>8}{drafting[rows]:>7.1f}"
)


@click.command()
@path_option(
    "--steps",
    "FILE",
    "Step costs as `bench steps --json` prints them, or a JSON list of milliseconds "
    "for 1, 2, ... rows (default: as the running verifier has measured them).",
)
@counts_option("--users", "1,2,4,8,16,32,64,128,256", "Numbers of concurrent users.", 10_000)
@number("--tokens", click.IntRange(8, 100_000), 128, "N", "Tokens per completion.")
@number("--prompt-tokens", click.IntRange(1, 100_000), 64, "N", "Tokens per prompt.")
@number("--alpha", SHARE, 0.75, "P", "Probability that a draft is accepted.")
@number("--draft-ms", click.FloatRange(0, min_open=True), 5.2, "MS", "Drafter's time per draft.")
@number("--rtt-ms", click.FloatRange(0), 5.0, "MS", "Network round trip.")
@number("--pause-ms", click.FloatRange(0), 0.5, "MS", "Time between two steps; `stats --json` has it as gap_ms.")
@click.option(
    "--drafters", type=COUNT, metavar="N", help="Number of drafters that all users share (default: one each)."
)
@click.option(
    "--max-sessions",
    type=COUNT,
    metavar="N",
    help="Most sessions of the verifier; further users wait (default: enough for all).",
)
@socket_option
@json_option
def plan(
    steps: Path | None, users: tuple[int, ...], alpha: float, socket_path: Path | None, json: bool, **asked: Any
) -> None:
    """How many users can one verifier serve, how fast, and up to how many do drafts pay? A simulation.

    The verifier's own scheduler, sessions and policies decide; models, network and clocks are simulated. Steps of more
    rows than were measured are extrapolated.
    """
    from specmesh.bench.steps import costs_of, measured, read_costs
    from specmesh.core.simulation import Deployment, Workload, simulate

    def run(count: int, draft_n: int | None) -> dict[str, Any]:
        chance = Random(1)  # noqa: S311 - luck, not a secret
        texts = Workload(asked["prompt_tokens"], asked["tokens"], draft_n=draft_n)
        found = simulate(site, texts, count, lambda _: chance.random() < alpha)
        advance()
        rounded = {key: value and round(value, 4) for key, value in asdict(found).items() if key != "users"}
        return rounded | {"fairness": round(found.slowest / found.mean, 4) if found.mean else 0.0}

    costs = costs_of(measured(daemon.Client(socket_path).get("/stats"))) if steps is None else read_costs(steps)
    draft, round_trip, pause = (asked[name] / 1e3 for name in ("draft_ms", "rtt_ms", "pause_ms"))
    site = Deployment(costs, draft, round_trip, pause, drafters=asked["drafters"], places=asked["max_sessions"])
    levels: list[dict[str, Any]] = []
    with bar(2 * len(users)) as advance:
        for count in sorted(users):
            drafting, alone = run(count, None), run(count, 0)
            speedup = round(drafting["total"] / alone["total"], 4)
            levels.append({"users": count, "speedup": speedup, "drafting": drafting, "alone": alone})
    paying = list(itertools.takewhile(lambda level: level["speedup"] >= PAYS, levels))
    most, stops = paying[-1]["users"] if paying else None, next(iter(levels[len(paying) :]), {}).get("users")
    told: Json = {"schema_version": 1, "step_ms": round(costs.seconds(1) * 1e3, 4), "alpha": alpha}
    told |= {"round_trip_ms": asked.pop("rtt_ms"), **asked, "levels": levels}
    told |= {"drafting_pays_up_to": most, "drafting_stops_paying_at": stops}
    times = "one row {step_ms:.3g} ms, a draft {draft_ms:.3g} ms, round trip {round_trip_ms:.3g} ms"
    shared = "a drafter for each user" if asked["drafters"] is None else "drafters {drafters}"
    what = "texts of {tokens} tokens after prompts of {prompt_tokens}, one after the other; simulated\n"
    lines = [
        f"{times}, {{alpha:.0%}} of drafts accepted; {shared}".format(**told),
        what.format(**told),
        " users  tokens/s    each  slowest     alone    each  speed-up  drafts  accept   rows",
        *map(_level_line, levels),
        "each, slowest: tokens/s of a user; drafts: verified per token; rows: of a step with drafts\n",
        ("Drafting does not pay" if most is None else f"Drafting pays up to {most} users")
        + ("." if stops is None else f", and not with {stops}."),
    ]
    print_result(told, lines, as_json=json)


def _level_line(level: dict[str, Any]) -> str:
    acceptance = level["drafting"]["acceptance"]
    return _LEVEL.format(accept="-" if acceptance is None else f"{acceptance:.0%}", **level)
