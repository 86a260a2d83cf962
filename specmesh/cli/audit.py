"""`specmesh audit`: is the text with drafts the verifier's own? A thin function, like those of cli.py."""

from pathlib import Path

import click

from specmesh.cli.options import FOUND, json_option, print_result, prompts_option, socket_option
from specmesh.cli.sampling_options import sampling_options


def _ways(_: click.Context, __: click.Parameter, text: str) -> tuple[int | str, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part == "auto" or (part.isdecimal() and 0 < int(part) <= 16) for part in parts):
        raise click.BadParameter(f"{text!r} is no list of auto and numbers from 1 to 16 like auto,4,8")
    return tuple(dict.fromkeys(part if part == "auto" else int(part) for part in parts))


@click.command()
@prompts_option
@click.option("--num-prompts", type=click.IntRange(1), metavar="N", help="The first N only.")
@click.option("--tokens", type=click.IntRange(1), default=128, show_default=True, metavar="N", help="Per text.")
@click.option(
    "--draft-n",
    "ways",
    default="auto,4,8",
    show_default=True,
    metavar="auto|N[,...]",
    callback=_ways,
    help="Drafts per step, one way after the other.",
)
@sampling_options(temperature=0.0)
@socket_option(f"The daemon's local socket (default: {FOUND}).")
@json_option("SPECMESH_AUDIT_JSON")
@click.pass_context
def audit(
    ctx: click.Context,
    prompts: Path | None,
    num_prompts: int | None,
    tokens: int,
    ways: tuple[int | str, ...],
    sampling: dict[str, object],
    socket_path: Path | None,
    as_json: bool,
) -> None:
    """Compare the texts of a live pair with the verifier's alone, token by token; exit code 1 where one is wrong.

    Where two texts part, the verifier is asked again: a near tie is a choice so close that kernels of another width,
    as their logits differ on these very texts, can turn it. Everything else is an error.
    """
    from specmesh.bench.audit import Plan
    from specmesh.bench.audit import audit as run
    from specmesh.bench.measure import has_drafter
    from specmesh.bench.progress import bar
    from specmesh.bench.prompts import BUILT_IN, read_prompts
    from specmesh.client import Client
    from specmesh.errors import DaemonUnreachable

    if sampling.get("strategy", "deterministic") not in ("deterministic", "greedy"):
        raise click.UsageError(f"--strategy {sampling['strategy']} does not promise the same text: audit another")
    texts = (read_prompts(prompts) if prompts is not None else list(BUILT_IN))[:num_prompts]
    client = Client(socket_path)
    snapshot = client.get("/stats")
    if not has_drafter(snapshot):
        raise DaemonUnreachable("no drafter is attached, so there is nothing to compare: start specmesh drafter")
    plan = Plan(tuple(texts), tokens, ways, sampling)
    with bar(plan.texts) as advance:
        result = run(client, plan, snapshot, advance)
    print_result(result, as_json=as_json)
    ctx.exit(int(result.failed))
