"""`specmesh verifier`, `drafter` and `rpc-server`. Only a command that runs imports a daemon."""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NotRequired, TypedDict, TypeVar, Unpack, cast

import click
from click.core import ParameterSource

from specmesh import paths
from specmesh.cli.config import DaemonCommand, config_option, managed
from specmesh.cli.llama_options import llama_options, llama_options_of
from specmesh.cli.model_names import local_models
from specmesh.cli.options import (
    COUNT,
    COUNT_OR_ZERO,
    FILE,
    SECONDS,
    combined,
    flag,
    option,
    several,
)
from specmesh.config import (
    MIN_CTX,
    DaemonSettings,
    DrafterSettings,
    ModelSettings,
    Port,
    VerifierSettings,
    parse_kv_cache,
    parse_port,
    parse_window,
    with_keys,
)
from specmesh.core.fields import Json
from specmesh.core.text.tool_formats import FORMATS
from specmesh.errors import ConfigError
from specmesh.llama_options import LlamaOptions
from specmesh.machines import STEPS_MS
from specmesh.models.files import located
from specmesh.security.addresses import check_bind, check_present, check_rpc, host_of, listen
from specmesh.security.keys import find_keys

if TYPE_CHECKING:
    from specmesh.daemons.runtime.patience import Patience

Settings = TypeVar("Settings", bound=DaemonSettings | ModelSettings)
ADDRESS = "tcp://127.0.0.1:7071"
SWA_FULL = {"auto": None, "on": True, "off": False}


class DaemonOptions(TypedDict):
    """The options that this module reads. The others are only settings of the same name."""

    socket: Path | None
    http: str | None
    api_key_file: Path | None
    allow_origin: tuple[str, ...]
    insecure_no_auth: bool
    keys: Path | None
    log_level: str
    model: str | None
    engine: str
    wait: bool
    bind: NotRequired[str]
    kv_cache: NotRequired[str]
    window: NotRequired[str]
    swa_full: NotRequired[str]
    mtp: NotRequired[str]
    distributed: NotRequired[bool]
    draft_model: NotRequired[str | None]


_threads_option = option("--threads", COUNT, "N", "Number of CPU threads (default: one per core).")
_socket_option = option(
    "--socket", FILE, "PATH", "Socket of the local API (default: in this user's runtime folder)."
)
_http_option = option(
    "--http",
    str,
    "HOST:PORT",
    "Serve OpenAI's API there too; beyond this machine with keys only.",
)
_api_key_file_option = option(
    "--api-key-file",
    FILE,
    "FILE",
    "API keys for --http, one per line, in a file that others cannot read.",
)
_allow_origin_option = several(
    "--allow-origin", "ORIGIN", "Let its web pages use --http; '*' for any, with keys only."
)
_responses_option = option(
    "--responses",
    COUNT_OR_ZERO,
    "N",
    "Number of answers of /v1/responses to keep in memory, in 64 MiB at most.",
    0,
)
_keys_option = option(
    "--keys",
    FILE,
    "DIR",
    "Folder of this machine's keys (default: the user's, then the system's).",
)
_insecure_no_auth_option = flag(
    "--insecure-no-auth",
    "Use no keys, even beyond this machine: anybody on the network path can read and change "
    "everything.",
)
_gpu_layers_option = option(
    "--gpu-layers",
    click.IntRange(-1),
    "N",
    "Number of model layers to put on a GPU; -1 for all.",
    shown="-1",
)
_require_gpu_option = flag(
    "--require-gpu", "Load nothing without a GPU (default: without one the CPU does all)."
)
_wait_option = flag(
    "--wait",
    "Wait for an address, a disk or a GPU that is not there yet, as services always do.",
)
_max_sessions_option = option(
    "--max-sessions", COUNT, "N", "Maximum number of concurrent sessions.", 8
)
_ctx_option = option(
    "--ctx",
    click.IntRange(MIN_CTX),
    "N",
    "Maximum number of tokens per session.",
    shown="of a target, its trained context if memory allows; of a draft model, 4096 at most",
)
_drain_option = option(
    "--drain",
    SECONDS,
    "SECONDS",
    "Time for running requests after SIGTERM; a second one ends at once.",
    10.0,
)
_log_level_option = option(
    "--log-level",
    click.Choice(["debug", "info", "warning", "error"]),
    None,
    "Minimum level to log; debug includes the engines' own lines.",
    "info",
)
_stretch_option = click.option(  # for `specmesh demo`
    "--stretch", type=click.Choice(list(STEPS_MS)), hidden=True
)
_daemon_options = combined(
    [
        _socket_option,
        _http_option,
        _api_key_file_option,
        _allow_origin_option,
        _responses_option,
        _keys_option,
        _insecure_no_auth_option,
        _threads_option,
        _gpu_layers_option,
        _require_gpu_option,
        llama_options,
        _wait_option,
        _max_sessions_option,
        _ctx_option,
        _drain_option,
        _log_level_option,
        _stretch_option,
        config_option,
    ]
)
_insecure_rpc_option = flag(
    "--insecure-rpc",
    "Use RPC beyond this machine: it has neither keys nor encryption. Anybody who reaches the "
    "port, or is on the network path, can read and change weights and texts, and may take over "
    "the machine.",
)


