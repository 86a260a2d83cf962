"""Devices of other machines through llama.cpp's own RPC: its servers made known to this process, and a server.

Its protocol has neither keys nor encryption: addresses.py says where it may be used. llama.cpp ends the process
where a server cannot be reached, speaks another version or goes away: so a child process asks each server first.
"""

import ctypes
import signal
from collections.abc import Sequence
from typing import Any, NoReturn

import structlog

from specmesh.engines.llama.library import PINNED, accelerators, ggml_library, gpu_devices
from specmesh.engines.sandbox import Child, Limits
from specmesh.errors import ChildFailed, ConfigError

log = structlog.get_logger("specmesh.engines.llama")

ASKING = Limits(memory=2**32, seconds=20.0, environment={"GGML_NO_BACKTRACE": "1"})
"""For one server: it may be far away, and answers once its GPU is ready."""

NO_RPC = (
    "this build of llama.cpp has no RPC: build it anew with "
    'CMAKE_ARGS="-DGGML_RPC=ON" pip install --force-reinstall --no-deps --no-cache-dir --no-binary llama-cpp-python '
    f"llama-cpp-python=={PINNED}, adding what your GPU needs to CMAKE_ARGS"
)


def add_servers(addresses: Sequence[str]) -> None:
    """Make the devices of the servers at HOST:PORT count among this process's GPUs, in this order, before its own.

    Raises ConfigError where this build cannot, or a server does not answer as one of the same version.
    """
    _function("ggml_backend_rpc_add_server", ctypes.c_void_p, [ctypes.c_char_p])
    child = Child("specmesh.engines.llama.child", ASKING)
    try:
        for address in addresses:
            told = child.ask({"address": address})
            log.info("rpc_server_found", address=address, devices=told.get("devices"))
    except ChildFailed as error:
        raise ConfigError(
            f"no RPC server of llama.cpp {PINNED} answers at {address} ({error}): start one there with "
            "`specmesh rpc-server`; one server serves one verifier at a time",
            "rpc",
        ) from None
    finally:
        child.close()
    for address in addresses:
        add_server(address)


def add_server(address: str) -> None:
    """The same for one that is not asked first: where it does not answer, this process ends."""
    found = _function("ggml_backend_rpc_add_server", ctypes.c_void_p, [ctypes.c_char_p])(address.encode())
    if not found:
        raise ConfigError(f"the RPC server at {address} has no devices: start it anew", "rpc")
    register = ggml_library().ggml_backend_register
    register.argtypes, register.restype = [ctypes.c_void_p], None
    register(found)
    gpu_devices.cache_clear()


def serve(address: str, threads: int) -> NoReturn:
    """Compute for whoever connects to HOST:PORT, one at a time, with this machine's GPUs, else with `threads` of its
    CPU, until a signal ends the process. Raises ConfigError where that cannot begin."""
    start = _function(
        "ggml_backend_rpc_start_server",
        None,
        [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)],
    )
    devices = accelerators()
    for number in (signal.SIGINT, signal.SIGTERM):  # llama.cpp never returns to where Python would look
        signal.signal(number, signal.SIG_DFL)
    start(address.encode(), None, threads, len(devices), (ctypes.c_void_p * len(devices))(*devices))
    raise ConfigError(f"no RPC server can listen at {address}: name an address of this machine and a free port")


def _function(name: str, result: Any, arguments: list[Any]) -> Any:
    """A function of llama.cpp's RPC backend, asked for by name, so that its library need not be found."""
    ggml = ggml_library()
    by_name, address_of = ggml.ggml_backend_reg_by_name, ggml.ggml_backend_reg_get_proc_address
    by_name.argtypes, by_name.restype = [ctypes.c_char_p], ctypes.c_void_p
    address_of.argtypes, address_of.restype = [ctypes.c_void_p, ctypes.c_char_p], ctypes.c_void_p
    backend = by_name(b"RPC")
    if not backend:
        raise ConfigError(NO_RPC, "rpc")
    return ctypes.CFUNCTYPE(result, *arguments)(address_of(backend, name.encode()))
