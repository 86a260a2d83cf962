"""`specmesh bench`, `audit`, `plan` and `recommend`: gains and costs of drafting."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specmesh.bench.texts import (
    PAYS,
    WARM_UP_TOKENS,
    bar,
    drafting_stats,
    generate,
    has_drafter,
    loaded_stats,
    read_prompts,
    requests_of,
)
from specmesh.cli.model_names import local_models
from specmesh.cli.options import (
    COUNT,
    FILE,
    MILLISECONDS,
    POSITIVE_MILLISECONDS,
    SHARE,
    aligned,
    client_option,
    columns,
    counted,
    counts_option,
    draft_n_option,
    flag,
    json_option,
    option,
    print_result,
    request_fields,
    sampling_options,
    table,
)
from specmesh.client import Client
from specmesh.config import ModelSettings
from specmesh.core.draft_length import MAX_DRAFTS
from specmesh.core.fields import Json, at, list_at, number_at, object_at, objects_at
from specmesh.models.files import resolve
from specmesh.paths import bundled, models_dir

if TYPE_CHECKING:
    from specmesh.bench.recommend import StepTimes
    from specmesh.bench.run import Ways

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
    """Measure the gains and costs of drafting."""


@bench.command()
@client_option
@json_option
def steps(client: Client, json: bool) -> None:
    """Show the times of the running verifier's steps by number of rows.

    context: tokens of the text before the step. ratio: to the time of one row.
    """
    from specmesh.bench.step_times import steps_of, table_of

    snapshot = loaded_stats(client)
    steps_ms = steps_of(snapshot)
    result = {"model": snapshot["model"], "steps_ms": steps_ms}
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
@counts_option(
    "--draft-n", None, "Add variants of all sources with these drafts per step.", MAX_DRAFTS
)
@flag("--suite", "Use the built-in prompts by category.")
@option("--png", FILE, "FILE", "Draw the speed-ups of --suite; needs matplotlib.")
@client_option
@json_option
def run(
    file: Path | None,
    num_prompts: int | None,
    iterations: int | None,
    max_tokens: int,
    draft_n: tuple[int, ...],
    suite: bool,
    png: Path | None,
    client: Client,
    json: bool,
) -> None:
    """Compare no drafts, those of each source, and those of all, at a running daemon.

    Sources are its drafters (remote), repeated text (suffix), the target's head (mtp) and a draft
    model beside it (local), as far as they are there. The same prompts, greedily, one completion at
    a time, in rotating order. With --suite: coding, maths, summarising, retrieval, roleplay,
    multilingual, tool calls, eight prompts each, with a fresh number in each prompt.

    tokens_per_second: without prompt processing, the median, the lowest and the highest of the
    iterations. bytes_per_token: on the wire. identical: texts equal to the verifier's alone.
    speedup: of the median over the verifier's alone. by_source: drafts verified of each source, and
    the part that was accepted.
    """
    from specmesh.bench.run import draw, sources_at, ways_of

    if png and not suite:
        raise click.UsageError("--png belongs to --suite: give both")
    if file and suite:
        raise click.UsageError("--suite has its own prompts: leave --prompts out")
    body: Json = {"max_tokens": max_tokens, "temperature": 0}
    prompts = read_prompts(file)[: num_prompts or 4]
    snapshot = _drafting_stats(client)
    if png is not None:
        draw([], "", png)  # a missing library is reported before the work
    ways = ways_of(sources_at(client, snapshot), draft_n)
    if suite:
        iterations = iterations or 1
        found, lines = _run_suite(client, body, num_prompts, iterations, ways)
    else:
        iterations = iterations or 3
        found, lines = _run_variants(client, body, prompts, iterations, ways)
    if png is not None:
        draw(objects_at(found, "categories"), str(at(snapshot, "model.name")), png)
    result = {"model": snapshot.get("model")} | found
    result |= {"iterations": iterations, "max_tokens": max_tokens}
    print_result(result, lines, as_json=json)


def _drafting_stats(client: Client) -> Json:
    """Return the /stats, as `drafting_stats`. Write to stderr that no drafter is attached."""
    snapshot = drafting_stats(client)
    if not has_drafter(snapshot):
        click.echo("No drafter is attached: the verifier's own sources draft.", err=True)
    return snapshot


def _run_variants(
    client: Client, body: Json, prompts: Sequence[str], iterations: int, ways: "Ways"
) -> tuple[Json, list[str]]:
    """Return the results of all variants, and their table."""
    from specmesh.bench.run import measure, outcomes

    bodies = requests_of(prompts, body)
    with bar(len(prompts) * iterations * len(ways)) as advance:
        variants = outcomes(measure(client, bodies, iterations, advance, ways))
    return {"prompts": len(prompts), "variants": variants}, columns(variants)


def _run_suite(
    client: Client, body: Json, count: int | None, iterations: int, ways: "Ways"
) -> tuple[Json, list[str]]:
    """Return the results of all categories, and their table."""
    from specmesh.bench.run import prompts, rows, run_suite

    suite = prompts(count)
    texts = sum(map(len, suite.values()))
    with bar(texts * iterations * len(ways)) as advance:
        categories = run_suite(client, suite, body, iterations, advance, ways=ways)
    return {"prompts": texts, "categories": categories}, table(rows(categories))


@bench.command()
@counts_option("--sessions", "1,2,4,8,16,32", "Numbers of concurrent clients to run with.", 1024)
@_prompts_option
@_num_prompts_option
@option("--iterations", COUNT, "N", "Number of runs of each prompt.", 1)
@_tokens_option
@draft_n_option
@client_option
@json_option
def load(
    sessions: tuple[int, ...],
    file: Path | None,
    num_prompts: int | None,
    iterations: int,
    max_tokens: int,
    draft_n: int | str,
    client: Client,
    json: bool,
) -> None:
    """Run concurrent clients: throughput, latency, acceptance and fairness.

    Clients begin together, each with a prompt of its own as long as there are enough; completions
    are greedy and equally long.

    tokens_per_second: of all clients together. mean, slowest: of the clients' own rates, waiting
    included. fairness: slowest over mean. first_token_ms, inter_token_latency_ms: time to the first
    token, and between two tokens.
    """
    from specmesh.bench.load import level, run_clients

    prompts = read_prompts(file)[:num_prompts]
    snapshot = loaded_stats(client)
    body: Json = {
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "draft_n": draft_n,
    }
    bodies = requests_of(prompts, body)
    levels: list[Json] = []
    with bar(sum(sessions) * iterations) as advance:
        generate(client, bodies[0] | {"max_tokens": WARM_UP_TOKENS})
        for count in sessions:
            texts = run_clients(client, bodies, iterations, count, advance)
            levels.append(level(texts))
    result = {
        "model": snapshot.get("model"),
        "prompts": len(prompts),
        "iterations": iterations,
        "max_tokens": max_tokens,
        "draft_n": draft_n,
        "levels": levels,
    }
    print_result(result, columns(levels), as_json=json)


@click.command()
@_prompts_option
@_num_prompts_option
@counts_option(
    "--draft-n", "auto,4,8", "Numbers of drafts per step to check.", MAX_DRAFTS, auto=True
)
@sampling_options(temperature=0, max_tokens="128")
@client_option
@json_option
@click.pass_context
def audit(
    ctx: click.Context,
    /,
    file: Path | None,
    num_prompts: int | None,
    draft_n: tuple[int | str, ...],
    client: Client,
    json: bool,
    **options: object,
) -> None:
    """Compare the texts of a running daemon with and without drafts, token by token.

    Exit code 1 if a text is wrong. Two texts may differ at a near tie: a choice so close that the
    kernels of another batch width, whose logits differ slightly, can turn it. The verifier is asked
    again at each difference. Every other one is an error.
    """
    from specmesh.bench.audit import audit as run
    from specmesh.bench.audit import lines

    strategy = options["strategy"]
    if strategy not in (None, "deterministic", "greedy"):
        raise click.UsageError(
            f"--strategy {strategy} does not promise the same text: audit another"
        )
    snapshot = _drafting_stats(client)
    sampling = request_fields(options)
    prompts = read_prompts(file)[:num_prompts]
    draft_ns = tuple(dict.fromkeys(draft_n))
    bodies: list[Json] = []
    for seed, prompt in enumerate(prompts):
        bodies.append({"seed": seed, "max_tokens": 128, **sampling, "prompt": prompt})
    with bar(len(bodies) * (1 + len(draft_ns))) as advance:
        result = run(client, bodies, draft_ns, snapshot, advance)
    result["sampling"] = sampling
    print_result(result, [*columns(objects_at(result, "ways")), *lines(result)], as_json=json)
    ctx.exit(int(bool(result["failed"])))


@click.command()
@option(
    "--steps",
    FILE,
    "FILE",
    "Step costs as `bench steps --json` prints them "
    "(default: as the running verifier has measured them).",
)
@counts_option("--users", "1,2,4,8,16,32,64,128,256", "Numbers of concurrent users.", 10_000)
@option("--tokens", click.IntRange(8, 100_000), "N", "Tokens per completion.", 128)
@option("--prompt-tokens", click.IntRange(1, 100_000), "N", "Tokens per prompt.", 64)
@option("--alpha", SHARE, "P", "Probability that a draft is accepted.", 0.75)
@option("--draft-ms", POSITIVE_MILLISECONDS, "MS", "Drafter's time per draft.", 5.2)
@option("--round-trip-ms", MILLISECONDS, "MS", "Network round trip.", 5.0)
@option("--pause-ms", MILLISECONDS, "MS", "Time between two steps, as `stats --json` has it.", 0.5)
@option("--drafters", COUNT, "N", "Number of drafters that all users share (default: one each).")
@client_option
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
    client: Client,
    json: bool,
) -> None:
    """How many users can one verifier serve, how fast, and up to how many do drafts pay?

    A simulation: the verifier's own scheduler, sessions and policies decide; models, network and
    clocks are simulated. Steps of more rows than were measured are extrapolated.

    total: tokens per second of all users. slowest: of the slowest one. busy: share of the time that
    steps take. speedup: of the total with drafts over the total without.
    """
    from specmesh.bench.recommend import simulated
    from specmesh.bench.step_times import costs_of, read_costs, steps_of
    from specmesh.core.simulation import Deployment, Workload

    if steps is None:
        snapshot = loaded_stats(client)
        costs = costs_of(steps_of(snapshot))
    else:
        costs = read_costs(steps)
    deployment = Deployment(
        costs=costs,
        draft=draft_ms / 1e3,
        round_trip=round_trip_ms / 1e3,
        pause=pause_ms / 1e3,
        drafters=drafters,
    )

    def forecast(count: int, draft_n: int | None) -> Json:
        found = simulated(deployment, Workload(prompt_tokens, tokens, draft_n), count, alpha)
        advance()
        return {name: value and round(value, 4) for name, value in asdict(found).items()}

    levels: list[Json] = []
    most: int | None = None
    paying = True
    with bar(2 * len(users)) as advance:
        for count in sorted(users):
            drafting = forecast(count, None)
            alone = forecast(count, 0)
            speedup = round(number_at(drafting, "total") / number_at(alone, "total"), 4)
            level: Json = {"users": count, "speedup": speedup}
            levels.append(level | {"drafting": drafting, "alone": alone})
            paying = paying and speedup >= PAYS
            if paying:
                most = count
    result = {
        "step_ms": round(costs.seconds(1) * 1e3, 4),
        "alpha": alpha,
        "round_trip_ms": round_trip_ms,
        "draft_ms": draft_ms,
        "pause_ms": pause_ms,
        "drafters": drafters,
        "tokens": tokens,
        "prompt_tokens": prompt_tokens,
        "levels": levels,
        "drafting_pays_up_to": most,
    }
    smallest = counted(min(users), "user")
    verdict = f"Drafting does not pay for {smallest}."
    if most is not None:
        verdict = f"Drafting pays for up to {counted(most, 'user')}."
    print_result(result, [*columns(levels), verdict], as_json=json)


# --- recommend


@click.command()
@option(
    "--target",
    str,
    "FILE|NAME",
    "GGUF file, or name of a model or repository (default: list what is known).",
    completion=local_models,
)
@option("--step-ms", POSITIVE_MILLISECONDS, "MS", "Target's time per step (default: see above).")
@option("--chip", str, "NAME", "Chip of the drafter's machine (default: a guess).")
@option("--round-trip-ms", MILLISECONDS, "MS", "Network round trip.", 0.5)
@json_option
def recommend(
    target: str | None, step_ms: float | None, chip: str | None, round_trip_ms: float, json: bool
) -> None:
    """Which drafter suits a target, and what would it bring?

    Known pairs with their published acceptance, drafting speed by chip, and the speed-up that a
    simulation expects, as a range. Each number has its kind (measured, published, given or
    estimated) and its source. A step's time is --step-ms; else a file is loaded and measured; else
    it is that of known machines.
    """
    from specmesh.bench.recommend import given, known, report, rows, sources, summary

    chips = object_at(known(), "chips")
    if chip is not None and chip not in chips:
        names = ", ".join(chips)
        raise click.UsageError(
            f"no speed of {chip!r} is known: give one of {names}, or `specmesh plan` --draft-ms"
        )
    if target is None:
        lines = aligned([("target", "drafter", "result"), *summary()])
        print_result(known(), lines, as_json=json)
        return
    name = target
    metadata: dict[str, str] = {}
    step: StepTimes | None = None
    if step_ms is not None:
        step = given(step_ms)
    if target == "bundled" or target.endswith(".gguf"):
        path = Path(bundled("target.gguf"))
        if target != "bundled":
            path = Path(resolve(target, models_dir()))
        name = path.stem
        metadata = _metadata(path)
        step = step or _measured(path)
    result = report(name, metadata, step, chip, round_trip_ms)
    lines = [f"{name}: {result['family'] or 'unknown family'}, by {result['known_by']}"]
    if result["pairs"]:
        lines += table(rows(result))
    lines += sources(result)
    lines += map(str, list_at(result, "advice"))
    print_result(result, lines, as_json=json)


def _metadata(path: Path) -> dict[str, str]:
    from specmesh import logs
    from specmesh.engines.llama.library import library

    logs.configure("error")
    library()
    from specmesh.engines.llama.model import metadata

    return metadata(path)


def _measured(path: Path) -> "StepTimes":
    """Load a target and measure its steps, as a verifier does at its start."""
    from specmesh.bench.recommend import StepTimes
    from specmesh.core.draft_length.step_costs import StepCosts
    from specmesh.engines.base import DEFAULT_CTX
    from specmesh.engines.load import load_verifier
    from specmesh.engines.steps import calibrate

    costs = StepCosts()
    settings = ModelSettings(
        engine="llama", model=str(path), ctx=DEFAULT_CTX, max_sessions=1, gpu_layers=-1
    )
    with closing(load_verifier(settings, lambda _: None)) as engine:
        calibrate(engine, costs)
        return StepTimes(costs, "measured", f"{path.name} here, on {engine.info.backend}")