@click.command(cls=DaemonCommand)
@option(
    "--model",
    click.Path(),
    "FILE|DIR|HUB_ID",
    "Target model: a GGUF file, for MLX a Hugging Face directory or hub id, a name in `models "
    "list`, or `bundled`.",
    completion=local_models,
)
@option(
    "--draft-model",
    click.Path(),
    "FILE|DIR|HUB_ID",
    "Draft model beside the target, in this process and by the same engine: a GGUF file, for MLX "
    "a Hugging Face directory or hub id, a name in `models list`, or `bundled`.",
    completion=local_models,
)
@option(
    "--mtp",
    click.Choice(["auto", "off"]),
    None,
    "Draft by the model's own multi-token prediction layers; auto: if its file has some, and "
    "there is no --draft-model.",
    "auto",
)
@option("--bind", str, "ADDRESS", "Address to listen on for drafters.", ADDRESS)
@option("--chat-template", FILE, "FILE", "Jinja template for chats (default: the model's own).")
@option(
    "--tool-format",
    click.Choice([*FORMATS]),
    None,
    "How the model calls tools (default: as its template shows).",
)
@option(
    "--grace",
    SECONDS,
    "SECONDS",
    "Time to keep a completion whose drafter went away (`generate --resume`).",
    30.0,
)
@option(
    "--kv-cache",
    str,
    "auto|SIZE",
    "Memory that the sessions share: a number of tokens, or bytes as in 8G. auto: what all "
    "sessions can need, and half of the free memory at most.",
    "auto",
)
@option(
    "--max-queue",
    COUNT_OR_ZERO,
    "N",
    "Maximum number of waiting requests; more exit with 75.",
    256,
)
@option(
    "--suffix-cache",
    COUNT_OR_ZERO,
    "MB",
    "Memory, in MiB, for earlier outputs of each API key and local user: their later texts are "
    "drafted from them. 0 keeps none.",
    0,
)
@flag(
    "--reproducible",
    "Give every step the same number of rows: the text is then the same to the last bit with and "
    "without drafts, whatever else runs. Steps cost more, see docs/usage.md.",
)
@option(
    "--swa-full",
    click.Choice([*SWA_FULL]),
    None,
    "Keep all of a text for layers with a sliding window, not the last part of it only; auto: if "
    "that takes at most twice the memory. Longer parts of more texts are then reused.",
    "auto",
)
@several(
    "--rpc", "HOST:PORT,...", "Put layers on these machines too, which run `specmesh rpc-server`."
)
@_insecure_rpc_option
@flag(
    "--distributed",
    "Compute the target on all ranks that `mlx.launch` starts, with --engine mlx; the first of "
    "them verifies, see docs/mlx.md.",
)
@option(
    "--engine",
    click.Choice(["llama", "mlx", "sim"]),
    None,
    "llama: a GGUF model; mlx: a Hugging Face model, see docs/mlx.md; sim: no model, steps that "
    "only take time, see docs/usage.md.",
    "llama",
)
@_daemon_options
def verifier(**values: Unpack[DaemonOptions]) -> None:
    """Run the verifier: it runs the target model and decides every token."""
    _run("verifier", values)


