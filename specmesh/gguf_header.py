"""The header of a GGUF file: what its model is, without its weights and without llama.cpp.

Everything is checked before it is believed: counts against the bytes that are left, so that a file takes memory and
time in proportion to its own size and within fixed bounds.
"""

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
    42: "Q2_0",
}
_SIZES = {
    1: {"I8": 1, "F16": 2, "BF16": 2, "I16": 2, "F32": 4, "I32": 4, "F64": 8, "I64": 8},
    32: {"Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q8_0": 34, "Q8_1": 40, "IQ4_NL": 18, "MXFP4": 17},
    64: {"NVFP4": 36, "Q2_0": 18},
    128: {"Q1_0": 18},
    256: {"Q2_K": 84, "Q3_K": 110, "Q4_K": 144, "Q5_K": 176, "Q6_K": 210, "Q8_K": 292, "TQ1_0": 54, "TQ2_0": 66}
    | {"IQ1_S": 50, "IQ1_M": 56, "IQ2_XXS": 66, "IQ2_XS": 74, "IQ2_S": 82, "IQ3_XXS": 98, "IQ3_S": 110, "IQ4_XS": 136},
}
BLOCKS = {name: (elements, size) for elements, sizes in _SIZES.items() for name, size in sizes.items()}
"""By type: the elements of a block, and its bytes."""

FILE_TYPES = {
    **dict(enumerate(("F32", "F16", "Q4_0", "Q4_1"))),
    **dict(enumerate(("Q8_0", "Q5_0", "Q5_1", "Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_K_S", "Q4_K_M", "Q5_K_S"), 7)),
    **dict(enumerate(("Q5_K_M", "Q6_K", "IQ2_XXS", "IQ2_XS", "Q2_K_S", "IQ3_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL"), 17)),
    **dict(enumerate(("IQ3_S", "IQ3_M", "IQ2_S", "IQ2_M", "IQ4_XS", "IQ1_M", "BF16"), 26)),
    **dict(enumerate(("TQ1_0", "TQ2_0", "MXFP4_MOE", "NVFP4", "Q1_0"), 36)),
}

VERSIONS = (2, 3)
ALIGNMENT_KEY = "general.alignment"

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_UINT32, _STRING, _ARRAY = 4, 8, 9
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4
_MAX_NAME = 63
_MAX_KEY = 2**16 - 1
_MAX_TEXT = 2**24
_MAX_PAIRS = 2**16
_MAX_TENSORS = 2**20
_MAX_ELEMENTS = 2**24
_MAX_HEADER = 2**28
_LEAST_PAIR = 8 + 1 + 4 + 1
_LEAST_TENSOR = 8 + 4 + 4 + 8
_CHUNK = 2**20
_SHORT = 256

Scalar = int | float | bool | str


@dataclass(frozen=True, slots=True)
class Tensor:
    """What a header says of a tensor. offset: of its data, from where the file's data begins."""

    name: str
    shape: tuple[int, ...]
    kind: str
    offset: int

    @property
    def elements(self) -> int:
        """How many weights it has."""
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """How long its data is."""
        elements, size = BLOCKS[self.kind]
        return self.elements // elements * size


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """values: metadata that are no arrays; lengths: of those that are.

    alignment: of the data, which begins at data_start; file_size: all in bytes.
    """

    values: dict[str, Scalar]
    lengths: dict[str, int]
    tensors: tuple[Tensor, ...]
    alignment: int
    data_start: int
    file_size: int

    @property
    def architecture(self) -> str | None:
        """llama.cpp's name of the architecture."""
        value = self.values.get("general.architecture")
        return value if isinstance(value, str) else None

    @property
    def context(self) -> int | None:
        """Tokens the model was trained to hold."""
        return self.whole(f"{self.architecture}.context_length")

    @property
    def vocabulary_size(self) -> int | None:
        """How many tokens the file lists."""
        return self.lengths.get("tokenizer.ggml.tokens")

    @property
    def weights(self) -> dict[str, int]:
        """Elements by tensor type."""
        found: Counter[str] = Counter()
        for tensor in self.tensors:
            found[tensor.kind] += tensor.elements
        return dict(found)

    @property
    def parameters(self) -> int:
        """Weights in this file; a model in parts has more in the others."""
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def quantisation(self) -> str | None:
        """What the file says of itself, else the type most of its weights have."""
        stated, weights = self.whole("general.file_type"), self.weights
        return FILE_TYPES.get(-1 if stated is None else stated) or max(weights, key=weights.__getitem__, default=None)

    def whole(self, key: str) -> int | None:
        """A value that is a whole number; None where there is none, or it is something else."""
        value = self.values.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


def read_header(path: Path) -> GgufHeader:
    """Read a file's header; raises ConfigError for a file that cannot be read or is no complete GGUF header."""
    check_kind(path)
    try:
        with path.open("rb", buffering=_CHUNK) as file:
            return _Reader(file, path.stat().st_size).header()
    except OSError as error:
        raise ConfigError(f"the model file {path} cannot be read: {error.strerror}") from error
    except (struct.error, ValueError) as error:
        raise ConfigError(f"{path} is not a GGUF file, or is damaged ({error}): download it again") from error


