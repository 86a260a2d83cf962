"""`specmesh keys`, `pair`, `service`, `models` and `doctor`: what a machine needs, and has."""

import os
import pwd
import socket
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specmesh.cli.config import ROLE, daemon_context
from specmesh.cli.model_names import pulled_repositories
from specmesh.cli.options import FILE, aligned, flag, json_option, option, print_result, table
from specmesh.core.fields import Json
from specmesh.errors import ConfigError, DaemonUnreachable, NotThereYet, WrongCode, pip_install
from specmesh.models.files import entries
from specmesh.paths import models_dir
from specmesh.security.addresses import (
    bracketed,
    check_one_network,
    endpoint,
    host_of,
    is_loopback,
    listen,
)
from specmesh.security.keys import KeyFolder, Listing, find_keys, key_folders, parse_key
from specmesh.terminal import progress

if TYPE_CHECKING:
    from specmesh.security.pairing import PairingIntroduction

PAIRING_CONNECT_S = 5.0


@click.group()
def keys() -> None:
    """Make this machine's key, and list the peers that may connect.

    Running daemons follow within a second.
    """


def _folder(_ctx: click.Context, _option: click.Parameter, path: Path | None) -> KeyFolder:
    return KeyFolder(path or key_folders()[0])


_folder_option = option(
    "--keys",
    FILE,
    "DIR",
    "Use this folder of keys, as with the daemons' --keys (default: the user's).",
    name="folder",
    callback=_folder,
)


@keys.command()
@flag("--force", "Replace an existing key; peers that know the old one will refuse this machine.")
@_folder_option
def new(force: bool, folder: KeyFolder) -> None:
    """Make this machine's key pair and print the public key."""
    identity = folder.new(replace=force, owner=_owner(folder))
    click.echo(f"wrote {folder.path}", err=True)
    if force:
        click.echo(
            "running daemons keep the old key: restart them, and give their peers the new one",
            err=True,
        )
    click.echo(identity.public.hex())


@keys.command()
@_folder_option
def show(folder: KeyFolder) -> None:
    """Print this machine's public key."""
    click.echo(folder.identity().public.hex())


@keys.command()
@click.argument("key")
@option("--name", str, "NAME", "Name for the drafter (default: the beginning of its key).")
@option(
    "--verifier", str, "tcp://HOST:PORT", "Trust KEY as the key of the verifier at this address."
)
@_folder_option
def allow(key: str, name: str | None, verifier: str | None, folder: KeyFolder) -> None:
    """Allow the drafter with this public KEY to connect here.

    With --verifier, trust that verifier.
    """
    if name and verifier:
        raise click.UsageError(
            "--name is for a drafter's key, --verifier for a verifier's: leave one out"
        )
    public = parse_key(key)
    if verifier is None:
        folder.allow(Listing.DRAFTERS, public, name or public[:8])
    else:
        host_of(verifier, "--verifier")
        folder.allow(Listing.VERIFIERS, public, verifier)


@keys.command()
@click.argument("peer", metavar="NAME|KEY")
@_folder_option
def revoke(peer: str, folder: KeyFolder) -> None:
    """Revoke a peer by name, address or key; its open connections are cut."""
    revoked = folder.revoke(peer)
    if not revoked:
        raise ConfigError(
            f"{peer} is not on the lists in {folder.path}", "see `specmesh keys list`"
        )
    for listing, label in revoked:
        click.echo(f"revoked {label} ({listing})", err=True)


@keys.command("list")
@json_option
@_folder_option
def list_command(json: bool, folder: KeyFolder) -> None:
    """List the drafters that are allowed here, and the verifiers that are trusted."""
    found: Json = {"folder": str(folder.path)}
    rows: list[tuple[str, str, str]] = []
    for listing in Listing:
        entries: list[Json] = []
        for key, label in folder.entries(listing):
            entries.append({"key": key, "label": label})
            rows.append((listing.removesuffix("s"), label, key))
        found[listing] = entries
    lines = aligned(rows) or [f"nobody is on the lists in {folder.path}"]
    print_result(found, lines, as_json=json)


def _owner(folder: KeyFolder) -> tuple[int, int] | None:
    """Return the user and group id of the system's service if the keys are its own.

    Return None if there is no such user yet, or if this user is not root.
    """
    if folder.path != key_folders()[1] or os.geteuid() != 0:
        return None
    name = os.environ.get("SUDO_USER", "root") if sys.platform == "darwin" else "specmesh"
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        return None
    return found.pw_uid, found.pw_gid


