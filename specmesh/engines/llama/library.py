"""The llama.cpp library through llama-cpp-python's low-level bindings: its version, log, devices and RPC."""

import ctypes
import functools
import importlib
import os
import signal
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from typing import Any, NoReturn

import structlog

from specmesh.core.fields import Json, list_at
from specmesh.engines.sandbox import Child
from specmesh.errors import ChildFailed, ConfigError, NotThereYet

PINNED = "0.3.36"
"""The llama-cpp-python release whose struct layouts this package uses."""

_INSTALL = 'pip install "specmesh[llama]"'
# in ggml.h's enum ggml_log_level; the constants named in the bindings' own logger are outdated
_ERROR = 4
_CPU_TYPE, _GPU_TYPES = 0, (1, 2)

NO_RPC = (
    "this build of llama.cpp has no RPC: build it anew with "
    'CMAKE_ARGS="-DGGML_RPC=ON" pip install --force-reinstall --no-deps --no-cache-dir --no-binary llama-cpp-python '
    f"llama-cpp-python=={PINNED}, adding what your GPU needs to CMAKE_ARGS"
)

CPU_ONLY = "this llama.cpp was built for the CPU alone (see the README for others)"

_log = structlog.get_logger("specmesh.engines.llama")


ERRORS: deque[str] = deque(maxlen=8)
"""llama.cpp's last error lines."""

_CALLBACKS: list[Any] = []
"""What llama.cpp keeps the addresses of as long as it lives."""


def _log_line(level: int, text: bytes | None, _user: object) -> None:
    line = (text or b"").decode("utf-8", "replace").strip()
    if not line.strip("."):
        return
    if level == _ERROR:
        ERRORS.append(line)
        _log.error("llama_cpp", line=line)
    else:
        _log.debug("llama_cpp", line=line)


def quoted_errors() -> str:
    return "; ".join(dict.fromkeys(ERRORS)) or "llama.cpp gave no reason"


@functools.cache
def library() -> Any:
    """Return the bindings, initialised once per process. Raises ConfigError where they are not the pinned version."""
    try:
        package = importlib.import_module("llama_cpp")
    except ImportError as error:
        raise ConfigError("llama-cpp-python is not installed", _INSTALL) from error
    except (OSError, RuntimeError) as error:
        raise ConfigError(
            f"llama-cpp-python is installed but its library does not load: {error}"
        ) from error
    if package.__version__ != PINNED:
        raise ConfigError(
            f"llama-cpp-python {package.__version__} is installed, specmesh needs {PINNED}",
            _INSTALL,
        )
    lib = package.llama_cpp
    # The reason of an abort is the last line of stderr then; no debugger is started.
    os.environ["GGML_NO_BACKTRACE"] = "1"
    _CALLBACKS.append(lib.llama_log_callback(_log_line))
    lib.llama_log_set(_CALLBACKS[0], None)
    lib.llama_backend_init()
    return lib


def keeping_gil(lib: Any, name: str, result: Any = None) -> Any:
    """A function of llama.cpp's during which no other Python thread runs. result: its type, if not as declared."""
    declared = getattr(lib, name)
    address: Any = ctypes.cast(declared, ctypes.c_void_p).value
    return ctypes.PYFUNCTYPE(result or declared.restype, *declared.argtypes)(address)


@functools.cache
def gpu_devices() -> tuple[str, ...]:
    """Return the GPUs that can take layers, as "NAME: description"."""
    name = _ggml("ggml_backend_dev_name", ctypes.c_char_p, ctypes.c_void_p)
    description = _ggml("ggml_backend_dev_description", ctypes.c_char_p, ctypes.c_void_p)
    return tuple(
        f"{name(device).decode()}: {description(device).decode()}"
        for device in _devices(_GPU_TYPES)
    )


