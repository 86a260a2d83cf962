"""`specmesh service`: the daemons as services that start with the machine or the user. Thin functions."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specmesh.cli.config import ROLE, template

if TYPE_CHECKING:
    from specmesh.service import Service, ServiceInstaller


@click.group()
def service() -> None:
    """Run a daemon as a service of systemd or launchd."""


def _command(run: "Callable[[Service, ServiceInstaller], None]") -> click.Command:
    """Make a subcommand of what does something to a daemon's service."""

    @service.command(run.__name__, help=run.__doc__)
    @ROLE
    @click.option("--system/--user", default=False, help="The machine's own service, or this user's.")
    @click.option("--dry-run", is_flag=True, help="Only print what would be written and run.")
    @click.option("--root", type=click.Path(path_type=Path), hidden=True)
    @click.pass_context
    def command(ctx: click.Context, role: str, system: bool, dry_run: bool, root: Path | None) -> None:
        from specmesh.service import Scope, ServiceInstaller

        if sys.platform == "darwin":
            from specmesh.service.launchd import launchd_service as planned
        else:
            from specmesh.service.systemd import systemd_service as planned
        settings = template(role, ctx.find_root())
        run(
            planned(role, Scope.SYSTEM if system else Scope.USER, settings), ServiceInstaller(click.echo, dry_run, root)
        )

    return command


@_command
def install(planned: "Service", hand: "ServiceInstaller") -> None:
    """Write the service's files, and a settings file if there is none."""
    asked = click.get_current_context().params
    if asked["system"] and hand.root is None and sys.platform != "darwin":
        from specmesh.service.systemd import check_visible

        for why in check_visible():
            click.echo(f"specmesh: the service will not start: {why}", err=True)
    os.umask(0o022)
    hand.install(planned)
    flag = " --system" if asked["system"] else ""
    click.echo(f"Settings: {hand.at(planned.settings)}. Then: specmesh service start {asked['role']}{flag}")


@_command
def uninstall(planned: "Service", hand: "ServiceInstaller") -> None:
    """Stop the service and remove all its files, the settings too."""
    hand.uninstall(planned)


@_command
def start(planned: "Service", hand: "ServiceInstaller") -> None:
    """Start the service."""
    hand.start(planned.unload, planned.start)


@_command
def stop(planned: "Service", hand: "ServiceInstaller") -> None:
    """Stop the service."""
    hand.run(planned.stop)


@_command
def restart(planned: "Service", hand: "ServiceInstaller") -> None:
    """Start the service again, with its settings as they are now."""
    hand.start(planned.unload, planned.restart)


@_command
def status(planned: "Service", hand: "ServiceInstaller") -> None:
    """Show what the service manager knows about the service."""
    _replace(planned.status, hand)


@_command
def logs(planned: "Service", hand: "ServiceInstaller") -> None:
    """Show the service's newest log lines."""
    _replace(planned.logs, hand)


def _replace(command: tuple[str, ...], hand: "ServiceInstaller") -> None:
    """Become the manager's own program, whose output and exit code are the answer."""
    if hand.dry or hand.root is not None:
        hand.run([command])
        return
    from specmesh.errors import ConfigError

    try:
        os.execvp(command[0], command)  # noqa: S606 - our own arguments, no shell
    except FileNotFoundError:
        raise ConfigError(f"{command[0]} is not here: services need systemd or launchd") from None
