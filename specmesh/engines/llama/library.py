"""llama.cpp through llama-cpp-python's low-level bindings: its version, log, devices and RPC."""

import ctypes
import functools
import importlib
import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from typing import Any, NoReturn

import structlog

from specmesh.core.fields import Json, list_at
from specmesh.engines.sandbox import Child
from specmesh.errors import ChildFailed, ConfigError, NotThereYet, pip_install

PINNED = "0.3.36"
"""The llama-cpp-python release whose struct layouts this package uses."""

_INSTALL = pip_install("llama")
_POINTER = ctypes.c_void_p
_TEXT = ctypes.c_char_p
_SIZE = ctypes.c_size_t
# In ggml.h's enum ggml_log_level; the constants named in the bindings' own logger are outdated.
_ERROR = 4
# In ggml-backend.h's enum ggml_backend_dev_type.
_CPU_TYPE = 0
_GPU_TYPES = (1, 2)

NO_RPC = (
    "this build of llama.cpp has no RPC: build it anew with "
    'CMAKE_ARGS="-DGGML_RPC=ON" pip install --force-reinstall --no-deps --no-cache-dir '
    f"--no-binary llama-cpp-python llama-cpp-python=={PINNED}, "
    "adding what your GPU needs to CMAKE_ARGS"
)

CPU_ONLY = "this llama.cpp was built for the CPU only (see the README for others)"

_log = structlog.get_logger("specmesh.engines.llama")


ERRORS: deque[str] = deque(maxlen=8)
"""llama.cpp's last error lines."""

NOT_LOCKED: deque[str] = deque(maxlen=1)
"""llama.cpp's last line about memory that the system did not lock."""

_LOCKING = "failed to mlock"

_LISTENERS: list[Callable[[str], object]] = []

_QUIET: list[None] = []
"""An item while llama.cpp's errors are expected."""

_CALLBACKS: list[Any] = []
"""Functions whose addresses llama.cpp keeps until the process ends."""


def _log_line(level: int, text: bytes | None, _user: object) -> None:
    line = (text or b"").decode("utf-8", "replace").strip()
    if not line.strip("."):
        return
    for listener in _LISTENERS:
        listener(line)
    if _LOCKING in line:
        NOT_LOCKED.append(line.splitlines()[0])
    if level == _ERROR and not _QUIET:
        ERRORS.append(line)
        _log.error("llama_cpp", line=line)
    else:
        _log.debug("llama_cpp", line=line)


@contextmanager
def listening(take: Callable[[str], object]) -> Generator[None]:
    """Give `take` all lines that llama.cpp logs meanwhile, those for debugging too."""
    _LISTENERS.append(take)
    try:
        yield
    finally:
        _LISTENERS.remove(take)


@contextmanager
def quiet() -> Generator[None]:
    """Take llama.cpp's errors for mere news meanwhile: they are wanted."""
    _QUIET.append(None)
    try:
        yield
    finally:
        _QUIET.pop()


def quoted_errors() -> str:
    return "; ".join(dict.fromkeys(ERRORS)) or "llama.cpp gave no reason"


@functools.cache
def library() -> Any:
    """Return the bindings, initialised once per process.

    Raises ConfigError if they are not installed or not of the pinned version. To be called before
    the modules of this engine are imported: they import another library of the extra `llama`.
    """
    try:
        package = importlib.import_module("llama_cpp")
    except ImportError as error:
        raise ConfigError("llama-cpp-python is not installed", _INSTALL) from error
    except (OSError, RuntimeError) as error:
        reason = f"llama-cpp-python is installed but its library does not load: {error}"
        raise ConfigError(reason) from error
    version: str = package.__version__
    if version != PINNED:
        reason = f"llama-cpp-python {version} is installed, specmesh needs {PINNED}"
        raise ConfigError(reason, _INSTALL)
    lib = package.llama_cpp
    # The reason of an abort is the last line of stderr then; no debugger is started.
    os.environ["GGML_NO_BACKTRACE"] = "1"
    _CALLBACKS.append(lib.llama_log_callback(_log_line))
    lib.llama_log_set(_CALLBACKS[0], None)
    lib.llama_backend_init()
    return lib


@functools.cache
def extension() -> Any:
    """Return the bindings of functions that are not in llama.h, such as those of NextN layers.

    They may change with each release, but the release is pinned. Raises ConfigError for a library
    without them.
    """
    library()
    try:
        return importlib.import_module("llama_cpp.llama_cpp_ext")
    except (AttributeError, ImportError) as error:
        raise ConfigError(f"this llama.cpp lacks functions for NextN layers: {error}") from error


