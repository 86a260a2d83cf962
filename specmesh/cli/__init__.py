"""The `specmesh` command: its subcommands, and how errors become one line and an exit code."""

import errno
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

import click
from click.shell_completion import get_completion_class

from specmesh.cli import bench, config, daemons, demo, generate, setup, status
from specmesh.errors import ConfigError, SpecmeshError

SYSTEM_REFUSED, NOT_WRITTEN, INTERRUPTED = 71, 74, 130
_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
_CONTEXT = {
    "help_option_names": ["-h", "--help"],
    "auto_envvar_prefix": "SPECMESH",
    "show_default": True,
}


class _Commands(click.Group):
    """Turns our errors, and the system's, into one line on stderr and their exit code."""

    def main(self, *args: object, **options: object) -> object:  # type: ignore[override]
        if None in (
            sys.stdin,
            sys.stdout,
            sys.stderr,
        ):  # the next file opened would take its descriptor
            click.echo("specmesh: a standard stream is closed: give /dev/null instead", err=True)
            raise SystemExit(NOT_WRITTEN)
        _forgive(sys.stdout)
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
        except (SpecmeshError, click.UsageError) as raised:
            error = (
                isinstance(raised, click.BadParameter) and config.wrong_setting(raised)
            ) or raised
            if isinstance(error, click.UsageError):
                error.show()
            else:
                click.echo(f"specmesh: {error}", err=True)
            # launchd starts whatever fails again and again; only an exit code of 0 makes it leave a job alone.
            final = (
                isinstance(error, ConfigError | click.UsageError)
                and "SPECMESH_LAUNCHD" in os.environ
            )
            ctx.exit(0 if final else error.exit_code)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except BrokenPipeError as error:
            _end(error)  # before click does


def _forgive(stream: object) -> None:
    """Have characters that a locale's encoding lacks shown as question marks."""
    reconfigure: Callable[..., object] | None = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")


def _end(error: Exception) -> NoReturn:
    """Exit where the system refuses to go on; silently where the reader of our output is gone (`| head`)."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        raise SystemExit(128 + signal.SIGPIPE)
    code, meaning = SYSTEM_REFUSED, str(error)
    if isinstance(error, MemoryError):
        meaning = "not enough memory: end other programs, or raise the limit (ulimit -v)"
    elif isinstance(error, OSError) and error.errno in _OUTPUT_ERRORS and error.filename is None:
        code, meaning = NOT_WRITTEN, f"cannot write the output: {error.strerror}"
    click.echo(f"specmesh: {meaning}", err=True)
    raise SystemExit(code)


@click.group(cls=_Commands, context_settings=_CONTEXT)
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


for _command in (
    *(
        daemons.verifier,
        daemons.drafter,
        demo.demo,
        generate.generate,
        generate.chat,
        status.stats,
        status.ps,
    ),
    *(
        status.ping,
        setup.models,
        setup.keys,
        setup.pair,
        config.config,
        setup.service,
        setup.doctor_command,
    ),
    *(bench.plan, bench.audit, bench.bench, bench.recommend, daemons.rpc_server),
):
    main.add_command(_command)
