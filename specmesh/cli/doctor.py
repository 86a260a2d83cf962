"""`specmesh doctor`: what is installed here, set, running and reachable, and what to type where it is not right."""

import os
import platform
import socket
import sys
from collections.abc import Iterable
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
from specmesh.engines.llama.library import PINNED, gpu_devices
from specmesh.errors import ConfigError
from specmesh.paths import ROLES, SYSTEM_DIR
from specmesh.security import endpoint, is_loopback


class Check(NamedTuple):
    """The result of one check. status: ok, warn (it works, but not as it could), fail. fix: None where all is well."""

    status: str
    name: str
    found: str
    fix: str | None = None


ok, warn, fail = (partial(Check, status) for status in ("ok", "warn", "fail"))


def examine() -> list[Check]:
    running = find()
    start = "specmesh verifier --model FILE  # or: specmesh drafter --connect tcp://HOST:7071"
    return [
        *(ok("specmesh", f"{__version__}, Python {platform.python_version()}"), _llama(), *_mlx()),
        *(_settings(role) for role in ROLES),
        *([judge_daemon(one) for one in running] or [warn("daemons", "none runs", start)]),
        *_system_folder(),
        *(judge_reach(one, _connect(one)) for one in _addresses(running)),
    ]


def lines(checks: Iterable[Check]) -> list[str]:
    """Return a row for each check, and one for what to type."""
    rows: list[tuple[str, str, str]] = []
    for check in checks:
        rows.append((check.status, check.name, check.found))
        if check.fix is not None:
            rows.append(("", "", f"-> {check.fix}"))
    return aligned(rows)


# --- software


def _llama() -> Check:
    name, installed = "llama.cpp", _version("llama_cpp_python")
    if installed is None:
        return warn(name, "not installed; GGUF models need it", "pip install 'specmesh[llama]'")
    state, reinstall = (
        f"llama-cpp-python {installed}",
        "pip install --force-reinstall --no-cache-dir '.[llama]'",
    )
    if installed != PINNED:
        return fail(
            name, f"{state}, specmesh needs {PINNED}", f"pip install 'llama-cpp-python=={PINNED}'"
        )
    try:
        gpus = gpu_devices()
    except ConfigError as error:
        return fail(name, str(error), reinstall)
    state += f"; sees {', '.join(gpus) or 'no GPU'}"
    if not gpus and Path("/dev/nvidiactl").exists():
        return warn(
            name,
            f"{state}; the NVIDIA GPU here is not used",
            f"CMAKE_ARGS=-DGGML_CUDA=on {reinstall}",
        )
    return ok(name, state)


def _mlx() -> list[Check]:
    if (found := _version("mlx_lm")) is not None:
        return [ok("mlx", f"mlx-lm {found}")]
    if (sys.platform, platform.machine()) == ("darwin", "arm64"):
        return [
            warn(
                "mlx",
                "not installed; it drafts fastest on Apple Silicon",
                "pip install 'specmesh[mlx]'",
            )
        ]
    return []


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
    count = sum(origin(ctx, option) is not None for option in keys(ctx.command).values())
    return ok(name, f"{count} set, in {ctx.params['config'] or 'no file'}")


def judge_daemon(one: Found) -> Check:
    name, stats = one.role, one.stats
    if one.state == "does not answer":
        state = f"takes connections at {one.socket} and does not answer"
        return fail(name, state, f"kill $(cat '{one.socket}.lock')  # and see its log")
    if one.state != "running":
        return ok(name, f"at {one.socket}, {one.state}")
    state = printable(
        f"pid {stats['pid']}, {at(stats, 'model.name')} on {at(stats, 'model.backend')}"
    )
    if (running := stats["version"]) != __version__:
        state += f", of version {running}; installed is {__version__}"
        return warn(name, state, f"specmesh service restart {name}  # or stop and start it by hand")
    verifiers = objects_at(stats, "verifiers")
    if name == "drafter" and not any(one.get("name") for one in verifiers):
        return warn(
            name,
            f"{state}, has no verifier",
            "specmesh stats  # and see below: network; then its log",
        )
    why = stats.get("no_drafts")
    lasting = why in (NoDrafts.VOCABULARY, NoDrafts.CONTEXT)
    if why and (lasting or name == "drafter"):
        return warn(name, f"{state}; {printable(str(why))}", "see docs/troubleshooting.md")
    if name == "verifier" and not stats.get("peers"):
        return warn(name, f"{state}, has no drafter", "specmesh drafter --connect tcp://HOST:7071")
    return ok(name, state)


def _system_folder() -> list[Check]:
    if not SYSTEM_DIR.exists() or os.access(SYSTEM_DIR, os.X_OK):
        return []
    fix = "sudo usermod --append --groups specmesh $USER  # and log in anew"
    return [
        warn(
            "daemons",
            f"{SYSTEM_DIR}, with the sockets of this machine's services, is closed to this user",
            fix,
        )
    ]


# --- network

CONNECT_TIMEOUT_S = 2.0

MACOS_NO_ROUTE = (
    65  # EHOSTUNREACH on macOS: also what a program gets that may not use the local network
)

_PRIVACY = (
    "macOS keeps programs from the local network: System Settings > Privacy & Security > Local Network: allow what "
    "starts specmesh (the terminal, Python); launchd jobs may get no prompt: --connect to a tailnet address instead"
)


def _addresses(running: Iterable[Found]) -> Iterable[str]:
    """Return those of verifiers that a drafter here has, or by its settings would have."""
    addresses = [
        str(end["address"]) for one in running for end in objects_at(one.stats, "verifiers")
    ]
    with suppress(ConfigError):  # which the check of its settings tells
        ctx = daemon_context("drafter")
        addresses += (
            ctx.params["connect"] if origin(ctx, keys(ctx.command)["connect"]) is not None else ()
        )
    return dict.fromkeys(addresses)


def judge_reach(
    address: str, error: Exception | None, macos: bool = sys.platform == "darwin"
) -> Check:
    """Judge whether a verifier can be reached. error: what connecting to it raised."""
    name, (host, port) = "network", endpoint(address)
    match error:
        case None:
            return ok(name, f"{address} answers")
        case ConnectionRefusedError():
            fix = f"specmesh verifier --bind tcp://ADDRESS:{port}  # on {host}; or open the tunnel that ends here"
        case OSError(errno=code) if macos and code == MACOS_NO_ROUTE and not is_loopback(host):
            fix = _PRIVACY
        case OSError():
            fix = f"ping {host}  # is it on, in this network, the VPN up? does its firewall let port {port} in?"
        case _:
            fix = "specmesh config show drafter  # connect must be tcp://HOST:PORT"
    return fail(
        name, f"{address} cannot be reached ({getattr(error, 'strerror', None) or error})", fix
    )


def _connect(address: str) -> Exception | None:
    """Connect to an address and disconnect; return what that raised."""
    host, port = endpoint(address)
    if not (host and port):
        return ValueError("it is no address")
    try:
        socket.create_connection((host, port), CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        return error
    return None
