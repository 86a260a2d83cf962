"""Prefixes name themselves by a CRC."""

import struct
from binascii import crc32

from hypothesis import given
from hypothesis import strategies as st

from specmesh.core.prefix import Prefix

int32 = st.integers(-(2**31), 2**31 - 1)
ids = st.lists(int32, max_size=30)


def crc_of(tokens):
    return crc32(struct.pack(f"<{len(tokens)}i", *tokens))


@given(ids, ids, st.integers(0, 40))
def test_every_prefix_has_the_crc_of_its_bytes(first, second, length):
    """Whatever was there before and was cut off."""
    prefix = Prefix(first)
    prefix.extend(second)
    prefix.truncate(length)
    prefix.extend(first)
    tokens = [*(first + second)[:length], *first]
    assert (len(prefix), prefix[0 : len(prefix)], prefix.crc) == (len(tokens), tokens, crc_of(tokens))
    assert [prefix.crc_at(n) for n in range(len(tokens) + 1)] == [crc_of(tokens[:n]) for n in range(len(tokens) + 1)]


@given(ids, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_holds_is_exact(tokens, base, crc):
    prefix = Prefix(tokens)
    assert all(prefix.holds(n, crc_of(tokens[:n])) for n in range(len(tokens) + 1))
    assert prefix.holds(base, crc) == (base <= len(tokens) and crc_of(tokens[:base]) == crc)
