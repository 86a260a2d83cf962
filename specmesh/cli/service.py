"""`specmesh service`: the daemons as services that start with the machine or the user. Thin functions."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from specmesh.service.plan import Hand, Service

F = TypeVar("F", bound=Callable[..., object])


@click.group()
def service() -> None:
    """Run a daemon as a service of systemd or launchd."""


def _common(command: F) -> F:
    for option in reversed(
        [
            click.argument("role", type=click.Choice(["verifier", "drafter"])),
            click.option(
                "--system/--user", default=False, help="The machine's own service, or (default) one of this user."
            ),
            click.option("--dry-run", is_flag=True, help="Only say what would be written and run."),
            click.option("--root", type=click.Path(path_type=Path), hidden=True),
        ]
    ):
        command = option(command)
    return command


def _planned(role: str, system: bool, dry_run: bool, root: Path | None) -> "tuple[Service, Hand]":
    """The service and a hand that carries it out."""
    from specmesh.cli.config_file import template
    from specmesh.service.plan import Hand, Scope

    command = click.get_current_context().find_root().command
    assert isinstance(command, click.Group)
    settings = template(role, command.commands[role])
    scope = Scope.SYSTEM if system else Scope.USER
    if sys.platform == "darwin":
        from specmesh.service.launchd import launchd_service as planned
    else:
        from specmesh.service.systemd import systemd_service as planned
    return planned(role, scope, settings), Hand(click.echo, dry_run, root)


@service.command()
@_common
def install(role: str, system: bool, dry_run: bool, root: Path | None) -> None:
    """Write the service's files, and its settings where there are none."""
    planned, hand = _planned(role, system, dry_run, root)
    if system and root is None and sys.platform != "darwin":
        from specmesh.service.systemd import check_visible

        for why in check_visible():
            click.echo(f"specmesh: the service will not start: {why}", err=True)
    os.umask(0o022)
    hand.install(planned)
    settings = hand.at(planned.settings)
    flag = " --system" if system else ""
    click.echo(f"Settings: {settings}. Then: specmesh service start {role}{flag}")


@service.command()
@_common
def uninstall(role: str, system: bool, dry_run: bool, root: Path | None) -> None:
    """Stop the service and remove everything it had, its settings too."""
    planned, hand = _planned(role, system, dry_run, root)
    hand.uninstall(planned)


@service.command()
@_common
def start(role: str, system: bool, dry_run: bool, root: Path | None) -> None:
    """Start the service."""
    planned, hand = _planned(role, system, dry_run, root)
    hand.start(planned)


@service.command()
@_common
def stop(role: str, system: bool, dry_run: bool, root: Path | None) -> None:
    """Stop the service."""
    planned, hand = _planned(role, system, dry_run, root)
    hand.run(planned.stop)


@service.command()
@_common
def restart(role: str, system: bool, dry_run: bool, root: Path | None) -> None:
    """Stop the service if it runs, and start it: what has changed in its settings holds then."""
    planned, hand = _planned(role, system, dry_run, root)
    hand.restart(planned)


@service.command()
@_common
def status(role: str, system: bool, dry_run: bool, root: Path | None) -> None:
    """Show what the service manager knows of it."""
    planned, hand = _planned(role, system, dry_run, root)
    _replace(planned.status, hand)


@service.command()
@_common
def logs(role: str, system: bool, dry_run: bool, root: Path | None) -> None:
    """Show its newest log lines."""
    planned, hand = _planned(role, system, dry_run, root)
    _replace(planned.logs, hand)


def _replace(command: tuple[str, ...], hand: "Hand") -> None:
    """Become the manager's own program, whose output and exit code are the answer."""
    if hand.dry or hand.root is not None:
        hand.run([command])
        return
    from specmesh.errors import ConfigError

    try:
        os.execvp(command[0], command)  # noqa: S606 - our own arguments, no shell
    except FileNotFoundError:
        raise ConfigError(f"{command[0]} is not here: services need systemd or launchd") from None
