"""CRCs of prefixes: the plain definition, over growth and cuts, at little time and memory."""

import random
import struct
import tracemalloc
from zlib import crc32

from hypothesis import given
from hypothesis import strategies as st

from specmesh.core import prefix as module
from specmesh.core.prefix import Prefix, common_length

LONG = 100_000

sizes = st.sampled_from((0, 1, 2, 7, 63, 64, 65, 128, 300))
parts = st.floats(0, 1)
kinds = st.sampled_from(("extend", "extend", "truncate", "truncate", "drop", "restart"))
changes = st.tuples(kinds, sizes, parts)
questions = st.lists(st.tuples(st.booleans(), sizes, parts), max_size=4)


def ids_of(count, seed):
    return random.Random(seed).choices(range(-(2**31), 2**31), k=count)


class PlainPrefix:
    """The definition: a CRC is that of the bytes of all ids before a position."""

    def __init__(self):
        self.crc = 0
        self.ids = []

    def crc_at(self, length):
        return crc32(struct.pack(f"<{length}i", *self.ids[:length]), self.crc)

    def change(self, prefix, change, size, part):
        """Make the same change to both: near the end of the ids, or anywhere."""
        length = len(self.ids)
        at = max(length - size, 0) if part < 0.7 else round(part * length)
        match change:
            case "extend":
                ids = ids_of(size, part)
                prefix.extend(ids)
                self.ids += ids
            case "truncate":
                prefix.truncate(at)
                del self.ids[at:]
            case "drop":
                prefix.drop(at)
                self.crc = self.crc_at(at)
                del self.ids[:at]
            case "restart":
                prefix.restart(size)
                self.crc = size
                self.ids = []


@given(st.lists(st.tuples(changes, questions), max_size=30))
def test_a_prefix_has_the_crc_of_its_bytes_after_any_changes(script):
    plain = PlainPrefix()
    prefix = Prefix()
    for change, asked in script:
        plain.change(prefix, *change)
        length = len(plain.ids)
        positions = [
            max(length - size, 0) if near else round(part * length) for near, size, part in asked
        ]
        answers = [prefix.crc_at(position) for position in positions]
        assert answers == [plain.crc_at(position) for position in positions]
    assert (prefix[0:], prefix.crc) == (plain.ids, plain.crc_at(len(plain.ids)))


@given(st.integers(0, 200), st.integers(0, 3), st.integers(0, 200))
def test_ids_that_take_the_place_of_others_change_the_crc(kept, cut, added):
    ids = ids_of(kept + cut, 1)
    prefix = Prefix(ids)
    assert prefix.crc == crc32(struct.pack(f"<{len(ids)}i", *ids))
    prefix.truncate(kept)
    others = ids_of(added, 2)
    prefix.extend(others)
    assert prefix.crc == crc32(struct.pack(f"<{kept + added}i", *ids[:kept], *others))


def test_a_long_text_costs_few_calls(monkeypatch):
    calls = []

    def counted(*args):
        calls.append(args)
        return crc32(*args)

    monkeypatch.setattr(module, "crc32", counted)
    assert Prefix(range(LONG)).crc == crc32(struct.pack(f"<{LONG}i", *range(LONG)))
    assert len(calls) < LONG / 50


def test_a_long_text_takes_few_bytes():
    ids = tuple(range(LONG))
    tracemalloc.start()
    prefix = Prefix(ids)
    assert prefix.holds(LONG, prefix.crc)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 8 * LONG


@given(st.integers(0, 20_000), st.integers(0, 20_000), st.integers(0, 20_000), st.booleans())
def test_long_texts_have_the_length_in_common_that_they_agree_for(left, right, at, alike):
    ids = ids_of(left, 1)
    others = (ids + ids_of(right, 2))[:right]
    if at < right:
        others[at] ^= 1
    if not alike:
        others = tuple(others)
    agreed = next((i for i, (a, b) in enumerate(zip(ids, others, strict=False)) if a != b), None)
    expected = min(len(ids), len(others)) if agreed is None else agreed
    assert common_length(ids, others) == expected
