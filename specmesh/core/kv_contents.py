"""The ids that a sequence of an engine holds."""

from collections.abc import Sequence
from dataclasses import dataclass

ANY_LENGTH = 2**31 - 1  # ids of a text, where nothing limits it


@dataclass(frozen=True, slots=True)
class KVBegin:
    """The place in its text at which a sequence begins.

    start, bos: as in KVSlot. crc: CRC of the ids before `start`.
    """

    start: int = 0
    bos: int = 0
    crc: int = 0


TEXT_BEGIN = KVBegin()


@dataclass(frozen=True, slots=True)
class KVContents:
    """The ids that a sequence holds.

    ids: from the beginning of the text, or of a window of it, on.
    prompt: so many were read as a prompt, in its parts; the ids behind them came by steps.
    """

    ids: Sequence[int]
    prompt: int
    begin: KVBegin = TEXT_BEGIN

    @property
    def cells(self) -> int:
        """Return the cells that they fill."""
        return len(self.ids) + self.begin.bos if self.ids else 0


NO_CONTENTS = KVContents((), 0)
