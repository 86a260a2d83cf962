"""`specmesh pair`: introduces a verifier's machine and a drafter's to each other. Thin functions."""

import socket
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specmesh.cli.keys import folder_of, folder_options, with_key

if TYPE_CHECKING:
    from specmesh.keys import KeyFolder
    from specmesh.pairing import Introduction


@click.command()
@click.argument("host", required=False)
@click.argument("code", required=False)
@click.option(
    "--address",
    metavar="HOST[:PORT]",
    help="On the verifier's machine: where to wait (default: where the verifier's settings listen, or else this "
    "machine's address in its network; port 7072).",
)
@folder_options
@click.pass_context
def pair(
    ctx: click.Context, host: str | None, code: str | None, address: str | None, path: Path | None, system: bool
) -> None:
    """Introduce two machines to each other. On the verifier's, without arguments: shows a code. On the drafter's, with
    the HOST and CODE shown there. Keys are made where there are none."""
    from specmesh.cli.config import effective

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
    from specmesh.keys import Listing
    from specmesh.pairing import PORT, Introduction, new_code, wait
    from specmesh.privacy import is_loopback
    from specmesh.ways import endpoint

    listens, wire_port = endpoint(bind)
    alone = is_loopback(listens)
    host, port = _endpoint(address or (_own_address() if alone else listens), PORT)
    mine = Introduction("verifier", folder.identity().public.hex(), socket.gethostname(), wire_port or 0)
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
    from specmesh.errors import ConfigError
    from specmesh.privacy import check_one_network

    check_one_network(f"tcp://{_bracketed(host)}:{port}", "--address")
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigError(f"cannot wait at {host}:{port} ({error.strerror}): name another --address") from None


def _ask(folder: "KeyFolder", host: str, code: str) -> None:
    """The drafter's side."""
    from specmesh.errors import DaemonUnreachable, Refused
    from specmesh.keys import Listing
    from specmesh.pairing import PORT, Introduction, WrongCode, ask

    name, port = _endpoint(host, PORT)
    mine = Introduction("drafter", folder.identity().public.hex(), socket.gethostname())
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


def _admit(folder: "KeyFolder", theirs: "Introduction") -> None:
    """Allow the drafter, under a name that is no other key's."""
    from specmesh.keys import Listing

    taken = {label for key, label in folder.listed(Listing.DRAFTERS).items() if key != theirs.key}
    names = (theirs.name if number == 1 else f"{theirs.name}-{number}" for number in range(1, len(taken) + 2))
    name = next(name for name in names if name not in taken)
    folder.allow(Listing.DRAFTERS, theirs.key, name)


def _told_failure(what: str, left: int) -> None:
    click.echo(f"specmesh: {what}; {left} tries left", err=True)


def _endpoint(text: str, port: int) -> tuple[str, int]:
    """HOST or HOST:PORT; raises ConfigError."""
    from specmesh.errors import ConfigError
    from specmesh.ways import endpoint

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
