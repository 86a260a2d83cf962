"""The `specmesh` command: one thin function per subcommand. Only those that run a daemon import one."""

import errno
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

import click
from click.core import ParameterSource

from specmesh.cli.audit import audit
from specmesh.cli.bench import bench
from specmesh.cli.config import bad_variable, blamed, config
from specmesh.cli.daemons import drafter, verifier
from specmesh.cli.default_options import given
from specmesh.cli.doctor import doctor
from specmesh.cli.keys import keys
from specmesh.cli.models import models
from specmesh.cli.options import json_option, model_option, print_json, socket_option
from specmesh.cli.pair import pair
from specmesh.cli.plan import plan
from specmesh.cli.rpc import rpc_server
from specmesh.cli.sampling_options import draft_n_option, sampling_options
from specmesh.cli.service import service
from specmesh.cli.structure_options import structure_options
from specmesh.errors import ConfigError, DaemonUnreachable, SpecmeshError

SYSTEM_REFUSED, NOT_WRITTEN, INTERRUPTED = 71, 74, 130
_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
F = TypeVar("F", bound=Callable[..., object])


class _Commands(click.Group):
    """Turns our errors, and the system's, into one line on stderr and their exit code."""

    def main(self, *args: object, **options: object) -> object:  # type: ignore[override]
        _hold_standard_streams()
        try:
            try:
                return super().main(*args, **options)  # type: ignore[call-overload]
            finally:
                sys.stdout.flush()
        except (OSError, MemoryError) as error:
            _end(error)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return self._invoked(ctx)
        except ConfigError as error:
            click.echo(f"specmesh: {blamed(error, ctx)}", err=True)
            # launchd starts whatever fails again and again; only an exit code of 0 makes it leave a job alone.
            ctx.exit(0 if os.environ.get("SPECMESH_LAUNCHD") else error.exit_code)
        except SpecmeshError as error:
            click.echo(f"specmesh: {error}", err=True)
            ctx.exit(error.exit_code)
        except click.UsageError as error:
            if not os.environ.get("SPECMESH_LAUNCHD"):
                raise
            error.show()
            ctx.exit(0)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except BrokenPipeError as error:
            _end(error)  # before click does

    def _invoked(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except click.BadParameter as error:
            raise bad_variable(error) or error from None


def _end(error: Exception) -> NoReturn:
    """The system does not let us go on. Without a word where the reader of our output is gone (`| head`), as other
    filters do."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        raise SystemExit(128 + signal.SIGPIPE)
    code, told = SYSTEM_REFUSED, str(error)
    if isinstance(error, MemoryError):
        told = "not enough memory: end other programs, or raise the limit (ulimit -v)"
    elif isinstance(error, OSError) and error.errno in _OUTPUT_ERRORS and error.filename is None:
        code, told = NOT_WRITTEN, f"cannot write the output: {error.strerror}"
    click.echo(f"specmesh: {told}", err=True)
    raise SystemExit(code)


def _hold_standard_streams() -> None:
    """Where whoever started us has closed one of them, let /dev/null have its descriptor: else the next file that is
    opened would, and get what is written there. What is printed to a closed stdout fails, as it should."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR if name == "stderr" else os.O_RDONLY)  # takes the lowest one that is free
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from specmesh import __version__

        click.echo(f"specmesh {__version__}")
        ctx.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "SPECMESH"})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    allow_from_autoenv=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Speculative decoding across machines: a fast drafter guesses, a precise verifier decides."""


main.add_command(verifier)
main.add_command(drafter)
main.add_command(models)
main.add_command(bench)
main.add_command(audit)
main.add_command(config)
main.add_command(service)
main.add_command(doctor)
main.add_command(keys)
main.add_command(pair)
main.add_command(plan)
main.add_command(rpc_server)


_SOCKET = socket_option("The daemon's local socket (default: found in the user's, then the system's runtime folder).")


@main.command()
@click.argument("prompt", required=False)
@click.option(
    "--max-tokens", type=click.IntRange(1), default=128, show_default=True, metavar="N", help="Most tokens to generate."
)
@sampling_options(temperature=0.0)
@structure_options
@click.option("--stop", multiple=True, metavar="TEXT", help="End before this text; may be given more than once.")
@click.option("--ignore-eos", is_flag=True, help="The model does not end the text.")
@click.option(
    "--n",
    "count",
    envvar="SPECMESH_GENERATE_N",
    type=click.IntRange(1, 8),
    default=1,
    show_default=True,
    metavar="N",
    help="So many texts, generated side by side with seeds that follow one another.",
)
@draft_n_option("auto")
@click.option("--no-draft", is_flag=True, help="The verifier alone.")
@click.option(
    "--logprobs",
    type=click.IntRange(0, 20),
    metavar="N",
    help="With --json: how likely each token was, and the N likeliest in its place.",
)
@click.option("--show-drafts", is_flag=True, help="Mark accepted drafts: green, or [[ ]] where NO_COLOR is set.")
@json_option("SPECMESH_GENERATE_JSON", "Print one JSON object instead of the text.")
@click.option("--pace", is_flag=True, help="Show a round's text bit by bit until the next is expected, not at once.")
@click.option("--verbose", is_flag=True, help="A line per round and a summary, on stderr.")
@click.option(
    "--reconnect-timeout",
    type=click.FloatRange(0.0, 86_400.0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Wait so long for a daemon that went away in the middle of the text, and go on with it.",
)
@click.option(
    "--resume",
    metavar="ID",
    help="Instead of PROMPT: a text that broke off, from its beginning, as long as a daemon keeps it. How it goes on "
    "was said when it began.",
)
@model_option
@_SOCKET
def generate(
    prompt: str | None,
    max_tokens: int,
    sampling: dict[str, object],
    structure: dict[str, object],
    stop: tuple[str, ...],
    ignore_eos: bool,
    count: int,
    draft_n: int | str,
    no_draft: bool,
    logprobs: int | None,
    show_drafts: bool,
    as_json: bool,
    pace: bool,
    verbose: bool,
    reconnect_timeout: float,
    resume: str | None,
    model: str | None,
    socket_path: Path | None,
) -> None:
    """Generate text from PROMPT ('-' reads it from standard input)."""
    from specmesh.cli.generate import Output, run, run_several
    from specmesh.cli.standard_input import read_text
    from specmesh.client import Client

    if (prompt is None) == (resume is None):
        raise click.UsageError("give either PROMPT or --resume ID")
    if logprobs is not None and not as_json:
        raise click.UsageError("--logprobs are told by --json: give both")
    if pace and (as_json or show_drafts):
        raise click.UsageError("--pace is for plain text: leave out --json and --show-drafts")
    if count > 1 and (resume is not None or pace or show_drafts):
        raise click.UsageError("--n is for several whole texts: leave out --resume, --pace and --show-drafts")
    if model is not None and resume is not None:
        raise click.UsageError("--resume goes on with the model that began: leave out --model")
    text = read_text() if prompt == "-" else prompt
    body: dict[str, object] = {
        **({"prompt": text} if resume is None else {"resume": {"id": resume}}),
        **({} if model is None else {"model": model}),
        **given({"max_tokens": max_tokens}),
        **sampling,
        **structure,
        "stop": list(stop),
        **({"ignore_eos": True} if ignore_eos else {}),
        "draft_n": 0 if no_draft else draft_n,
        **({} if logprobs is None else {"logprobs": logprobs}),
        "rounds": (verbose or show_drafts) and count == 1,
    }
    output = Output(as_json=as_json, verbose=verbose, show_drafts=show_drafts, pace=pace)
    client = Client(socket_path, waits=_say_waiting)
    if count > 1:
        run_several(client, body, output, count, reconnect_timeout, _say)
    else:
        run(client, body, output, reconnect_timeout, _say)


@main.command()
@click.option("--system", metavar="TEXT", help="What the model is told before the conversation.")
@click.option("--raw", is_flag=True, help="No chat template: the model goes on with the text itself.")
@click.option("--max-tokens", type=click.IntRange(1), metavar="N", help="Most tokens of an answer.")
@sampling_options(temperature=0.7)
@structure_options
@model_option
@_SOCKET
def chat(
    system: str | None,
    raw: bool,
    max_tokens: int | None,
    sampling: dict[str, object],
    structure: dict[str, object],
    model: str | None,
    socket_path: Path | None,
) -> None:
    """Talk to the target model; what is piped in is one message."""
    from specmesh.cli.chat import Conversation, run
    from specmesh.client import Client

    if system and raw:
        raise click.UsageError("--system needs a chat template, and --raw uses none")
    options = sampling | structure
    if max_tokens is not None:
        options["max_tokens"] = max_tokens
    if model is not None:
        options["model"] = model
    run(Client(socket_path, waits=_say_waiting), Conversation(system, raw), options)


def _say_waiting(why: str) -> None:
    _say(f"{why}: waiting")


def _say(what: str) -> None:
    click.echo(f"specmesh: {what}", err=True)


@main.command()
@json_option("SPECMESH_STATS_JSON", "Print the snapshot as JSON.")
@click.option("--watch", is_flag=True, help="Live; where stdout is no terminal, a line at a time. Ctrl-C ends it.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Between two looks of --watch.",
)
@_SOCKET
@click.pass_context
def stats(ctx: click.Context, as_json: bool, watch: bool, interval: float, socket_path: Path | None) -> None:
    """Show what a daemon is doing."""
    from specmesh.client import Client

    if not watch and ctx.get_parameter_source("interval") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--interval is between two looks of --watch: give both")
    if watch and as_json:
        raise click.UsageError("--watch and --json do not go together: leave one out")
    if watch:
        from specmesh.cli.stats_view import watch as show

        show(Client(socket_path, timeout=max(3.0, 2 * interval)), interval)
        return
    snapshot = Client(socket_path).get("/stats")
    if as_json:
        print_json(snapshot)
        return
    from specmesh.cli.stats_lines import lines

    click.echo("\n".join(lines(snapshot)))


@main.command()
@click.option("--count", type=click.IntRange(1, 100_000), default=10, show_default=True, metavar="N", help="PINGs.")
@click.option(
    "--interval",
    type=click.FloatRange(0.01, 60.0),
    default=0.2,
    show_default=True,
    metavar="S",
    help="Seconds between two.",
)
@json_option("SPECMESH_PING_JSON")
@_SOCKET
def ping(count: int, interval: float, as_json: bool, socket_path: Path | None) -> None:
    """Have a daemon measure the way to each of its peers; exit code 69 where none answers."""
    from specmesh.cli.ping import run
    from specmesh.client import Client

    run(Client(socket_path), count, interval, as_json=as_json)


@main.command()
@json_option("SPECMESH_PS_JSON", "Print them as JSON.")
@click.pass_context
def ps(ctx: click.Context, as_json: bool) -> None:
    """List the daemons that run here; exit code 69 where none does."""
    from specmesh.cli import ps as daemons

    found = daemons.find()
    if as_json:
        print_json(daemons.as_json(found))
    elif found:
        click.echo("\n".join(daemons.lines(found)))
    if not found:
        click.echo("specmesh: no daemon runs here: start one (specmesh verifier, specmesh drafter)", err=True)
        ctx.exit(DaemonUnreachable.exit_code)


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what makes a shell complete specmesh's commands, options and model names."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, "click has all three"
    click.echo(kind(main, {}, "specmesh", "_SPECMESH_COMPLETE").source())
