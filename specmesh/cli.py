"""The `specmesh` command: one thin function per subcommand. Only those that run a daemon import one."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

import click

from specmesh.bench.cli import bench
from specmesh.config_cli import blamed, config, config_option, rereader
from specmesh.doctor.cli import doctor
from specmesh.errors import ConfigError, DaemonUnreachable, SpecmeshError, about
from specmesh.explain.cli import explain
from specmesh.models_cli import complete_model, model_path, models
from specmesh.service.cli import service

INTERRUPTED = 130
MAX_DRAFT_N = 16
F = TypeVar("F", bound=Callable[..., object])


class _Commands(click.Group):
    """Turns our errors into one line on stderr and their exit code."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            click.echo(f"specmesh: {blamed(error, ctx)}", err=True)
            # launchd starts whatever fails again and again; only an exit code of 0 makes it leave a job alone.
            ctx.exit(0 if os.environ.get("SPECMESH_LAUNCHD") else error.exit_code)
        except SpecmeshError as error:
            click.echo(f"specmesh: {error}", err=True)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            _quiet_exit()


def _quiet_exit() -> NoReturn:
    """The reader of our output is gone (`| head`): end without a word, as other filters do."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(128 + signal.SIGPIPE)


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


main.add_command(models)
main.add_command(explain)
main.add_command(bench)
main.add_command(config)
main.add_command(service)
main.add_command(doctor)


def _socket_option(command: F) -> F:
    return click.option(
        "--socket",
        "socket_path",
        type=click.Path(path_type=Path),
        metavar="PATH",
        envvar="SPECMESH_SOCKET",
        help="The daemon's local socket (default: found in the user's, then the system's runtime folder).",
    )(command)


def _daemon_options(command: F) -> F:
    """Options that both daemons share."""
    for option in reversed(
        [
            click.option(
                "--socket",
                type=click.Path(path_type=Path),
                metavar="PATH",
                help="Where the local API listens (default: in this user's runtime folder).",
            ),
            click.option("--threads", type=int, metavar="N", help="CPU threads (default: one per core)."),
            click.option(
                "--gpu-layers",
                type=int,
                default=-1,
                show_default=True,
                metavar="N",
                help="Model layers to put on a GPU, where there is one; -1 for all.",
            ),
            click.option(
                "--gpu",
                type=click.Choice(["auto", "required"]),
                default="auto",
                show_default=True,
                help="required: refuse to start where no GPU takes the layers.",
            ),
            click.option(
                "--max-sessions", type=int, default=8, show_default=True, metavar="N", help="Sessions held at once."
            ),
            click.option(
                "--ctx",
                type=int,
                default=4096,
                show_default=True,
                metavar="N",
                help="Tokens one session can hold; memory is reserved for all sessions.",
            ),
            click.option(
                "--log-level",
                type=click.Choice(["debug", "info", "warning", "error"]),
                default="info",
                show_default=True,
            ),
            click.option(
                "--log-format", type=click.Choice(["auto", "console", "json"]), default="auto", show_default=True
            ),
        ]
    ):
        command = option(command)
    return command


@main.command()
@click.option(
    "--model",
    metavar="FILE",
    shell_complete=complete_model,
    help="The target model: a GGUF file, a name of `models list`, or `bundled`.",
)
@click.option("--bind", default="tcp://127.0.0.1:7071", show_default=True, help="Where drafters connect.")
@click.option(
    "--insecure-no-auth",
    is_flag=True,
    help="Allow a --bind address beyond this machine although the wire is not encrypted.",
)
@click.option(
    "--log-decisions",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Append what each step decided, and why, to this file, for `specmesh explain`; no text is in it.",
)
@click.option("--engine", type=click.Choice(["llama", "sim"]), default="llama", hidden=True)
@_daemon_options
@config_option
def verifier(
    model: str | None,
    bind: str,
    insecure_no_auth: bool,
    log_decisions: Path | None,
    engine: str,
    socket: Path | None,
    log_level: str,
    log_format: str,
    ctx: int,
    max_sessions: int,
    threads: int | None,
    gpu_layers: int,
    gpu: str,
) -> None:
    """Run the verifier: it holds the target model and decides every token."""
    from specmesh import logs
    from specmesh.config import ModelSettings, VerifierSettings
    from specmesh.daemons.serve import serve_verifier
    from specmesh.paths import bundled, default_socket

    logs.configure(log_level, log_format)
    with about("model"):
        path = bundled("target.gguf") if model == "bundled" else model_path(model, engine)
    settings = ModelSettings(engine, path, ctx, max_sessions, threads, gpu_layers, gpu == "required")
    where = socket or default_socket("verifier")
    serve_verifier(
        VerifierSettings(settings, bind, where, insecure_no_auth, log_decisions), rereader(click.get_current_context())
    )


@main.command()
@click.option("--connect", default="tcp://127.0.0.1:7071", show_default=True, help="The verifier's address.")
@click.option(
    "--engine",
    type=click.Choice(["auto", "mlx", "llama", "ngram", "sim"]),
    metavar="auto|mlx|llama|ngram",
    default="auto",
    show_default=True,
    help="mlx: a Hugging Face model; llama: a GGUF model; ngram: guesses from the text so far, needs no model; "
    "auto: MLX on Apple Silicon, elsewhere what fits the model.",
)
@click.option(
    "--model",
    metavar="FILE|DIR|HUB_ID",
    shell_complete=complete_model,
    help="The draft model: a GGUF file, a Hugging Face directory or hub id, a name of `models list`, or `bundled`.",
)
@click.option(
    "--min-vocab-overlap",
    type=click.FloatRange(0.0, 1.0, min_open=True),
    default=0.9,
    show_default=True,
    metavar="SHARE",
    help="Refuse to draft where fewer of the tokens have a counterpart in the verifier's vocabulary.",
)
@_daemon_options
@config_option
def drafter(
    connect: str,
    engine: str,
    model: str | None,
    min_vocab_overlap: float,
    socket: Path | None,
    log_level: str,
    log_format: str,
    ctx: int,
    max_sessions: int,
    threads: int | None,
    gpu_layers: int,
    gpu: str,
) -> None:
    """Run a drafter: it guesses the verifier's next tokens."""
    from specmesh import logs
    from specmesh.config import DrafterSettings, ModelSettings
    from specmesh.daemons.serve import serve_drafter
    from specmesh.paths import default_socket

    logs.configure(log_level, log_format)
    with about("model"):
        path = model_path(model, engine)
    settings = ModelSettings(engine, path, ctx, max_sessions, threads, gpu_layers, gpu == "required")
    where = socket or default_socket("drafter")
    serve_drafter(DrafterSettings(settings, connect, where, min_vocab_overlap), rereader(click.get_current_context()))