@click.command(cls=DaemonCommand)
@several(
    "--connect",
    "ADDRESS,...",
    "Address of the verifier. With several, each request goes to the one with the least to do, "
    "and on to another if one is busy or goes away.",
    [ADDRESS],
)
@option(
    "--engine",
    click.Choice(["auto", "mlx", "llama", "ngram", "sim"]),
    None,
    "mlx: a Hugging Face model; llama: a GGUF model; ngram: no model, repeats what followed before "
    "in the text; sim: no model either, see docs/usage.md; auto: MLX on Apple Silicon, elsewhere "
    "the engine for the model's format.",
    "auto",
)
@option(
    "--model",
    click.Path(),
    "FILE|DIR|HUB_ID",
    "Draft model: a GGUF file, a Hugging Face directory or hub id, a name in `models list`, "
    "or `bundled`.",
    completion=local_models,
)
@option(
    "--window",
    str,
    "auto|N|full",
    "Number of tokens to read of a text that is longer than --ctx; full: draft for no longer text.",
    "auto",
)
@_daemon_options
def drafter(**values: Unpack[DaemonOptions]) -> None:
    """Run a drafter: its draft model proposes the next tokens."""
    _run("drafter", values)


def _run(role: str, values: DaemonOptions) -> None:
    """Run a daemon. The settings of a daemon and its model are named like their options."""
    from specmesh import logs

    wait = values["wait"] or managed()
    port = parse_port(values["http"], values["api_key_file"], values["allow_origin"])
    if port is not None and not wait:
        port = with_keys(port)
    window = parse_window(values.get("window", "auto"))
    _check_mtp(values["engine"], values.get("mtp"))
    llama = llama_options_of(cast("Json", values))
    kv_cache = parse_kv_cache(values.get("kv_cache", "auto"))
    if values.get("distributed") and _is_follower(values["engine"]):
        _follow(values, llama)
        return
    path = values["socket"] or paths.default_socket(role)
    with paths.instance_lock(path):  # visible to clients before the rest is imported
        logs.configure(values["log_level"])
        model = _model_of(role, values, wait=wait)
        if not wait:
            _check_addresses(values, port)
        given: Json = {
            **values,
            "model": model,
            "draft_model": _draft_model_of(values, wait=wait),
            "insecure": values["insecure_no_auth"],
            "socket": path,
            "port": port,
            "wait": wait,
            "window": window,
            "kv_cache": kv_cache,
            "mtp": values.get("mtp", "off") == "auto",
            "swa_full": SWA_FULL[values.get("swa_full", "auto")],
            "llama": llama,
        }
        given["model"] = _settings(ModelSettings, given)
        # Not imported earlier: errors of the settings shall be shown at once.
        from specmesh.daemons.serve import serve_drafter, serve_verifier

        if role == "verifier":
            serve_verifier(_settings(VerifierSettings, given))
        else:
            serve_drafter(_settings(DrafterSettings, given))


def _is_follower(engine: str) -> bool:
    """Return True for a rank that only computes. Raises ConfigError for a process without one."""
    if engine != "mlx":
        return False
    from specmesh.engines.mlx.launch import own_rank

    return own_rank() > 0


def _follow(values: DaemonOptions, llama: LlamaOptions) -> None:
    """Run a rank that is not the first, until that ends."""
    from specmesh import logs
    from specmesh.engines.mlx.model import check_library

    logs.configure(values["log_level"])
    model = _model_of("verifier", values, wait=False)
    given: Json = {**values, "model": model, "kv_cache": None, "swa_full": None, "mtp": False}
    settings = _settings(ModelSettings, given | {"llama": llama, "window": None})
    check_library()
    from specmesh.engines.mlx.follower import follow

    follow(settings)


