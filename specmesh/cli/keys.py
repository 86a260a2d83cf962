"""`specmesh keys` and `specmesh pair`: this machine's key, whom it trusts, and how two machines are introduced."""

import os
import pwd
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specmesh.cli.config import effective
from specmesh.cli.options import combined, json_option, path_option, print_json
from specmesh.errors import ConfigError, DaemonUnreachable, InsecureKeys, Refused
from specmesh.security.addresses import check_one_network, endpoint, host_of, is_loopback

if TYPE_CHECKING:
    from specmesh.security.keys import KeyFolder
    from specmesh.security.pairing import PairingIntroduction

SERVICE_USER = "specmesh"
"""Who runs the machine's own service; on a Mac it is the user who installs it with sudo."""


@click.group()
def keys() -> None:
    """Make this machine's key, and list which others may connect. Running daemons follow within a second."""


_folder_options = combined(
    path_option("--keys", "DIR", "Use this folder of keys, as with the daemons' --keys.", "path"),
    click.option("--system", is_flag=True, help="Use the keys of the machine's own service instead of this user's."),
)


def folder_of(path: Path | None, system: bool) -> "KeyFolder":
    """The folder that these options mean, with the key that the machine's own service is given, if it is given one."""
    from specmesh.security.keys import KeyFolder, key_folders
    from specmesh.service.systemd import service_credential

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
@click.option(
    "--force", is_flag=True, help="Replace an existing key; peers that know the old one will refuse this machine."
)
@_folder_options
def new(force: bool, path: Path | None, system: bool) -> None:
    """Make this machine's key pair and print the public key."""
    folder = folder_of(path, system)
    made = folder.new(replace=force, owner=_service_user() if system else None)
    click.echo(f"wrote {folder.path}", err=True)
    if force:
        click.echo("daemons that run keep the old key: restart them, and tell their peers the new one", err=True)
    click.echo(made.public.hex())


@keys.command()
@_folder_options
def show(path: Path | None, system: bool) -> None:
    """Print this machine's public key."""
    click.echo(folder_of(path, system).identity().public.hex())


@keys.command()
@click.argument("key")
@click.option("--name", metavar="NAME", help="Name for the drafter (default: the beginning of its key).")
@click.option(
    "--verifier",
    metavar="tcp://HOST:PORT",
    help="Trust KEY as the key of the verifier at this address.",
)
@_folder_options
def allow(key: str, name: str | None, verifier: str | None, path: Path | None, system: bool) -> None:
    """Allow the drafter with this public KEY to connect here; or, with --verifier, trust that verifier."""
    from specmesh.security.keys import Listing, parse_key

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
@_folder_options
def revoke(who: str, path: Path | None, system: bool) -> None:
    """Revoke what was allowed, by name, address or key; open connections are cut."""
    folder = folder_of(path, system)
    gone = folder.revoke(who)
    if not gone:
        raise ConfigError(f"{who} is not on the lists in {folder.path}: see `specmesh keys list`")
    for listing, label in gone:
        click.echo(f"revoked {label} ({listing})", err=True)


@keys.command("list")
@json_option
@_folder_options
def list_command(json: bool, path: Path | None, system: bool) -> None:
    """List the drafters that are allowed here, and the verifiers that are trusted."""
    from specmesh.security.keys import Listing

    folder = folder_of(path, system)
    found = {listing: folder.entries(listing) for listing in Listing}
    if json:
        told = {str(listing): [{"key": key, "label": label} for key, label in one] for listing, one in found.items()}
        print_json({"schema_version": 1, "folder": str(folder.path), **told})
        return
    for listing, one in found.items():
        for key, label in one:
            click.echo(f"{str(listing).removesuffix('s'):<9} {label:<24} {key}")
    if not any(found.values()):
        click.echo(f"specmesh: nobody is on the lists in {folder.path}", err=True)


def _service_user() -> tuple[int, int] | None:
    """User and group id of the machine's own service; None where root does not ask, or there is none yet."""
    if os.geteuid() != 0:
        return None
    name = os.environ.get("SUDO_USER", "root") if sys.platform == "darwin" else SERVICE_USER
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        return None
    return found.pw_uid, found.pw_gid


# --- pairing


