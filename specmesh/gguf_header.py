"""The header of a GGUF file: what its model is, without its weights and without llama.cpp."""

import re
import struct
from collections import Counter
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO

from specmesh.errors import ConfigError

SPLIT_NAME = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf")
"""How llama.cpp names the files of one model in parts; it loads them all from the first."""

TENSOR_TYPES = {
    **dict(enumerate(("F32", "F16", "Q4_0", "Q4_1"))),
    **dict(enumerate(("Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K"), 6)),
    **dict(enumerate(("IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS"), 16)),
    **dict(enumerate(("I8", "I16", "I32", "I64", "F64", "IQ1_M", "BF16"), 24)),
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
    40: "NVFP4",
    41: "Q1_0",
}
FILE_TYPES = {
    **dict(enumerate(("F32", "F16", "Q4_0", "Q4_1"))),
    **dict(enumerate(("Q8_0", "Q5_0", "Q5_1", "Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_K_S", "Q4_K_M", "Q5_K_S"), 7)),
    **dict(enumerate(("Q5_K_M", "Q6_K", "IQ2_XXS", "IQ2_XS", "Q2_K_S", "IQ3_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL"), 17)),
    **dict(enumerate(("IQ3_S", "IQ3_M", "IQ2_S", "IQ2_M", "IQ4_XS", "IQ1_M", "BF16"), 26)),
    **dict(enumerate(("TQ1_0", "TQ2_0", "MXFP4_MOE", "NVFP4", "Q1_0"), 36)),
}

_VERSIONS = (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 8
_MAX_DEPTH = 4

Scalar = int | float | bool | str


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """values: metadata that are no arrays; lengths: of those that are; weights: elements by tensor type."""

    values: dict[str, Scalar]
    lengths: dict[str, int]
    weights: dict[str, int]

    @property
    def architecture(self) -> str | None:
        """llama.cpp's name of the architecture."""
        value = self.values.get("general.architecture")
        return value if isinstance(value, str) else None

    @property
    def context(self) -> int | None:
        """Tokens the model was trained to hold."""
        value = self.values.get(f"{self.architecture}.context_length")
        return value if isinstance(value, int) else None

    @property
    def vocabulary_size(self) -> int | None:
        """How many tokens the file lists."""
        return self.lengths.get("tokenizer.ggml.tokens")

    @property
    def parameters(self) -> int:
        """Weights in this file; a model in parts has more in the others."""
        return sum(self.weights.values())

    @property
    def quantisation(self) -> str | None:
        """What the file says of itself, else the type most of its weights have."""
        stated = FILE_TYPES.get(int(self.values.get("general.file_type", -1)))
        return stated or max(self.weights, key=lambda name: self.weights[name], default=None)


def read_header(path: Path) -> GgufHeader:
    """Read a file's header; raises ConfigError for a file that cannot be read or is no complete GGUF header."""
    try:
        with path.open("rb") as file:
            return _Reader(file, path.stat().st_size).header()
    except OSError as error:
        raise ConfigError(f"the model file {path} cannot be read: {error.strerror}") from error
    except (struct.error, ValueError) as error:
        raise ConfigError(f"{path} is no GGUF file or incomplete ({error}): download it again") from error


def parts(path: Path) -> list[Path]:
    """The files of a model: the one named, or all parts where its name says that it is one of several."""
    match = SPLIT_NAME.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["parts"])
    return [path.with_name(f"{match['stem']}-{part:05}-of-{count:05}.gguf") for part in range(1, count + 1)]


class _Reader:
    """Reads little-endian fields; struct.error and ValueError for what cannot be."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._size = size

    def header(self) -> GgufHeader:
        if self._take(4) != b"GGUF":
            raise ValueError("it does not start with GGUF")
        version = int(self._scalar("I"))
        if version not in _VERSIONS:
            raise ValueError(f"version {version}")
        tensors, pairs = int(self._scalar("Q")), int(self._scalar("Q"))
        values: dict[str, Scalar] = {}
        lengths: dict[str, int] = {}
        for _ in range(pairs):
            self._pair(values, lengths)
        weights: Counter[str] = Counter()
        for _ in range(tensors):
            kind, elements = self._tensor()
            weights[kind] += elements
        return GgufHeader(values, lengths, dict(weights))

    def _pair(self, values: dict[str, Scalar], lengths: dict[str, int]) -> None:
        key = self._string()
        kind = int(self._scalar("I"))
        if kind == _ARRAY:
            lengths[key] = self._skip_array()
        elif kind == _STRING:
            values[key] = self._string()
        else:
            values[key] = self._scalar(_format(kind))

    def _tensor(self) -> tuple[str, int]:
        self._string()
        dimensions = int(self._scalar("I"))
        if dimensions > _MAX_DIMENSIONS:
            raise ValueError(f"a tensor of {dimensions} dimensions")
        elements = prod(int(self._scalar("Q")) for _ in range(dimensions))
        kind = int(self._scalar("I"))
        self._scalar("Q")  # its offset
        return TENSOR_TYPES.get(kind, f"type {kind}"), elements

    def _skip_array(self, depth: int = 0) -> int:
        kind, count = int(self._scalar("I")), int(self._scalar("Q"))
        if kind == _ARRAY and depth < _MAX_DEPTH:
            for _ in range(count):
                self._skip_array(depth + 1)
        elif kind == _STRING:
            for _ in range(count):
                self._skip(int(self._scalar("Q")))
        else:
            self._skip(count * struct.calcsize("<" + _format(kind)))
        return count

    def _skip(self, count: int) -> None:
        if self._file.tell() + count > self._size:
            raise ValueError("it ends too soon")
        self._file.seek(count, 1)

    def _string(self) -> str:
        return self._take(int(self._scalar("Q"))).decode("utf-8", "replace")

    def _scalar(self, code: str) -> int | float | bool:
        value: int | float | bool
        (value,) = struct.unpack(f"<{code}", self._take(struct.calcsize(f"<{code}")))
        return value

    def _take(self, count: int) -> bytes:
        if count > self._size:
            raise ValueError("it ends too soon")
        taken = self._file.read(count)
        if len(taken) < count:
            raise ValueError("it ends too soon")
        return taken


def _format(kind: int) -> str:
    code = _SCALARS.get(kind)
    if code is None:
        raise ValueError(f"a value of type {kind}")
    return code