def keeping_gil(lib: Any, name: str, result: Any = None) -> Any:
    """Return a function of llama.cpp during which no other Python thread runs.

    result: the type of its result, if not as declared.
    """
    declared = getattr(lib, name)
    address: Any = ctypes.cast(declared, _POINTER).value
    return ctypes.PYFUNCTYPE(result or declared.restype, *declared.argtypes)(address)


def plain_function(lib: Any, name: str, result: Any) -> Any:
    """Return a function of llama.cpp that is called for each of many thousand ids.

    Arguments are C ints, and pointers as `c_void_p`: to convert them as declared takes three times
    as long as the call. It keeps the interpreter's lock, which threads could take between any two
    calls anyway.

    result: the type of its result.
    """
    address: Any = ctypes.cast(getattr(lib, name), _POINTER).value
    return ctypes.PYFUNCTYPE(result)(address)


@functools.cache
def gpu_devices() -> tuple[str, ...]:
    """Return the GPUs that can take layers, as "NAME: description"."""
    name = ggml_function("ggml_backend_dev_name", _TEXT, _POINTER)
    description = ggml_function("ggml_backend_dev_description", _TEXT, _POINTER)
    found = list[str]()
    for device in _devices(_GPU_TYPES):
        found.append(f"{name(device).decode()}: {description(device).decode()}")
    return tuple(found)


def device_handles(names: Sequence[str]) -> list[int]:
    """Return ggml's pointers to the devices of these names. Raises ConfigError."""
    find = ggml_function("ggml_backend_dev_by_name", _POINTER, _TEXT)
    handles = list[int]()
    for name in names:
        handle = find(name.encode())
        if not handle:
            raise ConfigError(f"--device: llama.cpp has no {name}", "see `specmesh doctor`")
        handles.append(handle)
    return handles


def buffer_types() -> dict[str, int]:
    """Return ggml's pointers to the buffer types of all devices, by the names of both."""
    name_of_device = ggml_function("ggml_backend_dev_name", _TEXT, _POINTER)
    type_of = ggml_function("ggml_backend_dev_buffer_type", _POINTER, _POINTER)
    name_of = ggml_function("ggml_backend_buft_name", _TEXT, _POINTER)
    found = dict[str, int]()
    for device in _devices((_CPU_TYPE, *_GPU_TYPES)):
        buffer_type = type_of(device)
        found[name_of(buffer_type).decode()] = buffer_type
        found.setdefault(name_of_device(device).decode(), buffer_type)
    return found


def gpu_free_bytes(names: Sequence[str]) -> int:
    """Return the bytes that these GPUs have left now, by their own count."""
    memory = ggml_function("ggml_backend_dev_memory", None, _POINTER, _POINTER, _POINTER)
    free = 0
    name = ggml_function("ggml_backend_dev_name", _TEXT, _POINTER)
    for device in _devices(_GPU_TYPES):
        if name(device).decode() not in names:
            continue
        left = _SIZE()
        total = _SIZE()
        memory(device, ctypes.byref(left), ctypes.byref(total))
        free += left.value
    return free


@functools.cache
def gpu_backends() -> tuple[str, ...]:
    """Return the names of this build's backends for GPUs of this machine, present or not."""
    get = ggml_function("ggml_backend_reg_get", _POINTER, _SIZE)
    name = ggml_function("ggml_backend_reg_name", _TEXT, _POINTER)
    count = ggml_function("ggml_backend_reg_dev_count", _SIZE, _POINTER)
    device = ggml_function("ggml_backend_reg_dev_get", _POINTER, _POINTER, _SIZE)
    kind = ggml_function("ggml_backend_dev_type", ctypes.c_int, _POINTER)
    found = list[str]()
    for backend in map(get, range(ggml_function("ggml_backend_reg_count", _SIZE)())):
        kinds = {kind(device(backend, index)) for index in range(count(backend))}
        # A backend whose GPU is missing has no devices.
        if name(backend) != b"RPC" and kinds <= set(_GPU_TYPES):
            found.append(name(backend).decode())
    return tuple(found)


def check_gpu() -> None:
    """Raise NotThereYet if this build finds no GPU, ConfigError if it never will.

    A child looks for it: a process that has looked once finds no other GPU later.
    """
    with closing(Child(__name__, memory=2**44, seconds=60.0)) as child:
        try:
            seen = child.ask({})
        except ChildFailed as error:
            reason = f"--require-gpu: llama.cpp cannot look for a GPU ({error})"
            raise NotThereYet(reason, "see `specmesh doctor`") from None
    if seen["gpus"]:
        return
    if not seen["backends"]:
        raise ConfigError(f"--require-gpu: there is no GPU: {CPU_ONLY}", "install it anew")
    backends = ", ".join(map(str, list_at(seen, "backends")))
    reason = f"--require-gpu: {backends} of llama.cpp finds no GPU"
    raise NotThereYet(reason, "see `specmesh doctor`")


