"""`specmesh discover`: the verifiers that announce themselves in the local network. Thin functions."""

import json
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from specmesh.discovery import Announcement

SCHEMA_VERSION = 1


@click.command()
@click.option(
    "--timeout",
    type=click.FloatRange(0.1, 60.0),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Listen so long.",
)
@click.option(
    "--interface",
    "interfaces",
    multiple=True,
    metavar="ADDRESS",
    help="Only in the network of this address of the machine (default: in all).",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
@click.pass_context
def discover(ctx: click.Context, timeout: float, interfaces: tuple[str, ...], as_json: bool) -> None:
    """List the verifiers that announce themselves (`specmesh verifier --announce`), and say how to pair with them.
    Nothing is connected to. Exit code 69 where none is found."""
    from specmesh.discovery import find
    from specmesh.errors import DaemonUnreachable

    found = find(timeout, interfaces)
    paired = _paired()
    if as_json:
        rows = [{**one.as_json(), "paired": one.key in paired} for one in found]
        click.echo(json.dumps({"schema_version": SCHEMA_VERSION, "verifiers": rows}, indent=2))
    else:
        for one in found:
            click.echo("\n".join(_lines(one, paired=one.key in paired)))
    if not found:
        click.echo("specmesh: no verifier announces itself: start one with `specmesh verifier --announce`", err=True)
        ctx.exit(DaemonUnreachable.exit_code)


def _lines(one: "Announcement", *, paired: bool) -> list[str]:
    """What is there, and what to type."""
    from specmesh.privacy import is_loopback
    from specmesh.wire.messages import PROTOCOL_VERSION

    head = f"{one.name}: {one.model or 'no model named'} at {one.address}, key {one.key or 'none'}"
    if one.protocol != PROTOCOL_VERSION:
        return [f"{head}; it speaks protocol version {one.protocol}, this specmesh {PROTOCOL_VERSION}"]
    if paired or is_loopback(one.host):
        return [head, f"  specmesh drafter --connect {one.address}"]
    return [head, f"  specmesh pair {one.host} CODE  # with the code that `specmesh pair` shows there"]


def _paired() -> set[str]:
    """Fingerprints of the verifiers that are trusted here, wherever they listen: CURVE proves keys, whatever is
    announced."""
    from specmesh.discovery import fingerprint
    from specmesh.errors import ConfigError
    from specmesh.keys import Listing, find_keys

    try:
        keys = find_keys(None)
        listed = keys.entries(Listing.VERIFIERS) if keys is not None else []
    except ConfigError:
        return set()  # `specmesh keys list` says what is wrong
    return {fingerprint(bytes.fromhex(key)) for key, _ in listed}
