"""`specmesh doctor`: checks of the software, settings, daemons and network, each with a remedy."""

import os
import platform
import socket
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from specmesh import __version__
from specmesh.cli.config import daemon_context, keys, origin
from specmesh.cli.options import aligned
from specmesh.cli.status import Found, find
from specmesh.client import printable
from specmesh.core.fields import at, objects_at
from specmesh.core.no_drafts import NoDrafts
from specmesh.engines import grammar_compiler
from specmesh.engines.llama.library import PINNED, gpu_devices
from specmesh.errors import ConfigError, pip_install
from specmesh.paths import ROLES, SYSTEM_DIR
from specmesh.security.addresses import endpoint, is_loopback


class Check(NamedTuple):
    """The result of one check."""

    status: str  # "ok", "warn" (it works, but not as well as it could) or "fail"
    name: str
    found: str
    fix: str | None = None


ok = partial(Check, "ok")
warn = partial(Check, "warn")
fail = partial(Check, "fail")


def examine() -> Iterator[Check]:
    """Yield the results of all checks."""
    running = find()
    yield ok("specmesh", f"{__version__}, Python {platform.python_version()}")
    yield _llama()
    yield from _mlx()
    decodes = {_version("llama_cpp_python"), _version("mlx_lm")} != {None}
    yield judge_grammars(grammar_compiler.trouble(), decodes=decodes)
    yield from map(_settings, ROLES)
    yield from map(judge_daemon, running)
    if not running:
        start = "specmesh verifier --model FILE  # or: specmesh drafter --connect tcp://HOST:7071"
        yield warn("daemons", "none runs", start)
    yield from _system_folder()
    for address in _addresses(running):
        yield judge_reach(address, _connect(address))


def lines(checks: Iterable[Check]) -> list[str]:
    """Return a line for each check, and one below it for its remedy."""
    rows: list[tuple[str, str, str]] = []
    for check in checks:
        rows.append((check.status, check.name, check.found))
        if check.fix is not None:
            rows.append(("", "", f"-> {check.fix}"))
    return aligned(rows)


# --- software


REINSTALL = "pip install --force-reinstall --no-cache-dir '.[llama]'"


def _llama() -> Check:
    name = "llama.cpp"
    installed = _version("llama_cpp_python")
    if installed is None:
        return warn(name, "not installed; GGUF models need it", pip_install("llama"))
    state = f"llama-cpp-python {installed}"
    if installed != PINNED:
        fix = f"pip install 'llama-cpp-python=={PINNED}'"
        return fail(name, f"{state}, specmesh needs {PINNED}", fix)
    try:
        gpus = gpu_devices()
    except ConfigError as error:
        return fail(name, str(error), REINSTALL)
    if gpus:
        return ok(name, f"{state}; sees {', '.join(gpus)}")
    state += "; sees no GPU"
    if Path("/dev/nvidiactl").exists():
        fix = f"CMAKE_ARGS=-DGGML_CUDA=on {REINSTALL}"
        return warn(name, f"{state}; the NVIDIA GPU here is not used", fix)
    return ok(name, state)


def _mlx() -> Iterator[Check]:
    installed = _version("mlx_lm")
    if installed is not None:
        yield ok("mlx", f"mlx-lm {installed}")
    elif sys.platform == "darwin" and platform.machine() == "arm64":
        state = "not installed; on Apple Silicon it runs Hugging Face models, and drafts fastest"
        yield warn("mlx", state, pip_install("mlx"))


def judge_grammars(trouble: str | None, *, decodes: bool) -> Check:
    """Judge whether grammars can be used.

    trouble: why not. decodes: a library of models is installed. Without one none are needed: not
    for a drafter without a model, and not beside vLLM.
    """
    name = "grammars"
    if trouble is None:
        return ok(name, f"llguidance {_version('llguidance')}")
    state = f"{trouble}; grammars, JSON schemas and tools are refused"
    return warn(name, state, pip_install("llama")) if decodes else ok(name, state)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


# --- settings and daemons


def _settings(role: str) -> Check:
    name = f"{role} settings"
    try:
        ctx = daemon_context(role)
    except ConfigError as error:
        return fail(name, str(error), f"specmesh config show {role}  # once that is right")
    set_here = [option for option in keys(ctx.command).values() if origin(ctx, option)]
    return ok(name, f"{len(set_here)} set, in {ctx.params['config'] or 'no file'}")


