"""Which inputs are worth keeping: those that reach something new."""

import sys
from pathlib import Path

from fuzz.reach import reached, worth_keeping

BYE = bytes.fromhex("534d021b000000000000000000000000000000007b7d92cddc3f")
NACK = bytes.fromhex("534d0204070000000300000015899db2000000002d09f011")


def write(folder: Path, **inputs: bytes) -> list[Path]:
    for name, data in inputs.items():
        (folder / name).write_bytes(data)
    return sorted(folder.iterdir())


def test_what_is_reached():
    """Lines of ours in their order, and what happened; tracing ends with it."""
    before = sys.gettrace()
    nack, bye = reached("codec", NACK), reached("codec", BYE)
    assert sys.gettrace() is before
    assert ("Nack", -1, 2) in nack - bye
    assert ("Bye", -1, 2) in bye - nack  # it is decoded twice
    assert {Path(file).name for file, line, _ in nack if line >= 0} == {"codec.py"}
    assert {Path(file).name for file, line, _ in bye if line >= 0} >= {"codec.py"}
    assert reached("codec", NACK) == nack


def test_worth_keeping(tmp_path: Path):
    """Of inputs that reach the same the shortest is kept, and none that the corpus reaches."""
    found = write(tmp_path, a_nack=NACK, bye=BYE, short=b"x", longer=b"xy")
    assert [path.name for path in worth_keeping("codec", [], found)] == ["short", "a_nack", "bye"]
    assert [path.name for path in worth_keeping("codec", found[1:2], found)] == ["short", "a_nack"]
    assert worth_keeping("codec", found, found) == []
