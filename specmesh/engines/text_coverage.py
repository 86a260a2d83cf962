"""How much text an id of a vocabulary can stand for: a bound for texts that are too long."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextCoverage:
    """The amount of text that an id of a vocabulary can stand for.

    longest: most bytes of one id, special tokens as they are written. 0: there is no limit, since
        an id stands for all that is unknown, or a special token swallows blanks.
    lost: bytes that no id stands for.
    """

    longest: int
    lost: bytes

    def least_ids(self, text: str) -> int:
        """Return a lower bound of the number of ids of a text."""
        if not self.longest:
            return 0
        kept = text.encode("utf-8", "surrogatepass").translate(None, self.lost)
        return -(-len(kept) // self.longest)


NO_LIMIT = TextCoverage(0, b"")


def bytes_lost(pieces: Sequence[bytes]) -> bytes:
    """Return the bytes that are no piece by themselves."""
    lost = set(range(256))
    for piece in set(pieces):
        if len(piece) == 1:
            lost.discard(piece[0])
    return bytes(lost)
