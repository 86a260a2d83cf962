"""`specmesh plan`. A thin function, like those of cli.py."""

from pathlib import Path

import click

from specmesh.cli.imagined_pair_options import STEPS_FILE, draft_ms_option, rtt_ms_option
from specmesh.cli.options import FOUND, json_option, print_result, socket_option


def _users(_: click.Context, __: click.Parameter, text: str) -> tuple[int, ...]:
    found = tuple(int(part) if part.isdecimal() else 0 for part in text.split(","))
    if not all(1 <= count <= 10_000 for count in found):
        raise click.BadParameter(f"{text!r} is no list of numbers from 1 to 10000 like 1,16,256")
    return found


@click.command()
@click.option(
    "--steps",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help=f"{STEPS_FILE} (default: as the running verifier has measured them).",
)
@click.option(
    "--users",
    default="1,2,4,8,16,32,64,128,256",
    show_default=True,
    metavar="N[,N...]",
    callback=_users,
    help="How many ask at once, each for one text after the other.",
)
@click.option(
    "--tokens", type=click.IntRange(8, 100_000), default=128, show_default=True, metavar="N", help="Of each text."
)
@click.option(
    "--prompt-tokens", type=click.IntRange(1, 100_000), default=64, show_default=True, metavar="N", help="Before it."
)
@click.option(
    "--alpha",
    type=click.FloatRange(0.0, 1.0),
    default=0.75,
    show_default=True,
    metavar="P",
    help="Probability that a draft stands.",
)
@draft_ms_option
@rtt_ms_option(5.0)
@click.option(
    "--pause-ms",
    type=click.FloatRange(0),
    default=0.5,
    show_default=True,
    metavar="MS",
    help="Between two steps; `stats --json` has it as gap_ms.",
)
@click.option(
    "--drafters", type=click.IntRange(1), metavar="N", help="That all users share (default: each has their own)."
)
@click.option(
    "--max-sessions",
    type=click.IntRange(1),
    metavar="N",
    help="The verifier's; users beyond wait for a place (default: it has places for all).",
)
@socket_option(f"The verifier's local socket, without --steps (default: {FOUND}).")
@json_option("SPECMESH_PLAN_JSON")
def plan(
    steps: Path | None,
    users: tuple[int, ...],
    tokens: int,
    prompt_tokens: int,
    alpha: float,
    draft_ms: float,
    rtt_ms: float,
    pause_ms: float,
    drafters: int | None,
    max_sessions: int | None,
    socket_path: Path | None,
    as_json: bool,
) -> None:
    """How many users can one verifier serve, how fast, and up to how many do drafts pay? A simulation.

    The verifier's own scheduler, sessions and policies decide; only models, network and clocks are imagined. A step of
    more rows than were measured costs as much more as the widest measured ones say.
    """
    from specmesh.bench.progress import bar
    from specmesh.bench.steps import costs_of, measured, read_costs
    from specmesh.client import Client
    from specmesh.core.forecast import Site, Texts
    from specmesh.plan import simulate

    costs = costs_of(measured(Client(socket_path).get("/stats"))) if steps is None else read_costs(steps)
    site = Site(costs, draft_ms / 1e3, rtt_ms / 1e3, alpha, pause_ms / 1e3, drafters, max_sessions)
    with bar(2 * len(users)) as advance:
        found = simulate(site, Texts(prompt_tokens, tokens), users, advance)
    print_result(found, as_json=as_json)
