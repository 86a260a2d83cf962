"""The `specmesh` command: its subcommands, and the exit codes of its errors."""

import errno
import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from typing import NoReturn

import click
from click.shell_completion import get_completion_class

from specmesh.cli import config
from specmesh.errors import ConfigError, NotThereYet, SpecmeshError

SYSTEM_REFUSED = 71
NOT_WRITTEN = 74
INTERRUPTED = 130
OR_WAIT = ", or give --wait where it comes later"
_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)

_PLACES = {
    "audit": "bench:audit",
    "bench": "bench:bench",
    "chat": "generate:chat",
    "config": "config:config",
    "demo": "demo:demo",
    "doctor": "setup:doctor_command",
    "drafter": "daemons:drafter",
    "generate": "generate:generate",
    "keys": "setup:keys",
    "models": "setup:models",
    "pair": "setup:pair",
    "ping": "status:ping",
    "plan": "bench:plan",
    "ps": "status:ps",
    "recommend": "bench:recommend",
    "rpc-server": "daemons:rpc_server",
    "service": "setup:service",
    "stats": "status:stats",
    "verifier": "daemons:verifier",
    "vllm-config": "vllm:vllm_config",
}
"""Module and name of each command, which is imported when it is called: all of them take longer
than most calls.
"""


class _Commands(click.Group):
    """Turns our errors and the system's into one line on stderr and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_PLACES})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands and cmd_name in _PLACES:
            module, name = _PLACES[cmd_name].split(":")
            self.add_command(getattr(import_module(f"specmesh.cli.{module}"), name))
        return super().get_command(ctx, cmd_name)

    def main(self, *args: object, **options: object) -> object:  # type: ignore[override]
        # A file that is opened next would get the closed stream's descriptor.
        if None in (sys.stdin, sys.stdout, sys.stderr):
            click.echo("specmesh: a standard stream is closed: give /dev/null instead", err=True)
            raise SystemExit(NOT_WRITTEN)
        _replace_foreign_characters(sys.stdout)
        try:
            try:
                return super().main(*args, **options)  # type: ignore[call-overload]
            finally:
                sys.stdout.flush()
        except (OSError, MemoryError) as error:
            _end(error)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except click.BadParameter as error:
            _show(ctx, config.wrong_setting(error) or error)
        except (SpecmeshError, click.UsageError) as error:
            _show(ctx, error)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except BrokenPipeError as error:
            _end(error)  # before click does


def _show(ctx: click.Context, error: SpecmeshError | click.UsageError) -> NoReturn:
    """Print an error and exit with its code."""
    if isinstance(error, click.UsageError):
        error.show()
    else:
        may_wait = isinstance(error, NotThereYet) and _can_wait(ctx)
        click.echo(f"specmesh: {error}{OR_WAIT if may_wait else ''}", err=True)
    # launchd restarts a job after each failure. Only the exit code 0 ends that.
    final = isinstance(error, ConfigError | click.UsageError)
    if final and "SPECMESH_LAUNCHD" in os.environ:
        ctx.exit(0)
    ctx.exit(error.exit_code)


def _can_wait(ctx: click.Context) -> bool:
    """Return True if the command that was given has --wait."""
    assert isinstance(ctx.command, click.Group)
    command = ctx.command.get_command(ctx, ctx.invoked_subcommand or "")
    return command is not None and any("--wait" in option.opts for option in command.params)


def _replace_foreign_characters(stream: object) -> None:
    """Show characters that the locale's encoding lacks as question marks."""
    reconfigure: Callable[..., object] | None = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")


def _end(error: OSError | MemoryError) -> NoReturn:
    """Exit after an error of the system; silently if the reader of our output left (`| head`)."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        raise SystemExit(128 + signal.SIGPIPE)
    code = SYSTEM_REFUSED
    meaning = str(error)
    if isinstance(error, MemoryError):
        meaning = "not enough memory: end other programs, or raise the limit (ulimit -v)"
    elif error.errno in _OUTPUT_ERRORS and error.filename is None:
        code = NOT_WRITTEN
        meaning = f"cannot write the output: {error.strerror}"
    click.echo(f"specmesh: {meaning}", err=True)
    raise SystemExit(code)


@click.group(
    cls=_Commands,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "auto_envvar_prefix": "SPECMESH",
        "show_default": True,
    },
)
@click.version_option(
    package_name="specmesh", message="specmesh %(version)s", allow_from_autoenv=False
)
def main() -> None:
    """Speculative decoding across machines: a fast drafter proposes, a precise verifier decides."""


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that completes commands, options and files in your shell."""
    kind = get_completion_class(shell)
    assert kind is not None, "click has all three"
    click.echo(kind(main, {}, "specmesh", "_SPECMESH_COMPLETE").source())
