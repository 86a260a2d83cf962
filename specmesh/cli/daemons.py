"""`specmesh verifier`, `drafter` and `rpc-server`. Nothing of a daemon is imported before one is run."""

import resource
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from specmesh import paths
from specmesh.cli.config import config_option, rereader
from specmesh.cli.models import complete_model, model_path
from specmesh.cli.options import (
    COUNT,
    POSITIVE_SHARE,
    Decorator,
    combined,
    default_options,
    gathered,
    number,
    path_option,
)
from specmesh.errors import ConfigError, about
from specmesh.machines import STEPS_MS
from specmesh.security import check_rpc

_LIMITS = ((resource.RLIMIT_NOFILE, 64, "open files", "-n"), (resource.RLIMIT_AS, 2**28, "bytes of memory", "-v"))
"""What a daemon and a few clients need; libraries crash where they have less."""

_SECONDS = click.FloatRange(0.0, 86_400.0)

_SHARED: dict[str, Decorator] = {
    "socket": path_option("--socket", "PATH", "Socket of the local API (default: in this user's runtime folder)."),
    "http": click.option(
        "--http",
        metavar="HOST:PORT",
        help="Serve the OpenAI-compatible API there too; beyond this machine only with --api-key-file.",
    ),
    "api_key_file": path_option(
        "--api-key-file", "FILE", "API keys for --http, one per line; the file must be readable by you only."
    ),
    "allow_origin": click.option(
        "--allow-origin",
        multiple=True,
        metavar="ORIGIN",
        help="Let web pages of this origin use --http; '*' for any, with --api-key-file only.",
    ),
    "keys": path_option(
        "--keys", "DIR", "Folder with this machine's keys (default: the user's, then the system's; see `keys`)."
    ),
    "insecure_no_auth": click.option(
        "--insecure-no-auth",
        is_flag=True,
        help="Use no keys, even beyond this machine: anybody on the network path can read and change everything.",
    ),
    "threads": click.option("--threads", type=int, metavar="N", help="Number of CPU threads (default: one per core)."),
    "gpu_layers": number("--gpu-layers", click.INT, -1, "N", "Number of model layers to put on a GPU; -1 for all."),
    "gpu": click.option(
        "--gpu",
        type=click.Choice(["auto", "required"]),
        default="auto",
        help="required: do not start if no GPU can take the layers.",
    ),
    "max_sessions": number("--max-sessions", click.INT, 8, "N", "Maximum number of concurrent sessions."),
    "max_queue": number(
        "--max-queue",
        click.INT,
        256,
        "N",
        "Maximum number of requests that wait for a session; more are refused (exit code 75).",
    ),
    "ctx": number(
        "--ctx",
        click.INT,
        4096,
        "N",
        "Maximum number of tokens per session; memory is reserved for all sessions. If not set, at most the model's "
        "training context.",
    ),
    "drain": number(
        "--drain",
        _SECONDS,
        10.0,
        "SECONDS",
        "Time that running requests get to finish after SIGTERM; a second SIGTERM ends at once.",
    ),
    "log_level": click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="info",
        help="Minimum level to log; debug includes the engines' own lines.",
    ),
    "log_format": click.option(
        "--log-format",
        type=click.Choice(["auto", "console", "json"]),
        default="auto",
        help="auto: console on a terminal, JSON lines elsewhere.",
    ),
    "stretch": click.option("--stretch", type=click.Choice(list(STEPS_MS)), hidden=True),  # for `specmesh demo`
    "log_file": path_option(
        "--log-file", "FILE", "Log to this file instead of stderr; at 16 MiB it is rotated to FILE.1."
    ),
}


_daemon_options = combined(
    gathered("shared", _SHARED, dict),
    default_options,
    config_option,
)
_insecure_rpc_option = click.option(
    "--insecure-rpc",
    is_flag=True,
    help="Use RPC beyond this machine: it has neither keys nor encryption. Anybody who reaches the port, or is on the "
    "network path, can read and change weights and texts, and may take over the machine.",
)


@click.command()
@click.option(
    "--model",
    metavar="FILE",
    shell_complete=complete_model,
    help="Target model: a GGUF file, a name in `models list`, or `bundled`.",
)
@click.option("--bind", default="tcp://127.0.0.1:7071", metavar="ADDRESS", help="Address to listen on for drafters.")
@path_option("--chat-template", "FILE", "Jinja template for chats (default: the model's own).")
@number(
    "--grace",
    _SECONDS,
    30.0,
    "SECONDS",
    "Time to continue a completion whose drafter went away, and to keep it for `generate --resume`.",
)
@click.option(
    "--reproducible",
    is_flag=True,
    help="Give every step the same number of rows: the text is then the same to the last bit with and without drafts, "
    "whatever else runs. Steps cost more, see docs/usage.md.",
)
@click.option(
    "--rpc",
    metavar="HOST:PORT[,...]",
    help="Put layers on these machines too, which run `specmesh rpc-server` or llama.cpp's ggml-rpc-server.",
)
@_insecure_rpc_option
@click.option("--engine", type=click.Choice(["llama", "sim"]), default="llama", hidden=True)
@_daemon_options
def verifier(
    model: str | None,
    bind: str,
    chat_template: Path | None,
    grace: float,
    reproducible: bool,
    rpc: str | None,
    insecure_rpc: bool,
    engine: str,
    defaults: dict[str, object],
    shared: dict[str, Any],
) -> None:
    """Run the verifier: it runs the target model and decides every token."""
    target = {
        "chat_template": chat_template,
        "reproducible": reproducible,
        "rpc": tuple(address.strip() for address in rpc.split(",")) if rpc else (),
        "insecure_rpc": insecure_rpc,
    }
    _run("verifier", shared, (engine, model), target, {"defaults": defaults, "bind": bind, "grace": grace})