@functools.cache
def gpu_backends() -> tuple[str, ...]:
    """Return the names of this build's backends for GPUs of this machine, whether or not there
    is one."""
    get = _ggml("ggml_backend_reg_get", ctypes.c_void_p, ctypes.c_size_t)
    name = _ggml("ggml_backend_reg_name", ctypes.c_char_p, ctypes.c_void_p)
    count = _ggml("ggml_backend_reg_dev_count", ctypes.c_size_t, ctypes.c_void_p)
    device = _ggml("ggml_backend_reg_dev_get", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    kind = _ggml("ggml_backend_dev_type", ctypes.c_int, ctypes.c_void_p)
    found = list[str]()
    for backend in map(get, range(_ggml("ggml_backend_reg_count", ctypes.c_size_t)())):
        kinds = {kind(device(backend, index)) for index in range(count(backend))}
        if name(backend) != b"RPC" and kinds <= set(_GPU_TYPES):  # of a GPU that is missing: none
            found.append(name(backend).decode())
    return tuple(found)


def check_gpu() -> None:
    """Raise NotThereYet if this build finds no GPU, ConfigError if it never will. A child looks:
    once a process has looked, it finds no other."""
    with closing(Child(__name__, memory=2**44, seconds=60.0)) as child:
        try:
            seen = child.ask({})
        except ChildFailed as error:
            what = f"--require-gpu: llama.cpp cannot look for a GPU ({error})"
            raise NotThereYet.of(what, "see `specmesh doctor`") from None
    if seen["gpus"]:
        return
    if not seen["backends"]:
        raise ConfigError(f"--require-gpu: there is no GPU: {CPU_ONLY}", "install it anew")
    what = (
        f"--require-gpu: {', '.join(map(str, list_at(seen, 'backends')))} of llama.cpp finds no GPU"
    )
    raise NotThereYet.of(what, "see `specmesh doctor`")


def _devices(kinds: tuple[int, ...]) -> list[int]:
    get = _ggml("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
    kind = _ggml("ggml_backend_dev_type", ctypes.c_int, ctypes.c_void_p)
    devices = [get(index) for index in range(_ggml("ggml_backend_dev_count", ctypes.c_size_t)())]
    return [device for device in devices if kind(device) in kinds]


def _ggml(name: str, result: Any, *arguments: Any) -> Any:
    """A function of ggml itself, which the bindings load but do not declare."""
    library()
    function = getattr(importlib.import_module("llama_cpp._ggml").libggml, name)
    function.restype, function.argtypes = result, arguments
    return function


def add_servers(addresses: Sequence[str]) -> None:
    """Put the devices of RPC servers at HOST:PORT before this process's own GPUs. Raises ConfigError. llama.cpp ends
    the process where a server cannot be reached or speaks another version: a child asks each first. The protocol has
    neither keys nor encryption."""
    check_servers(addresses)
    for address in addresses:
        _add_server(address)


def check_servers(addresses: Sequence[str]) -> None:
    """Raise NotThereYet if one of these RPC servers does not answer, ConfigError for a build
    without RPC."""
    _rpc_function("ggml_backend_rpc_add_server", ctypes.c_void_p, ctypes.c_char_p)
    # A server may be far away, and answers once its GPU is ready.
    with closing(Child(__name__, memory=2**32, seconds=20.0)) as child:
        for address in addresses:
            try:
                child.ask({"address": address})
            except ChildFailed as error:
                why = f"no RPC server of llama.cpp {PINNED} answers at {address} ({error})"
                remedy = "start one there with `specmesh rpc-server`; one server serves one verifier at a time"
                raise NotThereYet.of(why, remedy) from None


def answer(request: Json) -> Json:
    """Add the server at an `address`, in the child, which ends if none answers; or list the GPUs of
    this machine."""
    if "address" in request:
        _add_server(str(request["address"]))
        return {}
    return {"gpus": list(gpu_devices()), "backends": list(gpu_backends())}


def _add_server(address: str) -> None:
    found = _rpc_function("ggml_backend_rpc_add_server", ctypes.c_void_p, ctypes.c_char_p)(
        address.encode()
    )
    if not found:
        raise ConfigError(f"the RPC server at {address} has no devices", "start it anew")
    _ggml("ggml_backend_register", None, ctypes.c_void_p)(found)
    gpu_devices.cache_clear()


def serve_rpc(address: str, threads: int) -> NoReturn:
    """Serve one client at a time at HOST:PORT with this machine's GPUs, else `threads` CPU threads, until a signal.
    Raises ConfigError where it cannot start."""
    text, size, pointers = ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)
    start = _rpc_function("ggml_backend_rpc_start_server", None, text, text, size, size, pointers)
    devices = _devices(_GPU_TYPES) or _devices((_CPU_TYPE,))
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # llama.cpp never returns to where Python would look
        signal.signal(number, signal.SIG_DFL)
    start(address.encode(), None, threads, len(devices), (ctypes.c_void_p * len(devices))(*devices))
    raise ConfigError(
        f"no RPC server can listen at {address}", "name an address of this machine and a free port"
    )


def _rpc_function(name: str, result: Any, *arguments: Any) -> Any:
    """A function of llama.cpp's RPC backend by name: its library need not be found."""
    backend = _ggml("ggml_backend_reg_by_name", ctypes.c_void_p, ctypes.c_char_p)(b"RPC")
    if not backend:
        raise ConfigError(NO_RPC)
    address_of = _ggml(
        "ggml_backend_reg_get_proc_address", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p
    )
    return ctypes.CFUNCTYPE(result, *arguments)(address_of(backend, name.encode()))
