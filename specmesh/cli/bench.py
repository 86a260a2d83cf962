"""`specmesh bench`, `audit`, `plan` and `recommend`: what drafting brings and costs, measured, checked and forecast."""

import itertools
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specmesh import client as daemon
from specmesh.bench import (
    PAYS,
    WARM_UP_TOKENS,
    bar,
    drafting_stats,
    generate,
    loaded_stats,
    read_prompts,
)
from specmesh.cli.options import (
    COUNT,
    FILE,
    SHARE,
    columns,
    counts_option,
    draft_n_option,
    json_option,
    option,
    print_result,
    request_fields,
    sampling_options,
    socket_option,
    table,
)
from specmesh.config import ModelSettings
from specmesh.core.draft_length import MAX_DRAFTS
from specmesh.core.fields import Json, at, list_at, number_at, object_at, objects_at
from specmesh.models import resolve
from specmesh.paths import bundled, models_dir

if TYPE_CHECKING:
    from specmesh.bench.recommend import StepTimes

_prompts_option = option(
    "--prompts",
    FILE,
    "FILE",
    'One prompt per line, or JSON lines with "prompt" (default: built-in prompts).',
    name="file",
)
_num_prompts_option = option("--num-prompts", COUNT, "N", "Use the first N prompts only.")
_tokens_option = option("--max-tokens", COUNT, "N", "Tokens per completion.", 64)


@click.group()
def bench() -> None:
    """Measure what drafting brings, and what it costs."""


@bench.command()
@socket_option
@json_option
def steps(socket_path: Path | None, json: bool) -> None:
    """Show how long the running verifier's steps take by number of rows."""
    from specmesh.bench.steps import steps_of, table_of

    snapshot = loaded_stats(daemon.Client(socket_path))
    steps_ms = steps_of(snapshot)
    result: Json = {"schema_version": 1, "model": snapshot["model"], "steps_ms": steps_ms}
    print_result(result, table(table_of(steps_ms)), as_json=json)


@bench.command()
@_prompts_option
@option(
    "--num-prompts",
    COUNT,
    "N",
    "Use the first N prompts only, of each category.",
    shown="4, all of --suite",
)
@option("--iterations", COUNT, "N", "Number of runs of each prompt.", shown="3, 1 of --suite")
@_tokens_option
@click.option(
    "--suite", is_flag=True, help="Use the built-in prompts by category, and adaptive draft_n only."
)
@option("--png", FILE, "FILE", "Draw the speed-ups of --suite; needs matplotlib.")
@socket_option
@json_option
def run(
    file: Path | None,
    num_prompts: int | None,
    iterations: int | None,
    max_tokens: int,
    suite: bool,
    png: Path | None,
    socket_path: Path | None,
    json: bool,
) -> None:
    """Compare, on a live pair: the verifier alone, fixed draft_n 2, 4 and 8, and adaptive draft_n.

    The same prompts, greedily, one completion at a time, in rotating order. With --suite: coding, maths, summarising,
    retrieval, roleplay, multilingual, tool calls, eight prompts each, with a fresh number in each prompt.
    """
    from specmesh.bench.run import VARIANTS, measure, outcomes

    if (png and not suite) or (file and suite):
        raise click.UsageError(
            "--png belongs to --suite, which has its own prompts: leave --prompts out"
        )
    client = daemon.Client(socket_path)
    if suite:
        _suite(
            client,
            {"max_tokens": max_tokens, "temperature": 0},
            num_prompts,
            iterations or 1,
            png,
            json=json,
        )
        return
    iterations, prompts = iterations or 3, read_prompts(file)[: num_prompts or 4]
    snapshot = drafting_stats(client)
    with bar(len(prompts) * iterations * len(VARIANTS)) as advance:
        bodies: list[Json] = [
            {"prompt": one, "max_tokens": max_tokens, "temperature": 0} for one in prompts
        ]
        found = outcomes(measure(client, bodies, iterations, advance, VARIANTS))
    result: Json = {"schema_version": 1, "model": snapshot["model"], "prompts": len(prompts)}
    result |= {"iterations": iterations, "max_tokens": max_tokens, "variants": found}
    print_result(result, columns(found), as_json=json)


def _suite(
    client: daemon.Client,
    body: Json,
    count: int | None,
    iterations: int,
    png: Path | None,
    *,
    json: bool,
) -> None:
    from specmesh.bench.run import SOURCES, draw, prompts, rows, run_suite

    snapshot, suite = drafting_stats(client), prompts(count)
    if png is not None:
        draw([], "", png)  # what is missing for it is said before the work
    texts = sum(map(len, suite.values()))
    with bar(texts * iterations * len(SOURCES)) as advance:
        found = run_suite(client, suite, body, iterations, advance)
    if png is not None:
        draw(found, str(at(snapshot, "model.name")), png)
    result: Json = {
        "schema_version": 1,
        "model": snapshot["model"],
        "prompts": texts,
        "iterations": iterations,
    }
    result |= {"max_tokens": body["max_tokens"], "categories": found}
    print_result(result, table(rows(found)), as_json=json)


