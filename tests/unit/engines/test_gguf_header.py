"""GGUF files that are damaged, cut off, or lie: an error that names the file and what is wrong, and never more."""

import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specmesh.errors import ConfigError
from specmesh.models.headers import check_headers

UINT32, STRING, ARRAY = 4, 8, 9
MINUS_ONE = b"\xff" * 8


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def gguf(version: int = 3, value: bytes = u32(UINT32) + u32(7), dimensions: bytes = u32(2), data: int = 64) -> bytes:
    """A file with one value and one tensor of 5 x 3 floats."""
    head = b"GGUF" + u32(version) + u64(1) + u64(1) + u64(1) + b"k" + value
    head += u64(1) + b"t" + dimensions + u64(5) + u64(3) + u32(0) + u64(64)
    return head + b"\0" * data


DAMAGES = {
    "magic": (b"FUGG" + gguf()[4:], "not a GGUF"),
    "version 0": (gguf(0), "GGUF version 0"),
    "version 4": (gguf(4), "GGUF version 4"),
    "other byte order": (gguf(3 << 24), "GGUF version"),
    "tensor count": (gguf()[:8] + MINUS_ONE + gguf()[16:], "tensors"),
    "value count": (gguf()[:16] + MINUS_ONE + gguf()[24:], "values"),
    "more tensors than follow": (gguf(data=0)[:8] + u64(2) + gguf(data=0)[16:], "ends too soon"),
    "key size": (gguf()[:24] + MINUS_ONE + gguf()[32:], "ends too soon"),
    "value type": (gguf(value=u32(13) + u32(1)), "unknown type 13"),
    "array of arrays": (gguf(value=u32(ARRAY) + u32(ARRAY) + u64(1)), "unknown type 9"),
    "text size": (gguf(value=u32(STRING) + MINUS_ONE), "ends too soon"),
    "array beyond the file": (gguf(value=u32(ARRAY) + u32(UINT32) + u64(2**20)), "ends too soon"),
    "strings beyond the file": (gguf(value=u32(ARRAY) + u32(STRING) + u64(2**20)), "ends too soon"),
    "dimensions": (gguf(dimensions=MINUS_ONE), "ends too soon"),
    "data missing": (gguf(data=0), "ends too soon"),
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
        check_headers(path)
    assert str(path.parent) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.fault("E7.76")
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged(written: Callable[[bytes], Path], damage: str):
    raw, why = DAMAGES[damage]
    path = written(raw)
    assert why in refused(path)
    assert str(path) in refused(path)


def test_every_length_of_a_header_is_checked(written: Callable[[bytes], Path]):
    for length in range(len(gguf())):
        refused(written(gguf()[:length]))


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.data())
def test_any_bytes_give_a_header_or_an_error(tiny_gguf: Path, written: Callable[[bytes], Path], data: st.DataObject):
    raw = bytearray(tiny_gguf.read_bytes())
    end = tiny_gguf.read_bytes().index(b"output_norm.weight") + 64
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, end - 8))
        new = data.draw(st.one_of(st.binary(min_size=1, max_size=8), st.sampled_from([MINUS_ONE, u64(2**63), u64(0)])))
        raw[at : at + len(new)] = new
    with suppress(ConfigError):
        check_headers(written(bytes(raw)))


class TestParts:
    @pytest.fixture
    def first(self, tmp_path: Path) -> Path:
        for part in (1, 2):
            (tmp_path / f"m-0000{part}-of-00002.gguf").write_bytes(gguf())
        return tmp_path / "m-00001-of-00002.gguf"

    def test_not_the_first(self, first: Path) -> None:
        assert "name the first part, m-00001-of-00002.gguf" in refused(first.with_name("m-00002-of-00002.gguf"))

    def test_damaged_part(self, first: Path) -> None:
        first.with_name("m-00002-of-00002.gguf").write_bytes(gguf()[:50])
        assert "m-00002-of-00002.gguf is damaged" in refused(first)