@click.command()
@click.argument("host", required=False)
@click.argument("code", required=False)
@click.option(
    "--address",
    metavar="HOST[:PORT]",
    help="On the verifier's machine: address to listen on (default: where the verifier's settings listen, or else this "
    "machine's address in its network; port 7072).",
)
@_folder_options
@click.pass_context
def pair(
    ctx: click.Context, host: str | None, code: str | None, address: str | None, path: Path | None, system: bool
) -> None:
    """Introduce two machines to each other.

    Without arguments on the verifier's machine, which shows a HOST and CODE; then with these on the drafter's machine.
    Keys are made if there are none.
    """
    if host is not None and address is not None:
        raise click.UsageError("--address is for the verifier's machine, which takes no HOST")
    settings = effective(ctx.find_root(), "verifier" if host is None else "drafter", None)
    configured = None if system else settings["keys"][0]
    folder, made = with_key(folder_of(path or (Path(configured) if configured else None), system), system)
    if host is None:
        _wait(folder, str(settings["bind"][0]), address, made)
    else:
        _ask(folder, host, code or click.prompt("Code", err=True))


def _wait(folder: "KeyFolder", bind: str, address: str | None, made: bool) -> None:
    """The verifier's side; `bind` is where the verifier itself listens, `made` whether its key is new."""
    from specmesh.security.keys import Listing
    from specmesh.security.pairing import PORT, PairingIntroduction, new_code, wait

    listens, wire_port = endpoint(bind)
    alone = is_loopback(listens)
    host, port = _endpoint(address or (_own_address() if alone else listens), PORT)
    mine = PairingIntroduction("verifier", folder.identity().public.hex(), socket.gethostname(), wire_port or 0)
    with _listener(host, port) as listener:
        code, shown = new_code(), _bracketed(host) + (f":{port}" if port != PORT else "")
        click.echo(f"On the drafter's machine, within five minutes:\n\n  specmesh pair {shown} {code}\n")
        theirs = wait(listener, code, mine, lambda theirs: _admit(folder, theirs), _told_failure)
    name = folder.listed(Listing.DRAFTERS)[theirs.key]
    click.echo(f"Paired with {name}. To take it back: specmesh keys revoke {name}")
    if made:
        click.echo("This machine has a key now, which a verifier that runs already uses from its next start on.")
    if alone:
        start = f"--bind tcp://{_bracketed(host)}:{wire_port}"
        click.echo(f"The verifier listens on this machine only: start it with {start}")


def _listener(host: str, port: int) -> socket.socket:
    """Where the drafter is waited for; raises ConfigError."""
    check_one_network(f"tcp://{_bracketed(host)}:{port}", "--address")
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigError(f"cannot wait at {host}:{port} ({error.strerror}): name another --address") from None


def _ask(folder: "KeyFolder", host: str, code: str) -> None:
    """The drafter's side."""
    from specmesh.security.keys import Listing
    from specmesh.security.pairing import PORT, PairingIntroduction, WrongCode, ask

    name, port = _endpoint(host, PORT)
    mine = PairingIntroduction("drafter", folder.identity().public.hex(), socket.gethostname())
    try:
        with socket.create_connection((name, port), 5.0) as connection:
            theirs = ask(connection, code, mine)
    except WrongCode:
        raise Refused(
            "that is not the code shown there: look again, and mind that it is good for three tries"
        ) from None
    except OSError as error:
        raise DaemonUnreachable(
            f"nobody waits at {name}:{port} ({error.strerror or error}): run `specmesh pair` on the verifier's machine "
            "first; a code is good once, for five minutes"
        ) from None
    address = f"tcp://{_bracketed(name)}:{theirs.port}"
    same = [key for key, known in folder.entries(Listing.VERIFIERS) if Listing.VERIFIERS.same(known, address)]
    folder.allow(Listing.VERIFIERS, theirs.key, address, replace=True)
    click.echo(f"Paired with {theirs.name}. Start the drafter with --connect {address}")
    for key in set(same) - {theirs.key}:
        click.echo(f"The key known there before stays trusted. If it was replaced: specmesh keys revoke {key}")


def _admit(folder: "KeyFolder", theirs: "PairingIntroduction") -> None:
    """Allow the drafter, under a name that is no other key's."""
    from specmesh.security.keys import Listing

    taken = {label for key, label in folder.listed(Listing.DRAFTERS).items() if key != theirs.key}
    names = (theirs.name if number == 1 else f"{theirs.name}-{number}" for number in range(1, len(taken) + 2))
    name = next(name for name in names if name not in taken)
    folder.allow(Listing.DRAFTERS, theirs.key, name)


def _told_failure(what: str, left: int) -> None:
    click.echo(f"specmesh: {what}; {left} tries left", err=True)


def _endpoint(text: str, port: int) -> tuple[str, int]:
    """HOST or HOST:PORT; raises ConfigError."""
    bare = text.count(":") > 1 and not text.startswith("[")
    host, told = endpoint(f"tcp://[{text}]" if bare else f"tcp://{text}")
    if not host:
        raise ConfigError(f"{text!r} is no address: write HOST or HOST:PORT")
    return host, told or port


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _own_address() -> str:
    """The address by which this machine reaches others; nothing is sent for it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
