"""GGUF files that are damaged, cut off, or lie: an error that names the file and what is wrong, and never more."""

import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specmesh.errors import ConfigError
from specmesh.models.gguf_header import read_headers

UINT32, STRING, ARRAY = 4, 8, 9
F32, Q4_0 = 0, 2
MINUS_ONE = b"\xff" * 8


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def text(value: str) -> bytes:
    return u64(len(value.encode())) + value.encode()


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + u32(kind) + value


def tensor(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    return text(name) + u32(len(shape)) + b"".join(map(u64, shape)) + u32(kind) + u64(offset)


def strings(*values: str) -> bytes:
    return u32(STRING) + u64(len(values)) + b"".join(map(text, values))


@dataclass(frozen=True)
class Raw:
    """A GGUF file field by field. counts: of tensors and values, where they are not those that follow."""

    magic: bytes = b"GGUF"
    version: int = 3
    counts: tuple[bytes | None, bytes | None] = (None, None)
    pairs: tuple[bytes, ...] = (
        pair("general.architecture", STRING, text("llama")),
        pair("a.b", UINT32, u32(7)),
        pair("c", ARRAY, u32(UINT32) + u64(2) + u32(1) + u32(2)),
        pair("tokenizer.ggml.tokens", ARRAY, strings("x", "y", "z")),
    )
    tensors: tuple[bytes, ...] = (
        tensor("token_embd.weight", (5, 3), F32, 0),
        tensor("none", (4, 0), F32, 64),
        tensor("q", (32, 2), Q4_0, 64),
    )
    data: bytes = b"\0" * (64 + 36)

    def raw(self) -> bytes:
        tensors, pairs = self.counts
        head = self.magic + u32(self.version) + (tensors or u64(len(self.tensors))) + (pairs or u64(len(self.pairs)))
        head += b"".join(self.pairs) + b"".join(self.tensors)
        return head.ljust(-(-len(head) // 32) * 32, b"\0") + self.data


GOOD = Raw()


def with_pair(*more: bytes) -> Raw:
    return replace(GOOD, pairs=(*GOOD.pairs, *more))


def with_tensors(*tensors: bytes, data: int = 64) -> Raw:
    return replace(GOOD, tensors=(tensor("token_embd.weight", (5, 3), F32, 0), *tensors), data=b"\0" * (64 + data))


DAMAGES = {
    "magic": (replace(GOOD, magic=b"FUGG"), "not a GGUF"),
    "version 0": (replace(GOOD, version=0), "GGUF version 0"),
    "version 4": (replace(GOOD, version=4), "GGUF version 4"),
    "other byte order": (replace(GOOD, version=3 << 24), "GGUF version"),
    "tensor count": (replace(GOOD, counts=(MINUS_ONE, None)), "tensors"),
    "value count": (replace(GOOD, counts=(None, MINUS_ONE)), "values"),
    "more tensors than follow": (replace(GOOD, counts=(u64(4), None), data=b""), "ends too soon"),
    "key size": (with_pair(MINUS_ONE + b"key" + u32(UINT32) + u32(1)), "ends too soon"),
    "value type": (with_pair(pair("bad", 13, u32(1))), "unknown type 13"),
    "array of arrays": (with_pair(pair("bad", ARRAY, u32(ARRAY) + u64(1))), "unknown type 9"),
    "text size": (with_pair(pair("bad", STRING, MINUS_ONE)), "ends too soon"),
    "array beyond the file": (with_pair(pair("bad", ARRAY, u32(UINT32) + u64(2**20))), "ends too soon"),
    "strings beyond the file": (with_pair(pair("bad", ARRAY, u32(STRING) + u64(2**20))), "ends too soon"),
    "dimensions": (with_tensors(u64(1) + b"t" + MINUS_ONE), "ends too soon"),
    "data missing": (replace(GOOD, data=b""), "ends too soon"),
}


@pytest.fixture
def written(tmp_path: Path) -> Callable[[bytes], Path]:
    def write(raw: bytes) -> Path:
        path = tmp_path / "model.gguf"
        path.write_bytes(raw)
        return path

    return write


def refused(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read_headers(path)
    assert str(path.parent) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_in_order_passes(written: Callable[[bytes], Path]):
    for raw in (GOOD, replace(GOOD, version=2)):
        (header,) = read_headers(written(raw.raw()))
        assert header.architecture == "llama"
        assert header.lengths == {"c": 2, "tokenizer.ggml.tokens": 3}
        assert header.parameters == 79


@pytest.mark.fault("E7.76", "a GGUF file whose header is damaged", "an error that names file and damage")
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged(written: Callable[[bytes], Path], damage: str):
    raw, why = DAMAGES[damage]
    path = written(raw.raw())
    with pytest.raises(ConfigError, match=why):
        read_headers(path)
    assert str(path) in refused(path)


@pytest.mark.fault("E7.76", "a GGUF file cut off at 1 or 50 %", "an error that names the file")
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5])
def test_cut_off(tiny_gguf: Path, written: Callable[[bytes], Path], share: float):
    raw = tiny_gguf.read_bytes()
    refused(written(raw[: int(len(raw) * share)]))


def test_every_length_of_a_header_is_checked(written: Callable[[bytes], Path]):
    raw = GOOD.raw()
    for length in range(len(raw) - len(GOOD.data) + 64 - 32):
        refused(written(raw[:length]))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_bytes_give_a_header_or_an_error(tiny_gguf: Path, written: Callable[[bytes], Path], data: st.DataObject):
    raw = bytearray(tiny_gguf.read_bytes())
    end = tiny_gguf.read_bytes().index(b"output_norm.weight") + 64
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, end - 8))
        new = data.draw(st.one_of(st.binary(min_size=1, max_size=8), st.sampled_from([MINUS_ONE, u64(2**63), u64(0)])))
        raw[at : at + len(new)] = new
    with suppress(ConfigError):
        read_headers(written(bytes(raw)))


