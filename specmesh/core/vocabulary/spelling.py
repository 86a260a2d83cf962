"""Texts spelled by the ids of a vocabulary, in four bytes an id: a dictionary takes a hundred."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence

from specmesh.core.prefix import common_length


class Spelling:
    """Spells a text by its longest pieces."""

    def __init__(self, pieces: Sequence[bytes], left_out: Collection[int]) -> None:
        """Sort the pieces. left_out: ids that spell nothing."""
        self._pieces = pieces
        ids: list[int] = []
        for token, piece in enumerate(pieces):
            if piece and token not in left_out:
                ids.append(token)
        ids.sort(key=pieces.__getitem__)  # of equal pieces the lowest id stays first
        self._sorted = array("i", ids)

    def spell(self, text: bytes) -> list[int]:
        """Return the ids of a text, up to what no id begins with."""
        ids: list[int] = []
        at = 0
        while at < len(text):
            token = self._longest(text[at:])
            if token is None:
                break
            ids.append(token)
            at += len(self._pieces[token])
        return ids

    def _longest(self, text: bytes) -> int | None:
        """Return the id of the longest piece that a text begins with; of equal ones the lowest."""
        piece_of = self._pieces.__getitem__
        while text:
            # All pieces that the text begins with are before this place, the longest one last.
            place = bisect_right(self._sorted, text, key=piece_of)
            if place == 0:
                return None
            piece = piece_of(self._sorted[place - 1])
            if text.startswith(piece):
                return self._sorted[bisect_left(self._sorted, piece, key=piece_of)]
            text = text[: common_length(text, piece)]
        return None
