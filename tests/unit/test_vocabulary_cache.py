"""Vocabularies on disk: whole and right, or not there."""

import os
from pathlib import Path

import pytest

from specmesh.caches import MAX_FILES, VocabularyCache
from specmesh.core.vocabulary.vocabulary import Vocabulary

PIECES = (b"a", b"", b"\x00\xff", "ü".encode() * 100)
PRINT = Vocabulary(PIECES, frozenset()).fingerprint()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "not" / "yet"


@pytest.fixture
def file(folder: Path) -> Path:
    VocabularyCache(folder).store(PRINT, PIECES)
    [path] = folder.iterdir()
    return path


@pytest.mark.parametrize("damage", ["one bit", "cut", "longer", "empty", "other vocabulary"])
def test_damaged_files_count_as_absent(folder: Path, file: Path, damage: str):
    """Whatever happened to the file, it is not believed, and storing again mends it."""
    raw = file.read_bytes()
    other = Vocabulary((b"x",), frozenset())
    VocabularyCache(folder).store(other.fingerprint(), other.pieces)
    damaged = {
        "one bit": bytes([raw[0] ^ 1]) + raw[1:],
        "cut": raw[:-1],
        "longer": raw + b"\0" * 4,
        "empty": b"",
        "other vocabulary": (folder / file.name.replace(PRINT, other.fingerprint())).read_bytes(),
    }
    file.write_bytes(damaged[damage])
    cache = VocabularyCache(folder)
    assert cache.load(PRINT, len(PIECES)) is None
    cache.store(PRINT, PIECES)
    assert cache.load(PRINT, len(PIECES)) == PIECES


def test_size_must_be_the_one_told(folder: Path, file: Path):
    """Right bytes of another number of tokens than WELCOME says are not used."""
    assert VocabularyCache(folder).load(PRINT, len(PIECES) + 1) is None


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "A" * 64, "a" * 63, "a" * 64 + "\n", "a" * 63 + "/"])
def test_a_peers_text_names_no_file(folder: Path, name: str):
    """What is no fingerprint is neither looked up nor stored."""
    cache = VocabularyCache(folder)
    cache.store(name, PIECES)
    assert cache.load(name, len(PIECES)) is None
    assert not folder.exists()


def test_the_longest_unused_go_first(folder: Path):
    """No more files than KEPT; one that was used lately stays."""
    cache = VocabularyCache(folder)
    prints = []
    for number in range(MAX_FILES + 3):
        pieces = (b"%d" % number,)
        prints.append(Vocabulary(pieces, frozenset()).fingerprint())
        cache.store(prints[-1], pieces)
        os.utime(folder / f"{prints[-1]}.vocabulary", (number, number))
        if number == MAX_FILES - 1:
            assert cache.load(prints[0], 1) == (b"0",)
    assert len(list(folder.iterdir())) <= MAX_FILES
    assert cache.load(prints[0], 1) == (b"0",)
    assert cache.load(prints[1], 1) is None