# --- pairing


@click.command()
@click.argument("host", required=False)
@click.argument("code", required=False)
@option(
    "--address",
    str,
    "HOST[:PORT]",
    "On the verifier's machine: address to listen on (default: the one in the verifier's settings, "
    "or else this machine's address in its network; port 7072).",
)
@option(
    "--keys",
    FILE,
    "DIR",
    "Use this folder of keys (default: as the daemon on this machine does).",
    name="path",
)
def pair(host: str | None, code: str | None, address: str | None, path: Path | None) -> None:
    """Introduce two machines to each other.

    Run it without arguments on the verifier's machine, which shows a HOST and CODE; then with these
    on the drafter's machine. Keys are made if there are none.
    """
    if host is not None and address is not None:
        raise click.UsageError("--address is for the verifier's machine, which takes no HOST")
    role = "verifier" if host is None else "drafter"
    settings = daemon_context(role).params
    folder = _used_folder(path or settings["keys"])
    if not folder.has_key():
        folder.new(owner=_owner(folder))
        click.echo(
            "This machine has a new key: a daemon that runs uses it once it is started again.",
            err=True,
        )
    if host is None:
        _wait(folder, settings["bind"], address)
    else:
        _ask(folder, host, code or click.prompt("Code", err=True))


def _used_folder(path: Path | None) -> KeyFolder:
    """Return the folder of keys that a daemon on this machine uses."""
    if path is not None:
        return KeyFolder(path)
    return find_keys(None) or KeyFolder(key_folders()[0])


def _wait(folder: KeyFolder, bind: str, address: str | None) -> None:
    """Wait for the drafter's machine, show the code for it, and allow its key."""
    from specmesh.security.pairing import PORT, PairingIntroduction, new_code, wait

    bound, wire_port = endpoint(bind)
    local = is_loopback(bound)
    if address is None:
        address = bracketed(_own_address() if local else bound)
    host, port = _endpoint(address, "--address")
    check_one_network(f"tcp://{bracketed(host)}:{port}", "--address")
    public = folder.identity().public.hex()
    own = PairingIntroduction("verifier", public, socket.gethostname(), wire_port or 0)
    shown = bracketed(host)
    if port != PORT:
        shown += f":{port}"
    with _listener(host, port) as listener:
        code = new_code()
        click.echo(
            f"On the drafter's machine, within five minutes:\n\n  specmesh pair {shown} {code}\n"
        )
        drafter = wait(listener, code, own, partial(_admit, folder))
    name = folder.listed(Listing.DRAFTERS)[drafter.key]
    click.echo(f"Paired with {name}. To take it back: specmesh keys revoke {name}")
    if local:
        click.echo(
            f"Next: specmesh verifier --model FILE --bind tcp://{bracketed(host)}:{wire_port}"
        )


def _listener(host: str, port: int) -> socket.socket:
    from specmesh.daemons.link.names import numbers_here

    try:
        return listen(numbers_here(host, "--address")[0], port, "--address")
    except NotThereYet as error:
        raise ConfigError(error.what, "name an address of this machine by --address") from None


def _ask(folder: KeyFolder, host: str, code: str) -> None:
    """Introduce this machine to the verifier's that waits, and trust its key."""
    from specmesh.security.pairing import PairingIntroduction, ask

    name, port = _endpoint(host, "HOST")
    public = folder.identity().public.hex()
    own = PairingIntroduction("drafter", public, socket.gethostname())
    try:
        with socket.create_connection((name, port), PAIRING_CONNECT_S) as connection:
            verifier = ask(connection, code, own)
    except WrongCode as error:
        remedy = "run `specmesh pair` on the verifier's machine again for a new one"
        raise WrongCode(f"{error}: {remedy}") from None
    except OSError as error:
        reason = error.strerror or error
        raise DaemonUnreachable(
            f"nobody waits at {name}:{port} ({reason})",
            "run `specmesh pair` on the verifier's machine first; "
            "a code is good once, for five minutes",
        ) from None
    address = f"tcp://{bracketed(name)}:{verifier.port}"
    folder.allow(Listing.VERIFIERS, verifier.key, address, replace=True)
    click.echo(f"Paired with {verifier.name}. Start the drafter with --connect {address}")