@dataclass(frozen=True)
class Part:
    """One file of a model in parts, as its header says."""

    number: int
    count: int = 2
    tensors: int = 3
    names: tuple[str, ...] = field(default_factory=tuple)

    def raw(self) -> bytes:
        said = {"split.no": self.number, "split.count": self.count, "split.tensors.count": self.tensors}
        pairs = tuple(pair(key, UINT32, u32(value)) for key, value in said.items())
        tensors = tuple(tensor(name, (8,), F32, 32 * index) for index, name in enumerate(self.names))
        return Raw(pairs=pairs, tensors=tensors, data=b"\0" * 32 * len(tensors)).raw()


FIRST, SECOND = Part(0, names=("a", "b")), Part(1, names=("c",))


@pytest.fixture
def split(tmp_path: Path) -> Callable[..., Path]:
    def write(*parts: Part | None) -> Path:
        for index, part in enumerate(parts, 1):
            if part is not None:
                (tmp_path / f"m-{index:05}-of-{len(parts):05}.gguf").write_bytes(part.raw())
        return tmp_path / f"m-00001-of-{len(parts):05}.gguf"

    return write


class TestParts:
    def test_all_there(self, split: Callable[..., Path]) -> None:
        assert [header.parameters for header in read_headers(split(FIRST, SECOND))] == [16, 8]

    @pytest.mark.fault("E7.77", "a model in parts, one of them missing", "the missing part is named")
    def test_missing(self, split: Callable[..., Path]) -> None:
        assert "m-00002-of-00003.gguf is missing" in refused(split(FIRST, None, SECOND))

    def test_not_the_first(self, split: Callable[..., Path]) -> None:
        path = split(FIRST, SECOND).with_name("m-00002-of-00002.gguf")
        assert "name the first part, m-00001-of-00002.gguf" in refused(path)

    def test_damaged_part(self, split: Callable[..., Path]) -> None:
        path = split(FIRST, SECOND)
        second = path.with_name("m-00002-of-00002.gguf")
        second.write_bytes(second.read_bytes()[:100])
        with pytest.raises(ConfigError, match=r"m-00002-of-00002\.gguf is damaged"):
            read_headers(path)


class TestPaths:
    @pytest.fixture(params=["missing", "directory", "loop", "no permission"])
    def path(self, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        path = tmp_path / "model.gguf"
        match request.param:
            case "directory":
                path.mkdir()
            case "loop":
                path.symlink_to(path)
            case "no permission":  # root may read everything, so it is told otherwise
                path.touch()
                monkeypatch.setattr(Path, "open", _denied)
        return path

    @pytest.mark.fault(
        "E7.75", "a model that is missing, a directory, unreadable, a loop of links", "an error with its path"
    )
    def test_refused(self, path: Path) -> None:
        refused(path)


def _denied(*_: object, **__: object) -> None:
    raise PermissionError(13, "Permission denied")