@click.command()
@click.option(
    "--connect",
    multiple=True,
    default=["tcp://127.0.0.1:7071"],
    metavar="ADDRESS,...",
    callback=lambda _ctx, _option, told: tuple(one.strip() for text in told for one in text.split(",") if one.strip()),
    help="Address of the verifier. With several, each request goes to the one that should finish it first, and on to "
    "another if one is busy or goes away.",
)
@click.option(
    "--engine",
    type=click.Choice(["auto", "mlx", "llama", "ngram", "sim"]),
    metavar="auto|mlx|llama|ngram",
    default="auto",
    help="mlx: a Hugging Face model; llama: a GGUF model; ngram: no model, repeats what followed before in the text; "
    "auto: MLX on Apple Silicon, elsewhere the engine for the model's format.",
)
@click.option(
    "--model",
    metavar="FILE|DIR|HUB_ID",
    shell_complete=complete_model,
    help="Draft model: a GGUF file, a Hugging Face directory or hub id, a name in `models list`, or `bundled`.",
)
@number(
    "--min-vocab-overlap",
    POSITIVE_SHARE,
    0.9,
    "SHARE",
    "Least share of the draft model's tokens that the verifier's vocabulary must have.",
)
@click.option(
    "--draft-temperature",
    type=click.FloatRange(0.0, 100.0),
    metavar="T",
    help="Temperature of the drafts for sampled requests (default: the request's). It changes the acceptance rate, "
    "never the text.",
)
@_daemon_options
def drafter(
    connect: tuple[str, ...],
    engine: str,
    model: str | None,
    min_vocab_overlap: float,
    draft_temperature: float | None,
    defaults: dict[str, object],
    shared: dict[str, Any],
) -> None:
    """Run a drafter: its draft model proposes the next tokens."""
    own = {"connect": connect, "min_vocab_overlap": min_vocab_overlap, "draft_temperature": draft_temperature}
    _run("drafter", shared, (engine, model), {}, {"defaults": defaults, **own})


def _run(
    role: str, shared: dict[str, Any], model: tuple[str, str | None], more: dict[str, Any], own: dict[str, Any]
) -> None:
    """Run a daemon. model: its engine and name; more: further ModelSettings; own: of the role's settings."""
    for limit, least, what, flag in _LIMITS:
        allowed = resource.getrlimit(limit)[0]
        if allowed != resource.RLIM_INFINITY and allowed < least:
            raise ConfigError(f"the limit is {allowed} {what}, a daemon needs {least}: raise it (ulimit {flag})")
    from specmesh.config import DrafterSettings, ModelSettings, VerifierSettings, parse_port
    from specmesh.daemons.runtime.instance import InstanceLock

    ctx = click.get_current_context()
    port = parse_port(shared["http"], shared["api_key_file"], shared["allow_origin"])
    where = shared["socket"] or paths.default_socket(role)
    with about("socket"):
        lock = InstanceLock(where)
    with lock:  # visible to clients before the rest is imported
        _configure_log(ctx, shared)
        engine, name = model
        with about("model"):
            bundled = name == "bundled" and role == "verifier"
            path = paths.bundled("target.gguf") if bundled else model_path(name, engine)
        unset = ctx.get_parameter_source("ctx") is ParameterSource.DEFAULT
        same = {key: shared[key] for key in ("max_sessions", "threads", "gpu_layers", "stretch")}
        settings = own | {
            "model": ModelSettings(
                engine,
                path,
                ctx=None if unset else shared["ctx"],
                gpu_required=shared["gpu"] == "required",
                **same,
                **more,
            ),
            "socket": where,
            "port": port,
            "insecure": shared["insecure_no_auth"],
            **{key: shared[key] for key in ("keys", "max_queue", "drain")},
        }
        made = VerifierSettings(**settings) if role == "verifier" else DrafterSettings(**settings)
        from specmesh.daemons.serve import serve_drafter, serve_verifier  # not before: what is wrong is told at once

        reread = rereader(ctx, port)
        if isinstance(made, VerifierSettings):
            serve_verifier(made, reread)
        else:
            serve_drafter(made, reread)


def _configure_log(ctx: click.Context, shared: dict[str, Any]) -> None:
    from specmesh import logs

    file = None
    if shared["log_file"] is not None:
        with about("log_file"):
            file = logs.LogFile(shared["log_file"])
        ctx.call_on_close(file.close)
        ctx.call_on_close(logs.flush)  # called first
    logs.configure(shared["log_level"], shared["log_format"], file)


@click.command("rpc-server")
@click.option("--bind", default="127.0.0.1:50052", metavar="HOST:PORT", help="Address to listen on.")
@click.option("--threads", type=COUNT, metavar="N", help="Number of CPU threads (default: one per core).")
@_insecure_rpc_option
def rpc_server(bind: str, threads: int | None, insecure_rpc: bool) -> None:
    """Lend this machine's GPUs, or its CPU, to `specmesh verifier --rpc`, one verifier at a time.

    This is llama.cpp's own server; both machines need a llama.cpp built with RPC. When it ends, by Ctrl-C, so does the
    verifier that uses it.
    """
    from specmesh.engines.base import physical_cores
    from specmesh.engines.llama.library import serve_rpc

    check_rpc(bind, "--bind", insecure=insecure_rpc)
    serve_rpc(bind, threads or physical_cores())
