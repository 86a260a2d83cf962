"""A sequence of token ids that can name each of its prefixes by a CRC."""

import struct
from collections.abc import Iterable, Sequence
from zlib import crc32

_ID = struct.Struct("<i")


class Prefix:
    """Token ids with the CRC-32 of every prefix, so that a frame's place can be checked in constant time. crc: of the
    ids before them, if these go on from others."""

    __slots__ = ("_crcs", "ids")

    def __init__(self, ids: Iterable[int] = (), crc: int = 0) -> None:
        self.ids: list[int] = []  # to be read only
        self._crcs = [crc]
        self.extend(ids)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: slice) -> list[int]:
        return self.ids[index]

    @property
    def crc(self) -> int:
        return self._crcs[-1]

    def crc_at(self, length: int) -> int:
        return self._crcs[length]

    def holds(self, base: int, crc: int) -> bool:
        """Whether the first `base` ids are here and have this CRC."""
        return base <= len(self.ids) and self._crcs[base] == crc

    def extend(self, ids: Iterable[int]) -> None:
        known, crcs, crc, pack = self.ids, self._crcs, self._crcs[-1], _ID.pack
        for token in ids:
            crc = crc32(pack(token), crc)
            known.append(token)
            crcs.append(crc)

    def truncate(self, length: int) -> None:
        del self.ids[length:]
        del self._crcs[length + 1 :]

    def drop(self, count: int) -> None:
        """Let it begin after its first ids."""
        del self.ids[:count]
        del self._crcs[:count]

    def restart(self, crc: int) -> None:
        """Hold nothing, and go on from ids with this CRC."""
        self.ids.clear()
        self._crcs = [crc]


def common_length(left: Sequence[object], right: Sequence[object]) -> int:
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))
