"""The llama.cpp library through llama-cpp-python's low-level bindings: checked, initialised, quiet."""

import ctypes
import functools
import importlib
from collections import deque
from collections.abc import Callable
from typing import Any

import structlog

from specmesh.errors import ConfigError
from specmesh.logs import flush

PINNED = "0.3.36"
"""The llama-cpp-python release whose struct layouts this package was written against."""

_INSTALL = 'pip install "specmesh[llama]"'
# ggml.h's enum ggml_log_level; the constants named in the bindings' own logger are outdated.
_WARN, _ERROR, _CONTINUED = 3, 4, 5
_CPU_TYPE, _GPU_TYPES = 0, (1, 2)
_POOL_WARNING = "possible training context overflow"
"""llama.cpp compares all cells with the trained context; `LlamaEngine` compares one sequence's share."""

_log = structlog.get_logger("specmesh.engines.llama")


class LibraryLog:
    """Joins the fragments that llama.cpp logs to lines, and keeps the last error lines."""

    def __init__(self) -> None:
        self.errors: deque[str] = deque(maxlen=8)
        self._line = ""
        self._level = 0

    def feed(self, level: int, text: bytes | None, _user: object = None) -> None:
        """Take one fragment; a line is logged when it ends or another begins."""
        if level != _CONTINUED:
            self._emit(self._line)
            self._line, self._level = "", level
        *lines, self._line = (self._line + (text or b"").decode("utf-8", "replace")).split("\n")
        for line in lines:
            self._emit(line)

    def _emit(self, line: str) -> None:
        line = line.strip()
        if not line.strip("."):
            return
        if self._level == _ERROR:
            self.errors.append(line)
            _log.error("llama_cpp", line=line)
        elif self._level == _WARN and _POOL_WARNING not in line:
            _log.warning("llama_cpp", line=line)
        else:
            _log.debug("llama_cpp", line=line)


LOG = LibraryLog()


def quoted_errors() -> str:
    """What llama.cpp said went wrong, for an error message."""
    return "; ".join(dict.fromkeys(LOG.errors)) or "llama.cpp gave no reason"


@functools.cache
def library() -> Any:
    """The bindings, checked and initialised, once per process.

    Any, because the module may not be installed where this is type-checked. Raises ConfigError where
    llama-cpp-python is missing, broken, or not the pinned version.
    """
    try:
        package = importlib.import_module("llama_cpp")
    except ImportError as error:
        raise ConfigError(f"llama-cpp-python is not installed: {_INSTALL}") from error
    except (OSError, RuntimeError) as error:
        raise ConfigError(f"llama-cpp-python is installed but its library does not load: {error}") from error
    if package.__version__ != PINNED:
        raise ConfigError(f"llama-cpp-python {package.__version__} is installed, specmesh needs {PINNED}: {_INSTALL}")
    lib = package.llama_cpp
    lib.llama_log_set(_callback(lib), None)
    lib.llama_backend_init()
    _base().ggml_set_abort_callback(_abort_callback())
    return lib


def when_aborted(tell: Callable[[str], None]) -> None:
    """Call `tell` with the reason before llama.cpp ends the process, instead of logging it."""
    global _tell_abort  # noqa: PLW0603 - there is one library
    _tell_abort = tell


def _log_abort(reason: str) -> None:
    _log.critical("llama_cpp_aborted", reason=reason, meaning="llama.cpp found a defect and ends this process")
    flush()


_tell_abort: Callable[[str], None] = _log_abort


# C functions are cached: llama.cpp keeps their addresses as long as it lives.
@functools.cache
def _callback(lib: Any) -> Any:
    return lib.llama_log_callback(LOG.feed)


@functools.cache
def _abort_callback() -> Any:
    return ctypes.CFUNCTYPE(None, ctypes.c_char_p)(lambda text: _tell_abort((text or b"").decode("utf-8", "replace")))


@functools.cache
def gpu_devices() -> tuple[str, ...]:
    """The GPUs llama.cpp can put layers on, as "NAME: description"; empty where it only has CPUs."""
    ggml = ggml_library()
    return tuple(
        f"{ggml.ggml_backend_dev_name(device).decode()}: {ggml.ggml_backend_dev_description(device).decode()}"
        for device in _devices(ggml, _GPU_TYPES)
    )


def accelerators() -> list[int]:
    """ggml's pointers to what computes fastest here: the GPUs, else the CPU."""
    ggml = ggml_library()
    return _devices(ggml, _GPU_TYPES) or _devices(ggml, (_CPU_TYPE,))


def _devices(ggml: Any, kinds: tuple[int, ...]) -> list[int]:
    devices = (ggml.ggml_backend_dev_get(index) for index in range(ggml.ggml_backend_dev_count()))
    return [device for device in devices if ggml.ggml_backend_dev_type(device) in kinds]


@functools.cache
def backends() -> tuple[str, ...]:
    """What this build of llama.cpp can compute with, such as CPU, CUDA or Metal, whether there is a device or not."""
    ggml = ggml_library()
    registered = (ggml.ggml_backend_reg_get(index) for index in range(ggml.ggml_backend_reg_count()))
    return tuple(ggml.ggml_backend_reg_name(backend).decode() for backend in registered)


def _base() -> Any:
    """ggml itself, which the bindings load but do not declare."""
    return importlib.import_module("llama_cpp._ggml").libggml


def ggml_library() -> Any:
    """The device functions of ggml, declared."""
    library()
    ggml = _base()
    for kind in ("dev", "reg"):
        getattr(ggml, f"ggml_backend_{kind}_count").restype = ctypes.c_size_t
        get = getattr(ggml, f"ggml_backend_{kind}_get")
        get.argtypes, get.restype = [ctypes.c_size_t], ctypes.c_void_p
    results = {"dev_name": ctypes.c_char_p, "dev_description": ctypes.c_char_p, "dev_type": ctypes.c_int}
    for name, result in (results | {"reg_name": ctypes.c_char_p}).items():
        function = getattr(ggml, f"ggml_backend_{name}")
        function.argtypes, function.restype = [ctypes.c_void_p], result
    return ggml