def _admit(folder: KeyFolder, drafter: "PairingIntroduction") -> None:
    """Allow the drafter, under a name that no other key has."""
    name = drafter.name
    for key, label in folder.listed(Listing.DRAFTERS).items():
        if label == drafter.name and key != drafter.key:
            name = f"{drafter.name}-{drafter.key[:8]}"
    folder.allow(Listing.DRAFTERS, drafter.key, name)


def _endpoint(text: str, option: str) -> tuple[str, int]:
    """Return the host and port of HOST[:PORT]. Raise ConfigError if it is no address."""
    from specmesh.security.pairing import PORT

    host, port = endpoint(f"tcp://{text}")
    if not port:
        host, port = endpoint(f"tcp://{text}:{PORT}")
    if not (host and port):
        raise ConfigError(
            f"{option} {text!r} is not an address",
            "write HOST or HOST:PORT, IPv6 as [ADDRESS]:PORT",
        )
    return host, port


def _own_address() -> str:
    """Return the address by which this machine reaches others; nothing is sent for it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


# --- services


@click.command()
@click.argument(
    "action",
    type=click.Choice(["install", "uninstall", "start", "stop", "restart", "status", "logs"]),
)
@ROLE
@click.option("--system/--user", default=False, help="The machine's own service, or this user's.")
@flag("--dry-run", "Only print the files and commands, write and run nothing.")
def service(action: str, role: str, system: bool, dry_run: bool) -> None:
    """Run a daemon as a service of systemd or launchd.

    `install` writes the service's files, and a settings file if there is none; `uninstall` stops it
    and removes them. `status` shows the service manager's view, `logs` the newest lines. `restart`
    takes over changed settings.
    """
    from specmesh.service import install, launchd_service, run, systemd_service, uninstall

    if sys.platform == "darwin":
        found = launchd_service(role, system)
    else:
        found = systemd_service(role, system)
    try:
        if action == "install":
            install(found, role, dry_run)
            start = f"specmesh service start {role}"
            if system:
                start += " --system"
            click.echo(f"Settings: {found.settings}. Then: {start}")
        elif action == "uninstall":
            uninstall(found, dry_run)
        else:
            run(found.commands[action], dry_run, found.state)
    except PermissionError as error:
        raise ConfigError(
            f"{error.filename}: {error.strerror}", "--system needs root, use sudo"
        ) from None


# --- models


@click.group()
def models() -> None:
    """Download GGUF models from the Hugging Face hub, and list them."""


@models.command()
@click.argument("hub_id", shell_complete=pulled_repositories)
@click.argument("file", required=False)
def pull(hub_id: str, file: str | None) -> None:
    """Download model HUB_ID (OWNER/NAME) and print its path; FILE names one of several GGUF files.

    An interrupted download goes on from its end; checksums are verified. HF_TOKEN, HF_ENDPOINT and
    HF_HUB_OFFLINE have huggingface_hub's meaning.
    """
    try:
        from specmesh.models.pull import pull as get
    except ImportError as error:
        raise ConfigError("huggingface_hub is not installed", pip_install("hub")) from error
    with progress() as shown:
        path = get(hub_id, file, models_dir().absolute(), partial(shown.show, unit="bytes"))
    click.echo(path)


@models.command("list")
@json_option
def list_models(json: bool) -> None:
    """List the models in the folder SPECMESH_MODELS_DIR (default: in specmesh's cache).

    --model takes their names.
    """
    folder = models_dir().absolute()
    found = [entry._asdict() | {"path": str(entry.path)} for entry in entries(folder)]
    lines = table(found) or [f"no models in {folder}: `specmesh models pull` gets them"]
    print_result({"folder": str(folder), "models": found}, lines, as_json=json)


# --- doctor


@click.command("doctor")
@json_option
@click.pass_context
def doctor_command(ctx: click.Context, json: bool) -> None:
    """Check what is installed, set, running and reachable; exit code 1 if a check fails."""
    from specmesh import logs
    from specmesh.cli import doctor

    logs.configure("error")
    checks = list(doctor.examine())
    results = [check._asdict() for check in checks]
    print_result({"checks": results}, doctor.lines(checks), as_json=json)
    failed = any(check.status == "fail" for check in checks)
    ctx.exit(int(failed))
