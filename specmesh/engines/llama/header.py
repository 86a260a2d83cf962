"""The header of a GGUF file, read by ggml: its values, and the shapes of its tensors."""

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specmesh.engines.llama.library import ERRORS, ggml_function, quoted_errors
from specmesh.errors import ConfigError
from specmesh.models.files import parts

Scalar = str | int | float | bool
Shape = tuple[int, int, int, int]

_POINTER = ctypes.c_void_p
_INDEX = ctypes.c_int64
_SIZE = ctypes.c_size_t
_TEXT = ctypes.c_char_p
_DIMENSIONS = 4
# The types of scalar values in gguf.h's enum gguf_type, with the ends of their getters' names.
_SCALARS: dict[int, tuple[str, Any]] = {
    0: ("u8", ctypes.c_uint8),
    1: ("i8", ctypes.c_int8),
    2: ("u16", ctypes.c_uint16),
    3: ("i16", ctypes.c_int16),
    4: ("u32", ctypes.c_uint32),
    5: ("i32", ctypes.c_int32),
    6: ("f32", ctypes.c_float),
    7: ("bool", ctypes.c_bool),
    8: ("str", _TEXT),
    10: ("u64", ctypes.c_uint64),
    11: ("i64", ctypes.c_int64),
    12: ("f64", ctypes.c_double),
}
_TYPE_NAMES = {number: name for number, (name, _) in _SCALARS.items()}


class _InitParams(ctypes.Structure):
    """gguf_init_params: no tensor's data is read, no ggml_context made."""

    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", _POINTER))


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a header. type: gguf's name of a scalar's type, "" for an array's."""

    type: str
    value: Scalar | None


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a file.

    shape: the lengths of its dimensions, the innermost first, 1 for those that it lacks.
    kind: ggml's name of the type of its elements.
    """

    shape: Shape
    kind: str


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a GGUF file.

    is_whole: the file is as long as its tensors need.
    """

    path: Path
    values: dict[str, Value]
    tensors: dict[str, Tensor]
    is_whole: bool

    def text(self, key: str) -> str:
        """Return a text, "" if the header has none under this key."""
        found = self.values.get(key)
        if found is None or not isinstance(found.value, str):
            return ""
        return found.value


def read_header(path: Path) -> Header:
    """Return the header of a file, whose weights are not read.

    Raises ConfigError if it is no GGUF file. A damaged file may end the process: ggml checks most
    of a header, not all.
    """
    start = _gguf("gguf_init_from_file", _POINTER, _TEXT, _InitParams)
    ERRORS.clear()
    handle = start(os.fsencode(path), _InitParams(no_alloc=True, ctx=None))
    if not handle:
        raise ConfigError(f"{path} is no GGUF file ({quoted_errors()})")
    try:
        tensors = _tensors(handle)
        end = _data_end(handle, len(tensors))
        return Header(path, _values(handle), tensors, path.stat().st_size >= end)
    finally:
        _gguf("gguf_free", None, _POINTER)(handle)


def read_headers(path: Path) -> list[Header]:
    """Return the headers of a model's files, as `read_header`."""
    return [read_header(part) for part in parts(path)]


def _values(handle: int) -> dict[str, Value]:
    count = _gguf("gguf_get_n_kv", _INDEX, _POINTER)(handle)
    key_of = _gguf("gguf_get_key", _TEXT, _POINTER, _INDEX)
    type_of = _gguf("gguf_get_kv_type", ctypes.c_int, _POINTER, _INDEX)
    values = dict[str, Value]()
    for index in range(count):
        value: Any = None
        kind = type_of(handle, index)
        if kind in _SCALARS:
            end, c_type = _SCALARS[kind]
            value = _gguf(f"gguf_get_val_{end}", c_type, _POINTER, _INDEX)(handle, index)
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        key = key_of(handle, index).decode("utf-8", "replace")
        values[key] = Value(_TYPE_NAMES.get(kind, ""), value)
    return values


def _tensors(handle: int) -> dict[str, Tensor]:
    count = _gguf("gguf_get_n_tensors", _INDEX, _POINTER)(handle)
    name_of = _gguf("gguf_get_tensor_name", _TEXT, _POINTER, _INDEX)
    lengths_of = _gguf("gguf_get_tensor_ne", ctypes.POINTER(_INDEX), _POINTER, _INDEX)
    kind_of = _gguf("gguf_get_tensor_type", ctypes.c_int, _POINTER, _INDEX)
    kind_name = _gguf("ggml_type_name", _TEXT, ctypes.c_int)
    tensors = dict[str, Tensor]()
    for index in range(count):
        first, second, third, fourth = lengths_of(handle, index)[:_DIMENSIONS]
        name = name_of(handle, index).decode("utf-8", "replace")
        kind = kind_name(kind_of(handle, index)).decode()
        tensors[name] = Tensor((first, second, third, fourth), kind)
    return tensors


def _data_end(handle: int, count: int) -> int:
    """Return the length in bytes that the file needs for its tensors."""
    begin: int = _gguf("gguf_get_data_offset", _SIZE, _POINTER)(handle)
    offset_of = _gguf("gguf_get_tensor_offset", _SIZE, _POINTER, _INDEX)
    size_of = _gguf("gguf_get_tensor_size", _SIZE, _POINTER, _INDEX)
    end = 0
    for index in range(count):
        end = max(end, begin + offset_of(handle, index) + size_of(handle, index))
    return end


def _gguf(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    function: Callable[..., Any] = ggml_function(name, result, *arguments)
    return function
