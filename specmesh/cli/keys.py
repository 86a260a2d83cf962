"""`specmesh keys`: this machine's key, and whom it trusts. Thin functions, like those of cli.py."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from specmesh.errors import ConfigError, InsecureKeys

if TYPE_CHECKING:
    from specmesh.keys import KeyFolder

F = TypeVar("F", bound=Callable[..., object])

SERVICE_USER = "specmesh"
"""Who runs the machine's own service; on a Mac it is the user who installs it with sudo."""


@click.group()
def keys() -> None:
    """Make this machine's key, and say which others may connect. Running daemons follow within a second."""


def folder_options(command: F) -> F:
    """Which folder of keys a command is about."""
    for option in (
        click.option("--system", is_flag=True, help="The keys of the machine's own service instead of this user's."),
        click.option(
            "--keys",
            "path",
            type=click.Path(path_type=Path),
            metavar="DIR",
            help="Another folder, as the daemons' --keys.",
        ),
    ):
        command = option(command)
    return command


def folder_of(path: Path | None, system: bool) -> "KeyFolder":
    """The folder that these options mean, with the key that the machine's own service is given, if it is given one."""
    from specmesh.keys import KeyFolder, key_folders
    from specmesh.service.credential import service_credential

    given = service_credential() if system and path is None else None
    return KeyFolder(path or key_folders()[int(system)], given)


def with_key(folder: "KeyFolder", system: bool) -> "tuple[KeyFolder, bool]":
    """The folder, with a key made where there was none; whether there was none."""
    try:
        folder.identity()
    except InsecureKeys:
        raise
    except ConfigError:
        folder.new(owner=_service_user() if system else None)
        return folder, True
    folder.make(_service_user() if system else None)
    return folder, False


@keys.command()
@click.option("--force", is_flag=True, help="Replace the key that is there: nobody who knows that one lets this in.")
@folder_options
def new(force: bool, path: Path | None, system: bool) -> None:
    """Make this machine's key and print its public half, which others are told."""
    folder = folder_of(path, system)
    made = folder.new(replace=force, owner=_service_user() if system else None)
    click.echo(f"wrote {folder.path}", err=True)
    if force:
        click.echo("daemons that run keep the old key: restart them, and tell their peers the new one", err=True)
    click.echo(made.public.hex())


@keys.command()
@folder_options
def show(path: Path | None, system: bool) -> None:
    """Print this machine's public key, and nothing else."""
    click.echo(folder_of(path, system).identity().public.hex())


@keys.command()
@click.argument("key")
@click.option("--name", metavar="NAME", help="What to call a drafter's machine (default: how its key begins).")
@click.option(
    "--verifier",
    metavar="tcp://HOST:PORT",
    help="It is the key of the verifier at this address, which a drafter here may trust.",
)
@folder_options
def allow(key: str, name: str | None, verifier: str | None, path: Path | None, system: bool) -> None:
    """Let the drafter with this public KEY connect to the verifier here; or with --verifier, trust that verifier."""
    from specmesh.keys import Listing, parse_key
    from specmesh.privacy import host_of

    if name and verifier:
        raise click.UsageError("--name is for a drafter's key, --verifier for a verifier's: leave one out")
    told = parse_key(key)
    if verifier is not None:
        host_of(verifier, "--verifier")
        folder_of(path, system).allow(Listing.VERIFIERS, told, verifier)
        return
    folder_of(path, system).allow(Listing.DRAFTERS, told, name or told[:8])


@keys.command()
@click.argument("who", metavar="NAME|KEY")
@folder_options
def revoke(who: str, path: Path | None, system: bool) -> None:
    """Take back what was allowed, by a name, an address or a key; a connection that is up is cut."""
    folder = folder_of(path, system)
    gone = folder.revoke(who)
    if not gone:
        raise ConfigError(f"{who} is not on the lists in {folder.path}: see `specmesh keys list`")
    for listing, label in gone:
        click.echo(f"revoked {label} ({listing})", err=True)


@keys.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
@folder_options
def list_command(as_json: bool, path: Path | None, system: bool) -> None:
    """List the drafters that are let in here, and the verifiers that are trusted."""
    from specmesh.keys import Listing

    folder = folder_of(path, system)
    found = {listing: folder.entries(listing) for listing in Listing}
    if as_json:
        import json

        told = {str(listing): [{"key": key, "label": label} for key, label in one] for listing, one in found.items()}
        click.echo(json.dumps({"schema_version": 1, "folder": str(folder.path), **told}, indent=2))
        return
    for listing, one in found.items():
        for key, label in one:
            click.echo(f"{str(listing).removesuffix('s'):<9} {label:<24} {key}")
    if not any(found.values()):
        click.echo(f"specmesh: nobody is on the lists in {folder.path}", err=True)


def _service_user() -> tuple[int, int] | None:
    """User and group id of the machine's own service; None where root does not ask, or there is none yet."""
    import pwd

    if os.geteuid() != 0:
        return None
    name = os.environ.get("SUDO_USER", "root") if sys.platform == "darwin" else SERVICE_USER
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        return None
    return found.pw_uid, found.pw_gid
