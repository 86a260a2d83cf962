"""A sequence of token ids that can name each of its prefixes by a CRC.

Two texts are compared without sending either: "my first 1,000 ids have this CRC" is 8 bytes. A
frame names the place where its ids belong so, and the receiver sees at once whether it has the same
ids before that place. Nothing that an earlier frame has done needs to be known for that.

A CRC-32 can be continued: the CRC of a b c follows from that of a b and the bytes of c. So the
frontier's CRC costs a few ids in each round. For any other place the nearest kept CRC before it is
continued; one is kept after each 64 ids.

It protects against loss and confusion, not against a peer that forges: such a peer can only have
its own drafts rejected.
"""

import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from zlib import crc32

_PART = 64
"""Ids between two CRCs that are kept. The CRC of so many is computed in 3e-7 s."""
_COMPARED = 4096  # ids that are compared at once
_SWAPPED = sys.byteorder == "big"  # CRCs are of little-endian bytes


class Prefix:
    """Token ids with the CRC-32 of each of their prefixes.

    So the place of a frame is checked in constant time. CRCs are computed when they are asked for,
    from the nearest one before: the last one asked for, or that of a whole number of parts.

    ids: to be read only; 4 bytes each.
    """

    __slots__ = ("_asked", "_asked_crc", "_crcs", "ids")

    def __init__(self, ids: Iterable[int] = (), crc: int = 0) -> None:
        """Begin with `ids`, which go on from other ids with this CRC."""
        self.ids = array("i", ids)
        self._crcs = [crc]  # of no ids, of a part, of two parts, ..
        self._asked = 0  # the length asked for last, and its CRC
        self._asked_crc = crc

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: slice) -> list[int]:
        return self.ids[index].tolist()

    @property
    def crc(self) -> int:
        """Return the CRC of all ids."""
        return self.crc_at(len(self.ids))

    def crc_at(self, length: int) -> int:
        """Return the CRC of the first `length` ids; raise IndexError if there are fewer."""
        begin = self._asked
        crc = self._asked_crc
        if length == begin:
            return crc
        ids = self.ids
        if length > len(ids):
            raise IndexError(f"{len(ids)} ids have no prefix of {length}")
        if not begin < length < begin + _PART:
            count = length // _PART
            begin = count * _PART
            crc = self._crc_of_parts(count)
        part = ids[begin:length]
        if _SWAPPED:
            part.byteswap()
        crc = crc32(part, crc)
        self._asked = length
        self._asked_crc = crc
        return crc

    def _crc_of_parts(self, count: int) -> int:
        """Return the CRC of the first parts, and keep it."""
        crcs = self._crcs
        for end in range(len(crcs) * _PART, count * _PART + 1, _PART):
            part = self.ids[end - _PART : end]
            if _SWAPPED:
                part.byteswap()
            crcs.append(crc32(part, crcs[-1]))
        return crcs[count]

    def holds(self, base: int, crc: int) -> bool:
        """Return True if the first `base` ids are here and have this CRC."""
        return base <= len(self.ids) and self.crc_at(base) == crc

    def extend(self, ids: Sequence[int]) -> None:
        """Append ids."""
        if len(ids) > _PART:
            ids = array("i", ids)  # takes half the time
        self.ids.extend(ids)

    def truncate(self, length: int) -> None:
        """Keep the first `length` ids."""
        del self.ids[length:]
        if len(self._crcs) * _PART > length + _PART:
            del self._crcs[length // _PART + 1 :]
        if self._asked > length:
            # Go on from the first CRC: the one asked for last is of ids that are gone.
            self._asked = 0
            self._asked_crc = self._crcs[0]

    def drop(self, count: int) -> None:
        """Begin after the first `count` ids."""
        crc = self.crc_at(count)
        del self.ids[:count]
        self._crcs = [crc]
        self._asked = 0
        self._asked_crc = crc

    def restart(self, crc: int) -> None:
        """Hold no ids, and go on from others with this CRC."""
        del self.ids[:]
        self._crcs = [crc]
        self._asked = 0
        self._asked_crc = crc


def crc_of(ids: Sequence[int], crc: int = 0) -> int:
    """Return the CRC of ids that go on from others with the CRC `crc`."""
    return crc32(struct.pack(f"<{len(ids)}i", *ids), crc)


def common_length(left: Sequence[object], right: Sequence[object]) -> int:
    """Return the length of the longest common prefix."""
    most = min(len(left), len(right))
    begin = 0
    if most > _COMPARED:
        begin = _equal_stretches(left, right, most)
        left = left[begin : begin + _COMPARED]
        right = right[begin : begin + _COMPARED]
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return begin + index
    return begin + min(len(left), len(right))


def _equal_stretches(left: Sequence[object], right: Sequence[object], most: int) -> int:
    """Return where the first stretch of _COMPARED items begins that differs, or the last one."""
    begin = 0
    while begin + _COMPARED < most:
        end = begin + _COMPARED
        if not _equal(left[begin:end], right[begin:end]):
            break
        begin = end
    return begin


def _equal(left: Sequence[object], right: Sequence[object]) -> bool:
    """Return True if two sequences have the same items, also an array and a tuple."""
    if type(left) is type(right):
        return left == right
    return tuple(left) == tuple(right)
