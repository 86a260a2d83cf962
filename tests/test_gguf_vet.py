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
from specmesh.gguf_header import ALIGNMENT_KEY, Tensor, padded, read_header
from specmesh.gguf_vet import vet

UINT32, INT32, STRING, ARRAY = 4, 5, 8, 9
F32, I8, Q4_0, I64 = 0, 24, 2, 27
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
    alignment: int = 32

    def raw(self) -> bytes:
        tensors, pairs = self.counts
        head = self.magic + u32(self.version) + (tensors or u64(len(self.tensors))) + (pairs or u64(len(self.pairs)))
        head += b"".join(self.pairs) + b"".join(self.tensors)
        return head.ljust(padded(len(head), self.alignment), b"\0") + self.data


GOOD = Raw()


def with_pair(*more: bytes) -> Raw:
    return replace(GOOD, pairs=(*GOOD.pairs, *more))


def with_tensors(*tensors: bytes, data: int = 64) -> Raw:
    return replace(GOOD, tensors=(tensor("token_embd.weight", (5, 3), F32, 0), *tensors), data=b"\0" * (64 + data))


# The classes of llama.cpp's tests/test-gguf.cpp, by its names, and some more.
DAMAGES = {
    "header bad magic": (replace(GOOD, magic=b"FUGG"), "not a GGUF"),
    "header bad version 0": (replace(GOOD, version=0), "GGUF version 0"),
    "header bad version 1": (replace(GOOD, version=1), "GGUF version 1"),
    "header bad version future": (replace(GOOD, version=4), "GGUF version 4"),
    "header other byte order": (replace(GOOD, version=3 << 24), "GGUF version"),
    "header bad n_tensors": (replace(GOOD, counts=(MINUS_ONE, None)), "tensors"),
    "header bad n_kv": (replace(GOOD, counts=(None, MINUS_ONE)), "values"),
    "header more than the file can hold": (replace(GOOD, counts=(None, u64(60_000))), "60000 values"),
    "kv bad key size": (with_pair(MINUS_ONE + b"key" + u32(UINT32) + u32(1)), "ends too soon"),
    "kv key too long": (with_pair(pair("k" * 2**16, UINT32, u32(1))), "a key has 65536 bytes"),
    "kv empty key": (with_pair(pair("", UINT32, u32(1))), "a key is empty"),
    "kv bad type": (with_pair(pair("bad", 13, u32(1))), "'bad' is of the unknown type 13"),
    "kv bad array type": (with_pair(pair("bad", ARRAY, u32(13) + u64(1) + u32(1))), "'bad' is of the unknown type 13"),
    "kv array of arrays": (with_pair(pair("bad", ARRAY, u32(ARRAY) + u64(1))), "unknown type 9"),
    "kv bad value size": (with_pair(pair("bad", STRING, MINUS_ONE)), "ends too soon"),
    "kv bad array size": (with_pair(pair("bad", ARRAY, u32(UINT32) + MINUS_ONE)), "elements"),
    "kv array beyond the file": (with_pair(pair("bad", ARRAY, u32(UINT32) + u64(2**20))), "ends too soon"),
    "kv strings beyond the file": (with_pair(pair("bad", ARRAY, u32(STRING) + u64(2**20))), "ends too soon"),
    "kv duplicate key": (with_pair(pair("a.b", UINT32, u32(1))), "two values are called 'a.b'"),
    "kv bad align": (with_pair(pair(ALIGNMENT_KEY, UINT32, u32(13))), "alignment is 13"),
    "kv align zero": (with_pair(pair(ALIGNMENT_KEY, UINT32, u32(0))), "alignment is 0"),
    "kv wrong type align": (with_pair(pair(ALIGNMENT_KEY, INT32, u32(32))), "is of type 5"),
    "kv array align": (with_pair(pair(ALIGNMENT_KEY, ARRAY, u32(UINT32) + u64(0))), "is of type 9"),
    "tensors bad name size": (with_tensors(tensor("n" * 64, (4,), F32, 64)), "64 bytes, 63 at most"),
    "tensors bad n_dims": (with_tensors(tensor("t", (1,) * 5, F32, 64)), "5 dimensions"),
    "tensors bad shape": (with_tensors(tensor("t", (2**64 - 1,), I8, 64)), "impossible shape"),
    "tensors ne too big": (with_tensors(tensor("t", (4 * (2**31 - 1),) * 2, I8, 64)), "impossible shape"),
    "tensors nbytes too big": (with_tensors(tensor("t", (1_530_000_000,) * 2, I64, 64)), "ends at byte"),
    "tensors nbytes pad wrap": (with_tensors(tensor("t", (4, 2**30 - 1, 2**30 + 1), F32, 64)), "ends at byte"),
    "tensors bad type": (with_tensors(tensor("t", (4,), 43, 64)), "unknown type 43"),
    "tensors removed type": (with_tensors(tensor("t", (4,), 31, 64)), "unknown type 31"),
    "tensors partial blocks": (with_tensors(tensor("t", (33,), Q4_0, 64)), "no whole blocks of 32"),
    "tensors bad offset": (with_tensors(tensor("t", (4,), F32, 2**64 - 1)), "belongs at 64"),
    "tensors overlap": (with_tensors(tensor("t", (4,), F32, 0)), "belongs at 64"),
    "tensors gap": (with_tensors(tensor("t", (4,), F32, 96)), "belongs at 64"),
    "tensors duplicate name": (with_tensors(tensor("token_embd.weight", (4,), F32, 64)), "two tensors are called"),
    "tensors inconsistent align": (with_tensors(tensor("t", (4,), F32, 60)), "belongs at 64"),
    "tensors cut off": (replace(GOOD, counts=(u64(4), None), data=b""), "ends too soon"),
    "data not enough data": (replace(GOOD, data=GOOD.data[:-1]), "and the file at"),
    "data none": (replace(GOOD, data=b""), "and the file at"),
    "data mem size overflow": (
        with_tensors(tensor("t", (2**63 - 64,), I8, 64), tensor("u", (2**63 - 64,), I8, 2**63)),
        "ends at byte",
    ),
    "vocabulary types too few": (
        with_pair(pair("tokenizer.ggml.token_type", ARRAY, u32(INT32) + u64(2) + u32(1) * 2)),
        "3 tokens, and 2 in 'tokenizer.ggml.token_type'",
    ),
    "vocabulary scores too few": (
        with_pair(pair("tokenizer.ggml.scores", ARRAY, u32(6) + u64(1) + u32(0))),
        "3 tokens, and 1 in",
    ),
    "vocabulary of other weights": (
        replace(GOOD, tensors=(tensor("token_embd.weight", (4, 4), F32, 0),)),
        r"3 tokens, and weights of the shape \[4, 4\]",
    ),
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
        vet(path)
    assert str(path.parent) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_in_order_passes(written: Callable[[bytes], Path]):
    """Versions 2 and 3, zero dimensions, an alignment of its own, and data whose end is not padded."""
    for raw in (GOOD, replace(GOOD, version=2)):
        (header,) = vet(written(raw.raw()))
        assert header.architecture == "llama"
        assert header.lengths == {"c": 2, "tokenizer.ggml.tokens": 3}
        assert header.tensors[2] == Tensor("q", (32, 2), "Q4_0", 64)
        assert header.weights == {"F32": 15, "Q4_0": 64}
        assert header.parameters == 79
    aligned = replace(
        with_pair(pair(ALIGNMENT_KEY, UINT32, u32(1))),
        tensors=(tensor("a", (5,), I8, 0), tensor("b", (3,), I8, 5)),
        data=b"\0" * 8,
        alignment=1,
    )
    assert vet(written(aligned.raw()))[0].alignment == 1


@pytest.mark.fault(
    "E7.76", "a GGUF file with one of the damages of llama.cpp's own tests", "an error that names file and damage"
)
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged(written: Callable[[bytes], Path], damage: str):
    """Each is told for what it is."""
    raw, why = DAMAGES[damage]
    path = written(raw.raw())
    with pytest.raises(ConfigError, match=why):
        vet(path)
    assert str(path) in refused(path)


@pytest.mark.fault("E7.76", "a GGUF file cut off at 1, 50 or 99 %", "an error that names the file")
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_cut_off(tiny_gguf: Path, written: Callable[[bytes], Path], share: float):
    """A download that broke off."""
    raw = tiny_gguf.read_bytes()
    refused(written(raw[: int(len(raw) * share)]))


def test_every_length_of_a_header_is_checked(written: Callable[[bytes], Path]):
    """Cut off after any byte."""
    raw = GOOD.raw()
    for length in range(len(raw) - 1):
        refused(written(raw[:length]))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_bytes_give_a_header_or_an_error(tiny_gguf: Path, written: Callable[[bytes], Path], data: st.DataObject):
    """Bytes changed anywhere in the header: ConfigError and nothing else, however the lengths come out."""
    raw = bytearray(tiny_gguf.read_bytes())
    end = read_header(tiny_gguf).data_start
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, end - 8))
        new = data.draw(st.one_of(st.binary(min_size=1, max_size=8), st.sampled_from([MINUS_ONE, u64(2**63), u64(0)])))
        raw[at : at + len(new)] = new
    with suppress(ConfigError):
        vet(written(bytes(raw)))


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
    """Models in several files."""

    def test_all_there(self, split: Callable[..., Path]) -> None:
        """Each part's header, in order."""
        assert [[t.name for t in header.tensors] for header in vet(split(FIRST, SECOND))] == [["a", "b"], ["c"]]

    @pytest.mark.fault("E7.77", "a model in parts, one of them missing", "the missing part is named")
    def test_missing(self, split: Callable[..., Path]) -> None:
        """The missing part is named, and not taken for a damage."""
        assert "m-00002-of-00003.gguf is missing" in refused(split(FIRST, None, SECOND))

    def test_not_the_first(self, split: Callable[..., Path]) -> None:
        """llama.cpp loads all parts from the first."""
        path = split(FIRST, SECOND).with_name("m-00002-of-00002.gguf")
        assert "name the first part, m-00001-of-00002.gguf" in refused(path)

    @pytest.mark.parametrize(
        ("second", "why"),
        [
            (
                replace(SECOND, number=0),
                "m-00002-of-00002.gguf is damaged (it says that it is part 1, its name says 2)",
            ),
            (replace(SECOND, count=3), "the model has 3 parts"),
            (replace(SECOND, names=("a",)), "two of its parts have the same tensor"),
            (replace(SECOND, names=("c", "d")), "there are 3 tensors, its parts have 4"),
        ],
    )
    def test_do_not_belong_together(self, split: Callable[..., Path], second: Part, why: str) -> None:
        """Parts of other models, or of the same one twice."""
        assert why in refused(split(FIRST, second))

    def test_renamed(self, tmp_path: Path) -> None:
        """A first part whose name does not say that there are others."""
        path = tmp_path / "renamed.gguf"
        path.write_bytes(FIRST.raw())
        assert "the model has 2 parts, its name says 1" in refused(path)

    def test_damaged_part(self, split: Callable[..., Path]) -> None:
        """The part is named, not the first."""
        path = split(FIRST, SECOND)
        second = path.with_name("m-00002-of-00002.gguf")
        second.write_bytes(second.read_bytes()[:-1])
        with pytest.raises(ConfigError, match=r"m-00002-of-00002\.gguf is damaged"):
            vet(path)


class TestPaths:
    """What is no file that can be read."""

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
        """Named, in one line."""
        refused(path)


def _denied(*_: object, **__: object) -> None:
    raise PermissionError(13, "Permission denied")