@bench.command()
@counts_option("--sessions", "1,2,4,8,16,32", "Numbers of concurrent clients to run with.", 1024)
@_prompts_option
@_num_prompts_option
@option("--iterations", COUNT, "N", "Number of runs of each prompt.", 1)
@_tokens_option
@draft_n_option
@socket_option
@json_option
def load(
    sessions: tuple[int, ...],
    file: Path | None,
    num_prompts: int | None,
    iterations: int,
    max_tokens: int,
    draft_n: int | str,
    socket_path: Path | None,
    json: bool,
) -> None:
    """Run concurrent clients: throughput, time to the first token and between tokens, acceptance and fairness.

    Clients begin together, each with a prompt of its own as long as there are enough; completions are greedy and
    equally long.
    """
    from specmesh.bench.load import level, run_clients

    client, prompts = daemon.Client(socket_path), read_prompts(file)[:num_prompts]
    snapshot = loaded_stats(client)
    body: Json = {
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "draft_n": draft_n,
    }
    bodies = [body | {"prompt": one} for one in prompts]
    with bar(sum(sessions) * iterations) as advance:
        generate(client, bodies[0] | {"max_tokens": WARM_UP_TOKENS})
        found = [
            level(run_clients(client, bodies, iterations, count, advance)) for count in sessions
        ]
    result: Json = {"schema_version": 1, "model": snapshot.get("model"), "prompts": len(prompts)}
    result |= {
        "iterations": iterations,
        "max_tokens": max_tokens,
        "draft_n": draft_n,
        "levels": found,
    }
    print_result(result, columns(found), as_json=json)


@click.command()
@_prompts_option
@_num_prompts_option
@counts_option(
    "--draft-n", "auto,4,8", "Numbers of drafts per step to check.", MAX_DRAFTS, auto=True
)
@sampling_options(temperature=0, max_tokens="128")
@socket_option
@json_option
@click.pass_context
def audit(
    ctx: click.Context,
    /,
    file: Path | None,
    num_prompts: int | None,
    draft_n: tuple[int | str, ...],
    socket_path: Path | None,
    json: bool,
    **options: object,
) -> None:
    """Compare the texts of a live pair with the verifier's alone, token by token; exit code 1 if one is wrong.

    Where two texts differ, the verifier is asked again: a near tie is a choice so close that the kernels of another
    batch width, whose logits differ slightly, can turn it. Everything else is an error.
    """
    from specmesh.bench.audit import audit as run
    from specmesh.bench.audit import lines

    if options["strategy"] not in (None, "deterministic", "greedy"):
        raise click.UsageError(
            f"--strategy {options['strategy']} does not promise the same text: audit another"
        )
    client = daemon.Client(socket_path)
    snapshot = drafting_stats(client)
    sampling, prompts, ways = (
        request_fields(options),
        read_prompts(file)[:num_prompts],
        tuple(dict.fromkeys(draft_n)),
    )
    bodies = [
        {"seed": number, "max_tokens": 128} | sampling | {"prompt": one}
        for number, one in enumerate(prompts)
    ]
    with bar(len(bodies) * (1 + len(ways))) as advance:
        result = run(client, bodies, ways, snapshot, advance) | {"sampling": sampling}
    print_result(result, [*columns(objects_at(result, "ways")), *lines(result)], as_json=json)
    ctx.exit(1 if result["failed"] else 0)