def check_kind(path: Path) -> None:
    """Raise ConfigError for what is neither a file nor a folder: to open a FIFO is to wait for who writes into it."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ConfigError(f"{path} is no file: name a model's .gguf file")


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
        magic = self._file.read(4)
        if magic != b"GGUF":
            raise ValueError(f"it begins with {magic!r}")
        version = int(self._scalar("I"))
        if version not in VERSIONS:
            raise ValueError(f"GGUF version {version}, llama.cpp reads 2 and 3 in this machine's byte order")
        tensors, pairs = int(self._scalar("Q")), int(self._scalar("Q"))
        self._check_count("tensors", tensors, _MAX_TENSORS, _LEAST_TENSOR)
        self._check_count("values", pairs, _MAX_PAIRS, _LEAST_PAIR)
        values: dict[str, Scalar] = {}
        lengths: dict[str, int] = {}
        for _ in range(pairs):
            self._pair(values, lengths)
        alignment = int(values.get(ALIGNMENT_KEY, _DEFAULT_ALIGNMENT))
        if alignment < 1 or alignment & (alignment - 1):
            raise ValueError(f"its alignment is {alignment}, which is no power of two")
        found: dict[str, Tensor] = {}
        for _ in range(tensors):
            tensor = self._tensor()
            if tensor.name in found:
                raise ValueError(f"two tensors are called {tensor.name!r}")
            found[tensor.name] = tensor
        start = padded(self._file.tell(), alignment)
        return GgufHeader(values, lengths, tuple(found.values()), alignment, start, self._size)

    def _pair(self, values: dict[str, Scalar], lengths: dict[str, int]) -> None:
        key = self._string("a key", _MAX_KEY)
        if not key:
            raise ValueError("a key is empty")
        if key in values or key in lengths:
            raise ValueError(f"two values are called {key!r}")
        kind = int(self._scalar("I"))
        if key == ALIGNMENT_KEY and kind != _UINT32:
            raise ValueError(f"{key!r} is of type {kind}, not {_UINT32}")
        if kind == _ARRAY:
            lengths[key] = self._skip_array(key)
        elif kind == _STRING:
            values[key] = self._string(repr(key), _MAX_TEXT)
        else:
            values[key] = self._scalar(_format(kind, key))

    def _tensor(self) -> Tensor:
        name = self._string("the name of a tensor", _MAX_NAME)
        dimensions = int(self._scalar("I"))
        if dimensions > _MAX_DIMENSIONS:
            raise ValueError(f"tensor {name!r} has {dimensions} dimensions, {_MAX_DIMENSIONS} at most")
        shape = tuple(int(self._scalar("Q")) for _ in range(dimensions))
        if max(shape, default=0) >= 2**63 or prod(max(size, 1) for size in shape) >= 2**63:
            raise ValueError(f"tensor {name!r} has the impossible shape {list(shape)}")
        number = int(self._scalar("I"))
        kind = TENSOR_TYPES.get(number)
        if kind is None:
            raise ValueError(f"tensor {name!r} is of the unknown type {number}")
        row, block = (shape or (1,))[0], BLOCKS[kind][0]
        if row % block:
            raise ValueError(f"tensor {name!r} has rows of {row} elements, no whole blocks of {block} ({kind})")
        return Tensor(name, shape, kind, int(self._scalar("Q")))

    def _skip_array(self, key: str) -> int:
        kind, count = int(self._scalar("I")), int(self._scalar("Q"))
        if count > _MAX_ELEMENTS:
            raise ValueError(f"{key!r} has {count} elements, {_MAX_ELEMENTS} at most")
        if kind == _STRING:
            self._skip_strings(count)
        else:
            self._skip(count * struct.calcsize("<" + _format(kind, key)))
        return count

    def _skip_strings(self, count: int) -> None:
        """Vocabularies have hundreds of thousands of them: the bytes left are counted here, not asked for each time."""
        left, read = self._left(), self._file.read
        for _ in range(count):
            length = int.from_bytes(read(8), "little")
            left -= 8 + length
            if left < 0:
                raise ValueError("it ends too soon")
            if length > _SHORT:
                self._file.seek(length, 1)
            else:
                read(length)

    def _check_count(self, what: str, count: int, most: int, least_bytes: int) -> None:
        if count > most or count * least_bytes > self._size:
            raise ValueError(f"it says that it has {count} {what}")

    def _left(self) -> int:
        return min(self._size, _MAX_HEADER) - self._file.tell()

    def _skip(self, count: int) -> None:
        if count > self._left():
            raise ValueError("it ends too soon")
        self._file.seek(count, 1)

    def _string(self, what: str, most: int) -> str:
        length = int(self._scalar("Q"))
        if length > self._left():
            raise ValueError("it ends too soon")
        if length > most:
            raise ValueError(f"{what} has {length} bytes, {most} at most")
        return self._take(length).decode("utf-8", "replace")

    def _scalar(self, code: str) -> int | float | bool:
        value: int | float | bool
        (value,) = struct.unpack(f"<{code}", self._take(struct.calcsize(f"<{code}")))
        return value

    def _take(self, count: int) -> bytes:
        taken = self._file.read(count)
        if len(taken) < count:
            raise ValueError("it ends too soon")
        return taken


def _format(kind: int, key: str) -> str:
    code = _SCALARS.get(kind)
    if code is None:
        raise ValueError(f"{key!r} is of the unknown type {kind}")
    return code


def padded(size: int, alignment: int) -> int:
    """The next multiple of `alignment`."""
    return -(-size // alignment) * alignment