def judge_daemon(daemon: Found) -> Check:
    """Judge a daemon by its snapshot."""
    name = daemon.role
    stats = daemon.stats
    if daemon.state == "does not answer":
        state = f"takes connections at {daemon.socket} and does not answer"
        return fail(name, state, f"kill $(cat '{daemon.socket}.lock')  # and see its log")
    if daemon.state != "running":
        return ok(name, f"at {daemon.socket}, {daemon.state}")
    model = f"{at(stats, 'model.name')} on {at(stats, 'model.backend')}"
    state = printable(f"pid {stats['pid']}, {model}")
    if stats["version"] != __version__:
        state += f", of version {stats['version']}; installed is {__version__}"
        return warn(name, state, f"specmesh service restart {name}  # or stop and start it by hand")
    connected = any(verifier.get("name") for verifier in objects_at(stats, "verifiers"))
    if name == "drafter" and not connected:
        fix = "specmesh stats  # and see below: network; then its log"
        return warn(name, f"{state}, has no verifier", fix)
    reason = stats.get("no_drafts")
    lasting = reason in (NoDrafts.VOCABULARY, NoDrafts.CONTEXT, NoDrafts.FAULT)
    if reason and (lasting or name == "drafter"):
        return warn(name, f"{state}; {printable(str(reason))}", "see docs/troubleshooting.md")
    if name == "verifier" and not stats.get("peers"):
        return ok(name, f"{state}, without a drafter")
    return ok(name, state)


def _system_folder() -> Iterator[Check]:
    if SYSTEM_DIR.exists() and not os.access(SYSTEM_DIR, os.X_OK):
        fix = "sudo usermod --append --groups specmesh $USER  # and log in anew"
        state = "with the sockets of this machine's services, is closed to this user"
        yield warn("daemons", f"{SYSTEM_DIR}, {state}", fix)


# --- network

CONNECT_TIMEOUT_S = 2.0

# EHOSTUNREACH on macOS, which a program also gets if it may not use the local network.
MACOS_NO_ROUTE = 65

_PRIVACY = (
    "macOS keeps programs from the local network: System Settings > Privacy & Security > "
    "Local Network: allow the program that starts specmesh (the terminal, Python); "
    "launchd jobs may get no prompt: --connect to a tailnet address instead"
)


def _addresses(running: Iterable[Found]) -> Iterable[str]:
    """Return the verifiers' addresses of the drafters that run here, or that settings name."""
    addresses: list[str] = []
    for daemon in running:
        verifiers = objects_at(daemon.stats, "verifiers")
        addresses += [str(verifier["address"]) for verifier in verifiers]
    with suppress(ConfigError):  # the check of its settings reports it
        ctx = daemon_context("drafter")
        if origin(ctx, keys(ctx.command)["connect"]) is not None:
            addresses += ctx.params["connect"]
    return dict.fromkeys(addresses)


def judge_reach(
    address: str, error: Exception | None, macos: bool = sys.platform == "darwin"
) -> Check:
    """Judge whether a verifier can be reached.

    error: the exception of an attempt to connect.
    """
    name = "network"
    host, port = endpoint(address)
    match error:
        case None:
            return ok(name, f"{address} answers")
        case ConnectionRefusedError():
            start = f"specmesh verifier --bind tcp://ADDRESS:{port}"
            fix = f"{start}  # on {host}; or open the tunnel that ends here"
        case OSError(errno=code) if macos and code == MACOS_NO_ROUTE and not is_loopback(host):
            fix = _PRIVACY
        case OSError():
            questions = "is it on, in this network, the VPN up? does its firewall let port"
            fix = f"ping {host}  # {questions} {port} in?"
        case _:
            fix = "specmesh config show drafter  # connect must be tcp://HOST:PORT"
    reason = getattr(error, "strerror", None) or error
    return fail(name, f"{address} cannot be reached ({reason})", fix)


def _connect(address: str) -> Exception | None:
    """Connect to an address and disconnect; return the exception of the attempt."""
    host, port = endpoint(address)
    if not (host and port):
        return ValueError("it is no address")
    try:
        socket.create_connection((host, port), CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        return error
    return None