def _devices(kinds: tuple[int, ...]) -> list[int]:
    get = ggml_function("ggml_backend_dev_get", _POINTER, _SIZE)
    kind = ggml_function("ggml_backend_dev_type", ctypes.c_int, _POINTER)
    count: int = ggml_function("ggml_backend_dev_count", _SIZE)()
    devices = map(get, range(count))
    return [device for device in devices if kind(device) in kinds]


def ggml_function(name: str, result: Any, *arguments: Any) -> Any:
    """Return a function of ggml itself, which the bindings do not declare.

    It is that of the copy which llama.cpp uses. `llama_cpp._ggml` loads a second copy, since wheels
    have files in the place of links, and llama.cpp knows none of the devices registered there.
    """
    library()
    llama = importlib.import_module("llama_cpp.llama_cpp")
    function = getattr(llama._lib, name)  # noqa: SLF001  # the library has no public name
    function.restype = result
    function.argtypes = arguments
    return function


def add_servers(addresses: Sequence[str]) -> None:
    """Put the devices of RPC servers at HOST:PORT before this process's own GPUs.

    Raises ConfigError. llama.cpp ends the process if a server cannot be reached or has another
    version, so a child asks each server first. The protocol has neither keys nor encryption.
    """
    check_servers(addresses)
    add_known_servers(addresses)


def add_known_servers(addresses: Sequence[str]) -> None:
    """Put devices as `add_servers`; a server that does not answer ends the process."""
    for address in addresses:
        _add_server(address)


def check_servers(addresses: Sequence[str]) -> None:
    """Raise NotThereYet if an RPC server does not answer, ConfigError for a build without RPC."""
    _rpc_function("ggml_backend_rpc_add_server", None)
    # A server may be far away, and answers once its GPU is ready.
    with closing(Child(__name__, memory=2**32, seconds=20.0)) as child:
        for address in addresses:
            try:
                child.ask({"address": address})
            except ChildFailed as error:
                reason = f"no RPC server of llama.cpp {PINNED} answers at {address} ({error})"
                remedy = (
                    "start one there with `specmesh rpc-server`; "
                    "one server serves one verifier at a time"
                )
                raise NotThereYet(reason, remedy) from None


def answer(request: Json) -> Json:
    """Add the server at an `address`, or list the GPUs of this machine; runs in the child.

    The child ends if no server answers.
    """
    if "address" in request:
        _add_server(str(request["address"]))
        return {}
    return {"gpus": list(gpu_devices()), "backends": list(gpu_backends())}


def _add_server(address: str) -> None:
    add = _rpc_function("ggml_backend_rpc_add_server", _POINTER, _TEXT)
    found = add(address.encode())
    if not found:
        raise ConfigError(f"the RPC server at {address} has no devices", "start it anew")
    ggml_function("ggml_backend_register", None, _POINTER)(found)
    gpu_devices.cache_clear()


def serve_rpc(address: str, threads: int) -> NoReturn:
    """Serve one client at a time at HOST:PORT, until a signal.

    Lends this machine's GPUs, or `threads` CPU threads if it has none. Raises ConfigError if it
    cannot start.
    """
    types = (_TEXT, _TEXT, _SIZE, _SIZE, ctypes.POINTER(_POINTER))
    start = _rpc_function("ggml_backend_rpc_start_server", None, *types)
    devices = _devices(_GPU_TYPES) or _devices((_CPU_TYPE,))
    handles = (_POINTER * len(devices))(*devices)
    # llama.cpp does not return to Python, whose signal handlers would not run.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    start(address.encode(), None, threads, len(devices), handles)
    reason = f"no RPC server can listen at {address}"
    raise ConfigError(reason, "name an address of this machine and a free port")


def _rpc_function(name: str, result: Any, *arguments: Any) -> Any:
    """Return a function of llama.cpp's RPC backend by name: its library need not be found."""
    find = ggml_function("ggml_backend_reg_by_name", _POINTER, _TEXT)
    backend = find(b"RPC")
    if not backend:
        raise ConfigError(NO_RPC)
    address_of = ggml_function("ggml_backend_reg_get_proc_address", _POINTER, _POINTER, _TEXT)
    address = address_of(backend, name.encode())
    return ctypes.CFUNCTYPE(result, *arguments)(address)
