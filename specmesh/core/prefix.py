"""A sequence of token ids that can name each of its prefixes by a CRC."""

import struct
from collections.abc import Iterable, Sequence
from zlib import crc32

_ID = struct.Struct("<i")


class Prefix:
    """Token ids with the CRC-32 of each of their prefixes.

    So the place of a frame is checked in constant time.

    ids: to be read only.
    """

    __slots__ = ("_crcs", "ids")

    def __init__(self, ids: Iterable[int] = (), crc: int = 0) -> None:
        """Begin with `ids`, which go on from other ids with this CRC."""
        self.ids: list[int] = []
        self._crcs = [crc]
        self.extend(ids)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: slice) -> list[int]:
        return self.ids[index]

    @property
    def crc(self) -> int:
        """Return the CRC of all ids."""
        return self._crcs[-1]

    def crc_at(self, length: int) -> int:
        """Return the CRC of the first `length` ids."""
        return self._crcs[length]

    def holds(self, base: int, crc: int) -> bool:
        """Return True if the first `base` ids are here and have this CRC."""
        return base <= len(self.ids) and self._crcs[base] == crc

    def extend(self, ids: Iterable[int]) -> None:
        """Append ids."""
        own_ids = self.ids
        crcs = self._crcs
        crc = crcs[-1]
        pack = _ID.pack
        for token in ids:
            crc = crc32(pack(token), crc)
            own_ids.append(token)
            crcs.append(crc)

    def truncate(self, length: int) -> None:
        """Keep the first `length` ids."""
        del self.ids[length:]
        del self._crcs[length + 1 :]

    def drop(self, count: int) -> None:
        """Begin after the first `count` ids."""
        del self.ids[:count]
        del self._crcs[:count]

    def restart(self, crc: int) -> None:
        """Hold no ids, and go on from others with this CRC."""
        self.ids.clear()
        self._crcs = [crc]


def crc_of(ids: Sequence[int], crc: int = 0) -> int:
    """Return the CRC of ids that go on from others with the CRC `crc`."""
    return crc32(struct.pack(f"<{len(ids)}i", *ids), crc)


def common_length(left: Sequence[object], right: Sequence[object]) -> int:
    """Return the length of the longest common prefix."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))