def _check_mtp(engine: str, mtp: str | None) -> None:
    """Raise ConfigError if a head is asked for that the engine does not run."""
    source = click.get_current_context().get_parameter_source("mtp")
    is_given = source not in (None, ParameterSource.DEFAULT)
    if engine == "mlx" and mtp == "auto" and is_given:
        raise ConfigError("--engine mlx has no --mtp auto", "leave it out, or give --engine llama")


def _model_of(role: str, values: DaemonOptions, *, wait: bool) -> str | None:
    """Return the model's path or id. A daemon that waits looks for the file later."""
    model = values["model"]
    if model == "bundled" and role == "verifier":
        if values["engine"] == "mlx":
            reason = "the bundled target is a GGUF file, which MLX does not load"
            raise ConfigError(reason, "give --engine llama, or --model DIR")
        return paths.bundled("target.gguf")
    if wait:
        return model
    return located(model, values["engine"])


def _draft_model_of(values: DaemonOptions, *, wait: bool) -> str | None:
    """Return the path of the draft model beside a target, None for none."""
    model = values.get("draft_model")
    if model is None or wait:
        return model
    return located(model, values["engine"])


def _check_addresses(values: DaemonOptions, port: Port | None) -> None:
    """Raise ConfigError for an address that is not allowed or that this machine does not have.

    Slow imports come later.
    """
    from specmesh.daemons.link.names import numbers_here, on_thread

    # Ctrl-C ends a wait for a thread, not one in a look-up.
    bind = values.get("bind")
    if bind is not None:
        insecure = values["insecure_no_auth"]
        keyed = not insecure and find_keys(values["keys"]) is not None
        check_bind(bind, keyed=keyed, insecure=insecure)
        host = host_of(bind, "--bind")
        found = on_thread(partial(numbers_here, host, "--bind", interfaces=True))
        check_present(found.result()[0], "--bind")
    if port is not None:
        found = on_thread(partial(numbers_here, port.host, "--http", everywhere=True))
        check_present(found.result()[0], "--http")


def _settings(kind: type[Settings], values: Json) -> Settings:
    """Return settings of this kind, each field with the value of its name."""
    named = {field.name: values[field.name] for field in fields(kind) if field.name in values}
    return cast("Callable[..., Settings]", kind)(**named)


@click.command("rpc-server")
@option("--bind", str, "HOST:PORT", "Address to listen on.", "127.0.0.1:50052")
@_threads_option
@_insecure_rpc_option
@flag("--wait", "Wait for an address that is not there yet, as under a service manager.")
def rpc_server(bind: str, threads: int | None, insecure_rpc: bool, wait: bool) -> None:
    """Lend this machine's GPUs, or its CPU, to `specmesh verifier --rpc`, one verifier at a time.

    This is llama.cpp's own server; both machines need a llama.cpp built with RPC. When it ends, by
    Ctrl-C, so does the verifier that uses it.
    """
    from specmesh import logs
    from specmesh.daemons.runtime.notifier import Notifier
    from specmesh.daemons.runtime.patience import Patience
    from specmesh.engines.llama.library import serve_rpc
    from specmesh.host import physical_cores

    check_rpc(bind, "--bind", insecure=insecure_rpc)
    logs.configure("info")
    patience = Patience(Notifier(), lambda: False, waits=wait or managed())
    address = patience.until_there(lambda: _free_address(bind, patience))
    serve_rpc(address, threads or physical_cores())


def _free_address(bind: str, patience: "Patience") -> str:
    """Return HOST:PORT with the host's number. Raise NotThereYet if nobody can listen there yet.

    llama.cpp would not wait for the address.
    """
    from specmesh.daemons.link.names import numbers_here

    host, _, port = bind.rpartition(":")
    numbers = patience.result_of(lambda: numbers_here(host, "--bind"), f"--bind: looking up {host}")
    of_ipv4 = [number for number in numbers if ":" not in number]
    number = (of_ipv4 or numbers)[0]
    listen(number, int(port), "--bind").close()
    return f"{number}:{port}"
