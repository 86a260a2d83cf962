"""`specmesh verifier` and `specmesh drafter`. Nothing of a daemon is imported before one is run."""

import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, TypeVar, Unpack

import click
from click.core import ParameterSource

from specmesh.cli.config import config_option, rereader
from specmesh.cli.default_options import default_options
from specmesh.cli.models import complete_model, model_path
from specmesh.cli.rpc import insecure_rpc_option
from specmesh.errors import ConfigError, about

if TYPE_CHECKING:
    from specmesh.api.port import Port
    from specmesh.config import ModelSettings
    from specmesh.daemons.instance import Instance

F = TypeVar("F", bound=Callable[..., object])

_LEAST = ((resource.RLIMIT_NOFILE, 64, "open files", "-n"), (resource.RLIMIT_AS, 2**28, "bytes of memory", "-v"))
"""What a daemon and a few clients need; libraries crash where they have less."""


class _Shared(TypedDict):
    """What the options that both daemons share bring."""

    socket: Path | None
    http: str | None
    api_key_file: Path | None
    allow_origin: tuple[str, ...]
    threads: int | None
    gpu_layers: int
    gpu: str
    max_sessions: int
    max_queue: int
    ctx: int
    drain: float
    log_level: str
    log_format: str
    log_file: Path | None
    keys: Path | None
    insecure_no_auth: bool


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
            click.option(
                "--http",
                metavar="HOST:PORT",
                help="Serve the OpenAI-compatible API there too; beyond this machine only with --api-key-file.",
            ),
            click.option(
                "--api-key-file",
                type=click.Path(path_type=Path),
                metavar="FILE",
                help="Keys for --http, one per line, one of which clients must send; only you may be able to read it.",
            ),
            click.option(
                "--allow-origin",
                multiple=True,
                metavar="ORIGIN",
                help="Let pages of this origin use --http in a browser; '*' for any, with --api-key-file only.",
            ),
            click.option(
                "--keys",
                type=click.Path(path_type=Path),
                metavar="DIR",
                help="The folder with this machine's keys (default: the user's, then the system's; see `keys`).",
            ),
            click.option(
                "--insecure-no-auth",
                is_flag=True,
                help="Use no keys, also beyond this machine: whoever is in between reads and changes everything.",
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
                "--max-queue",
                type=int,
                default=256,
                show_default=True,
                metavar="N",
                help="Requests that wait, in order, while all sessions are taken; those beyond are refused with exit "
                "code 75.",
            ),
            click.option(
                "--ctx",
                type=int,
                default=4096,
                show_default=True,
                metavar="N",
                help="Tokens one session can hold; memory is reserved for all sessions. Where it is not given and the "
                "model was trained with fewer, that many.",
            ),
            click.option(
                "--drain",
                type=click.FloatRange(0.0, 86_400.0),
                default=10.0,
                show_default=True,
                metavar="SECONDS",
                help="After SIGTERM, let running texts go on so long, then cut them; a second SIGTERM ends at once.",
            ),
            click.option(
                "--log-level",
                type=click.Choice(["debug", "info", "warning", "error"]),
                default="info",
                show_default=True,
                help="What is logged; debug has the engines' own lines.",
            ),
            click.option(
                "--log-format",
                type=click.Choice(["auto", "console", "json"]),
                default="auto",
                show_default=True,
                help="auto: for people on a terminal, JSON lines elsewhere.",
            ),
            click.option(
                "--log-file",
                type=click.Path(path_type=Path),
                metavar="FILE",
                help="Log there instead of to stderr; at 16 MiB it is begun anew, and what it held is FILE.1.",
            ),
        ]
    ):
        command = option(command)
    return command