@click.command()
@option(
    "--steps",
    FILE,
    "FILE",
    "Step costs as `bench steps --json` prints them (default: as the running verifier has measured them).",
)
@counts_option("--users", "1,2,4,8,16,32,64,128,256", "Numbers of concurrent users.", 10_000)
@option("--tokens", click.IntRange(8, 100_000), "N", "Tokens per completion.", 128)
@option("--prompt-tokens", click.IntRange(1, 100_000), "N", "Tokens per prompt.", 64)
@option("--alpha", SHARE, "P", "Probability that a draft is accepted.", 0.75)
@option("--draft-ms", click.FloatRange(0, min_open=True), "MS", "Drafter's time per draft.", 5.2)
@option("--round-trip-ms", click.FloatRange(0), "MS", "Network round trip.", 5.0)
@option(
    "--pause-ms",
    click.FloatRange(0),
    "MS",
    "Time between two steps, as `stats --json` has it.",
    0.5,
)
@option("--drafters", COUNT, "N", "Number of drafters that all users share (default: one each).")
@socket_option
@json_option
def plan(
    steps: Path | None,
    users: tuple[int, ...],
    tokens: int,
    prompt_tokens: int,
    alpha: float,
    draft_ms: float,
    round_trip_ms: float,
    pause_ms: float,
    drafters: int | None,
    socket_path: Path | None,
    json: bool,
) -> None:
    """How many users can one verifier serve, how fast, and up to how many do drafts pay? A simulation.

    The verifier's own scheduler, sessions and policies decide; models, network and clocks are simulated. Steps of more
    rows than were measured are extrapolated.
    """
    from specmesh.bench.recommend import simulated
    from specmesh.bench.steps import costs_of, read_costs, steps_of
    from specmesh.core.simulation import Deployment, Workload

    def run(count: int, draft_n: int | None) -> Json:
        found = simulated(site, Workload(prompt_tokens, tokens, draft_n), count, alpha)
        advance()
        return {key: value and round(value, 4) for key, value in asdict(found).items()}

    costs = (
        read_costs(steps)
        if steps is not None
        else costs_of(steps_of(loaded_stats(daemon.Client(socket_path))))
    )
    site = Deployment(
        costs=costs,
        draft=draft_ms / 1e3,
        round_trip=round_trip_ms / 1e3,
        pause=pause_ms / 1e3,
        drafters=drafters,
    )
    levels = list[Json]()
    with bar(2 * len(users)) as advance:
        for count in sorted(users):
            drafting, alone = run(count, None), run(count, 0)
            speedup = round(number_at(drafting, "total") / number_at(alone, "total"), 4)
            levels.append(
                {"users": count, "speedup": speedup, "drafting": drafting, "alone": alone}
            )
    paying = [*itertools.takewhile(lambda level: number_at(level, "speedup") >= PAYS, levels)]
    most = paying[-1]["users"] if paying else None
    result: Json = {
        "schema_version": 1,
        "step_ms": round(costs.seconds(1) * 1e3, 4),
        "alpha": alpha,
    }
    result |= {
        "round_trip_ms": round_trip_ms,
        "draft_ms": draft_ms,
        "pause_ms": pause_ms,
        "drafters": drafters,
    }
    result |= {
        "tokens": tokens,
        "prompt_tokens": prompt_tokens,
        "levels": levels,
        "drafting_pays_up_to": most,
    }
    verdict = f"Drafting pays up to {most} users" if most is not None else "Drafting does not pay"
    print_result(result, [*columns(levels), f"{verdict} of {max(users)}."], as_json=json)


# --- recommend


@click.command()
@option(
    "--target",
    str,
    "FILE|NAME",
    "GGUF file, or name of a model or repository (default: list what is known).",
)
@option(
    "--step-ms",
    click.FloatRange(0, min_open=True),
    "MS",
    "Target's time per step (default: see above).",
)
@option("--chip", str, "NAME", "Chip of the drafter's machine (default: a guess).")
@option("--round-trip-ms", click.FloatRange(0), "MS", "Network round trip.", 0.5)
@json_option
def recommend(
    target: str | None, step_ms: float | None, chip: str | None, round_trip_ms: float, json: bool
) -> None:
    """Which drafter suits a target, and what would it bring?

    Known pairs with the acceptance that was published for them, drafting speed by chip, and the speed-up that a
    simulation expects, as a range. Each number says whether it is measured, published, given or estimated, and its
    source. Steps take what --step-ms says; else a file is loaded and measured; else they are those of known machines.
    """
    from specmesh.bench.recommend import given, known, report, rows, sources, summary

    chips = object_at(known(), "chips")
    if chip is not None and chip not in chips:
        names = ", ".join(chips)
        raise click.UsageError(
            f"no speed of {chip!r} is known: give one of {names}, or `specmesh plan` --draft-ms"
        )
    if target is None:
        found: list[Json] = [
            dict(zip(("target", "drafter", "result"), row, strict=True)) for row in summary()
        ]
        print_result({"schema_version": 1} | known(), table(found), as_json=json)
        return
    name, metadata, step = target, dict[str, str](), None if step_ms is None else given(step_ms)
    if target == "bundled" or target.endswith(".gguf"):
        from specmesh import logs
        from specmesh.engines.llama.model import metadata as read

        logs.configure("error")
        path = Path(
            bundled("target.gguf") if target == "bundled" else resolve(target, models_dir())
        )
        name, metadata, step = path.stem, read(path), step or _measured(path)
    result = report(name, metadata, step, chip, round_trip_ms)
    lines = [f"{name}: {result['family'] or 'unknown family'}, by {result['known_by']}"]
    lines += [
        *(table(rows(result)) if result["pairs"] else []),
        *sources(result),
        *map(str, list_at(result, "advice")),
    ]
    print_result(result, lines, as_json=json)


def _measured(path: Path) -> "StepTimes":
    """Load a target and measure its steps, as a verifier does at its start."""
    from specmesh.bench.recommend import StepTimes
    from specmesh.core.draft_length.step_costs import StepCosts
    from specmesh.engines.load import calibrate, load_verifier

    costs, settings = StepCosts(), ModelSettings("llama", str(path), max_sessions=1, gpu_layers=-1)
    with closing(load_verifier(settings, lambda _: None)) as engine:
        calibrate(engine, costs)
    return StepTimes(costs, "measured", f"{path.name} here, on {engine.info.backend}")
