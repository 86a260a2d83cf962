"""Whether GGUF files can be a model at all: every part of it, by their headers, without llama.cpp.

llama.cpp checks much of this too, and ends the process over some of it. What is told here names the file and what is
wrong with it. Weights that were changed in place cannot be seen by structure: only a checksum tells.
"""

from pathlib import Path

from specmesh.errors import ConfigError
from specmesh.gguf_header import SPLIT_NAME, VERSIONS, GgufHeader, check_kind, padded, parts, read_header

_TOKENS = "tokenizer.ggml.tokens"
_BESIDE_TOKENS = ("tokenizer.ggml.token_type", "tokenizer.ggml.scores")
_COUNT, _NUMBER, _ALL_TENSORS = "split.count", "split.no", "split.tensors.count"


def check_start(path: Path) -> None:
    """Raise ConfigError unless `path` is a readable file that starts like a GGUF that llama.cpp knows."""
    check_kind(path)
    try:
        with path.open("rb") as file:
            head = file.read(8)
    except FileNotFoundError as error:
        raise ConfigError(f"no model file {path}: check the path") from error
    except IsADirectoryError as error:
        raise ConfigError(f"{path} is a directory: name the .gguf file in it") from error
    except OSError as error:
        raise ConfigError(f"the model file {path} cannot be read: {error.strerror}") from error
    if head[:4] != b"GGUF":
        raise ConfigError(f"{path} is not a GGUF file: convert the model with llama.cpp or download its GGUF")
    version = int.from_bytes(head[4:8], "little")
    if version not in VERSIONS:
        raise ConfigError(f"{path} has GGUF version {version}, llama.cpp reads 2 and 3: convert it again")


def vet(path: Path) -> list[GgufHeader]:
    """The headers of a model's files; raises ConfigError, which names the file and what is wrong with it."""
    check_start(path)
    match = SPLIT_NAME.fullmatch(path.name)
    if match is not None and int(match["part"]) != 1:
        raise ConfigError(f"{path} is part {int(match['part'])} of a model: name the first part, {parts(path)[0].name}")
    files = parts(path)
    missing = [file.name for file in files[1:] if not file.exists()]
    if missing:
        raise ConfigError(
            f"{path} is one of {len(files)} parts, and {', '.join(missing[:3])} is missing: get all of them"
        )
    headers = [read_header(file) for file in files]
    for number, (file, header) in enumerate(zip(files, headers, strict=True)):
        wrong = _data(header) or _place(header, number, len(files))
        if wrong is not None:
            raise ConfigError(f"{file} is damaged ({wrong}): download it again")
    wrong = _across(headers) or _vocabulary(headers)
    if wrong is not None:
        raise ConfigError(f"{path} is damaged ({wrong}): download it again")
    return headers


def _data(header: GgufHeader) -> str | None:
    """What is wrong with where the tensors say their data is; None for nothing."""
    expected = 0
    for tensor in header.tensors:
        if tensor.offset != expected:
            return f"tensor {tensor.name!r} is said to be at {tensor.offset}, and belongs at {expected}"
        end = header.data_start + tensor.offset + tensor.size_bytes
        if end > header.file_size:
            return f"tensor {tensor.name!r} ends at byte {end}, and the file at {header.file_size}"
        expected += padded(tensor.size_bytes, header.alignment)
    return None


def _place(header: GgufHeader, number: int, count: int) -> str | None:
    """What is wrong with which part a file says it is."""
    stated = header.whole(_COUNT) or 1
    if stated != count and (number == 0 or _COUNT in header.values):
        return f"it says that the model has {stated} parts, its name says {count}"
    said = header.whole(_NUMBER)
    if count > 1 and said != number:
        return f"it says that it is part {'none' if said is None else said + 1}, its name says {number + 1}"
    return None


def _across(headers: list[GgufHeader]) -> str | None:
    """What is wrong with the parts together."""
    first, *others = headers
    names = [tensor.name for header in headers for tensor in header.tensors]
    if others and len(set(names)) != len(names):
        return "two of its parts have the same tensor"
    total = first.whole(_ALL_TENSORS)
    if others and total != len(names):
        return f"it says that there are {total} tensors, its parts have {len(names)}"
    return None


def _vocabulary(headers: list[GgufHeader]) -> str | None:
    """What is wrong with the vocabulary: arrays of different lengths, ids or weights that do not belong to it."""
    first = headers[0]
    count = first.lengths.get(_TOKENS)
    if count is None:
        return None  # no model of text; llama.cpp says what it misses
    for key in _BESIDE_TOKENS:
        if first.lengths.get(key, count) < count:
            return f"{count} tokens, and {first.lengths[key]} in {key!r}"
    embedded = next((t for header in headers for t in header.tensors if t.name == "token_embd.weight"), None)
    if embedded is not None and (len(embedded.shape) < 2 or embedded.shape[1] != count):
        return f"{count} tokens, and weights of the shape {list(embedded.shape)} for them"
    return None