@main.command()
@click.argument("prompt")
@click.option("--max-tokens", type=click.IntRange(1), default=128, show_default=True, metavar="N")
@click.option(
    "--temperature",
    type=click.FloatRange(0.0, 100.0),
    default=0.0,
    show_default=True,
    metavar="T",
    help="0 takes the most likely token.",
)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), metavar="S", help="Repeat a sampled text (default: random).")
@click.option("--top-k", type=click.IntRange(0), default=0, show_default=True, metavar="K", help="0: off.")
@click.option("--top-p", type=click.FloatRange(0.0, 1.0), default=1.0, show_default=True, metavar="P", help="1: off.")
@click.option("--draft-n", default="auto", show_default=True, metavar="auto|N", help="Drafts per step, 16 at most.")
@click.option("--no-draft", is_flag=True, help="The verifier alone.")
@click.option("--show-drafts", is_flag=True, help="Mark accepted drafts: green, or [[ ]] where NO_COLOR is set.")
@click.option(
    "--json",
    "as_json",
    envvar="SPECMESH_GENERATE_JSON",
    is_flag=True,
    help="Print one JSON object instead of the text.",
)
@click.option("--verbose", is_flag=True, help="A line per round and a summary, on stderr.")
@_socket_option
def generate(
    prompt: str,
    max_tokens: int,
    temperature: float,
    seed: int | None,
    top_k: int,
    top_p: float,
    draft_n: str,
    no_draft: bool,
    show_drafts: bool,
    as_json: bool,
    verbose: bool,
    socket_path: Path | None,
) -> None:
    """Generate text from PROMPT ('-' reads it from standard input)."""
    from specmesh.client import Client
    from specmesh.generate import Output, run

    text = _stdin_prompt() if prompt == "-" else prompt
    body: dict[str, object] = {
        "prompt": text,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "draft_n": 0 if no_draft else _draft_n(draft_n),
        "rounds": verbose or show_drafts,
    }
    if seed is not None:
        body["seed"] = seed
    run(Client(socket_path), body, Output(as_json=as_json, verbose=verbose, show_drafts=show_drafts))


def _stdin_prompt() -> str:
    return sys.stdin.buffer.read().decode("utf-8", "replace")


def _draft_n(value: str) -> int | str:
    if value == "auto":
        return value
    if value.isdecimal() and int(value) <= MAX_DRAFT_N:
        return int(value)
    raise click.BadParameter(f"give auto or a number from 0 to {MAX_DRAFT_N}", param_hint="--draft-n")


@main.command()
@click.option("--json", "as_json", envvar="SPECMESH_STATS_JSON", is_flag=True, help="Print the snapshot as JSON.")
@click.option("--watch", is_flag=True, help="A live table; Ctrl-C ends it.")
@_socket_option
def stats(as_json: bool, watch: bool, socket_path: Path | None) -> None:
    """Show what a daemon is doing."""
    from specmesh.client import Client

    client = Client(socket_path)
    if watch:
        from specmesh.stats_view import watch as show

        show(client)
        return
    snapshot = client.get("/stats")
    if as_json:
        import json

        click.echo(json.dumps(snapshot, indent=2))
        return
    from specmesh.stats_lines import lines

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
@click.option("--json", "as_json", envvar="SPECMESH_PING_JSON", is_flag=True, help="Print one JSON object instead.")
@_socket_option
def ping(count: int, interval: float, as_json: bool, socket_path: Path | None) -> None:
    """Have a daemon measure the way to each of its peers; exit code 69 where none answers."""
    from specmesh.client import Client
    from specmesh.ping import run

    run(Client(socket_path), count, interval, as_json=as_json)


@main.command()
@click.option("--json", "as_json", envvar="SPECMESH_PS_JSON", is_flag=True, help="Print them as JSON.")
@click.pass_context
def ps(ctx: click.Context, as_json: bool) -> None:
    """List the daemons that run here; exit code 69 where none does."""
    from specmesh import ps as daemons

    found = daemons.find()
    if as_json:
        import json

        click.echo(json.dumps(daemons.as_json(found), indent=2))
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