@click.command()
@click.option(
    "--model",
    metavar="FILE",
    shell_complete=complete_model,
    help="The target model: a GGUF file, a name of `models list`, or `bundled`.",
)
@click.option("--bind", default="tcp://127.0.0.1:7071", show_default=True, help="Where drafters connect.")
@click.option(
    "--chat-template",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A Jinja template for chats (default: the model's own).",
)
@click.option(
    "--grace",
    type=click.FloatRange(0.0, 86_400.0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Go on so long with a text whose drafter went away, and keep it for `generate --resume`.",
)
@click.option(
    "--reproducible",
    is_flag=True,
    help="Give every step the same number of rows, so that the text is the same to the last bit with and without "
    "drafts, whoever else asks; steps cost more, see docs/usage.md.",
)
@click.option(
    "--kv-unified/--no-kv-unified",
    default=True,
    show_default=True,
    help="Let sessions share one memory. Without, each has its own: less work for a CPU with many sessions, but what "
    "two prompts begin with is read twice, and drafts pay less.",
)
@click.option(
    "--second-drafter",
    is_flag=True,
    help="Where several drafters are attached, let a second one draft for a session too, if it has shown that it is "
    "right where the first is wrong; both chains are verified in one step where that pays.",
)
@click.option(
    "--rpc",
    metavar="HOST:PORT[,...]",
    help="Put layers on these machines too, where `specmesh rpc-server` or llama.cpp's ggml-rpc-server runs.",
)
@insecure_rpc_option
@click.option("--engine", type=click.Choice(["llama", "sim"]), default="llama", hidden=True)
@_daemon_options
@default_options
@config_option
def verifier(
    model: str | None,
    bind: str,
    chat_template: Path | None,
    grace: float,
    reproducible: bool,
    kv_unified: bool,
    second_drafter: bool,
    rpc: str | None,
    insecure_rpc: bool,
    engine: str,
    defaults: dict[str, object],
    **shared: Unpack[_Shared],
) -> None:
    """Run the verifier: it holds the target model and decides every token."""
    from specmesh.paths import bundled

    where, port = _api("verifier", shared)
    with _instance(where):
        from specmesh.config import VerifierSettings

        _log(shared)
        with about("model"):
            path = bundled("target.gguf") if model == "bundled" else model_path(model, engine)
        servers = tuple(address.strip() for address in rpc.split(",")) if rpc else ()
        settings = _model(engine, path, shared, chat_template)
        settings = replace(settings, reproducible=reproducible, kv_unified=kv_unified)
        settings = replace(settings, rpc=servers, insecure_rpc=insecure_rpc)
        reread = rereader(click.get_current_context(), port)
        insecure, keys = shared["insecure_no_auth"], shared["keys"]
        queue = shared["max_queue"]
        told = VerifierSettings(settings, bind, where, insecure, port, keys, grace, queue, defaults)
        from specmesh.daemons.serve import serve_verifier  # not before: what is wrong so far is told at once

        serve_verifier(replace(told, second_drafter=second_drafter, drain=shared["drain"]), reread)


@click.command()
@click.option(
    "--connect",
    multiple=True,
    default=["tcp://127.0.0.1:7071"],
    show_default=True,
    metavar="ADDRESS,...",
    callback=lambda _ctx, _option, told: tuple(one.strip() for text in told for one in text.split(",") if one.strip()),
    help="The verifier's address. Of several each text goes to the one where it should be finished first, and on to "
    "another where one is busy or goes away.",
)
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
@click.option(
    "--draft-temperature",
    type=click.FloatRange(0.0, 100.0),
    metavar="T",
    help="Draft at this temperature for texts that are sampled (default: theirs). It changes how many drafts stand, "
    "and no text.",
)
@_daemon_options
@default_options
@config_option
def drafter(
    connect: tuple[str, ...],
    engine: str,
    model: str | None,
    min_vocab_overlap: float,
    draft_temperature: float | None,
    defaults: dict[str, object],
    **shared: Unpack[_Shared],
) -> None:
    """Run a drafter: it guesses the verifier's next tokens."""
    where, port = _api("drafter", shared)
    with _instance(where):
        from specmesh.config import DrafterSettings

        _log(shared)
        with about("model"):
            path = model_path(model, engine)
        settings = _model(engine, path, shared)
        reread = rereader(click.get_current_context(), port)
        insecure, keys = shared["insecure_no_auth"], shared["keys"]
        access, sampling = (port, insecure, keys), (defaults, draft_temperature, shared["drain"])
        from specmesh.daemons.serve import serve_drafter  # as above

        told = DrafterSettings(settings, connect, where, min_vocab_overlap, *access, *sampling)
        serve_drafter(replace(told, max_queue=shared["max_queue"]), reread)


def _instance(path: Path) -> "Instance":
    """The only daemon at this socket, known to clients before the rest is imported. Raises Busy, ConfigError."""
    from specmesh.daemons.instance import Instance

    for limit, least, what, flag in _LEAST:
        allowed = resource.getrlimit(limit)[0]
        if allowed != resource.RLIM_INFINITY and allowed < least:
            raise ConfigError(f"the limit is {allowed} {what}, a daemon needs {least}: raise it (ulimit {flag})")
    with about("socket"):
        return Instance(path)


def _log(shared: _Shared) -> None:
    from specmesh import logs
    from specmesh.log_file import LogFile

    file = None
    if shared["log_file"] is not None:
        with about("log_file"):
            file = LogFile(shared["log_file"])
        click.get_current_context().call_on_close(file.close)
        click.get_current_context().call_on_close(logs.flush)  # called first
    logs.configure(shared["log_level"], shared["log_format"], file)


def _model(engine: str, path: str | None, shared: _Shared, template: Path | None = None) -> "ModelSettings":
    """Which model is run, and how. Raises ConfigError."""
    from specmesh.config import ModelSettings

    source = click.get_current_context().get_parameter_source("ctx")
    return ModelSettings(
        engine,
        path,
        ctx=None if source is ParameterSource.DEFAULT else shared["ctx"],
        max_sessions=shared["max_sessions"],
        threads=shared["threads"],
        gpu_layers=shared["gpu_layers"],
        gpu_required=shared["gpu"] == "required",
        chat_template=template,
    )


def _api(role: str, shared: _Shared) -> "tuple[Path, Port | None]":
    """Where the API listens: its socket, and its port if there is one. Raises ConfigError."""
    from specmesh.api.port import parse_port
    from specmesh.paths import default_socket

    port = parse_port(shared["http"], shared["api_key_file"], shared["allow_origin"])
    return shared["socket"] or default_socket(role), port
