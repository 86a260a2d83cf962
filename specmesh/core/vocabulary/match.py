"""Whether a drafter's vocabulary fits a verifier's: compared token by token, as bytes.

Files of one model spell their tokens differently and pad their tables differently, and two models of one size may share
nothing. Only the bytes behind each id tell. The verdicts:

    same       equal ids mean equal bytes; padding rows and unused specials may differ
    permuted   the same tokens under other ids: a table translates
    partial    most tokens have a counterpart: a table translates those, the others are never drafted
    different  too few have: a drafter would be wrong nearly always

A wrong verdict could waste time but never change a text: the verifier takes only ids that its own target chose.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from math import floor

import numpy as np

from specmesh.core.vocabulary.vocabulary import NONE, Remap, Vocabulary

LEAST_OVERLAP = 0.9  # share of tokens with a counterpart below which a drafter is refused by default
MAX_PADDING = 128  # ids by which one side may be longer, all of them empty or unused: llama.cpp's bound
SHOWN = 5  # differences that are named
_SUFFIX = 32  # longest end of a foreign token, in bytes, for which a stand-in is looked for
_SPELLING = 40
# how special tokens are spelt where a file does not mark them as such
_SPARE = re.compile(rb"<\|[^\s]{0,60}\|>|[<\[](?:pad|unused|reserved|extra_id|dummy)[^\s]{0,60}[>\]]", re.IGNORECASE)


class MatchKind(StrEnum):
    SAME = "same"
    PERMUTED = "permuted"
    PARTIAL = "partial"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True)
class Difference:
    """An id that stands for something else on the other side, in both spellings."""

    id: int
    draft: str
    verifier: str

    def __str__(self) -> str:
        return f"{self.id} is {self.draft} for the drafter, {self.verifier} for the verifier"


@dataclass(frozen=True, slots=True)
class VocabularyMatch:
    verdict: MatchKind
    n_draft: int
    n_verifier: int
    overlap: float  # share of tokens with a counterpart; of the two sides' shares the lower
    least: float  # the overlap that is needed
    moved: int  # verifier ids whose counterpart has another id
    only_draft: int  # tokens without a counterpart, unused specials not counted
    only_verifier: int
    differences: tuple[Difference, ...]
    remap: Remap | None = field(default=None, compare=False)  # None where the verdict is different

    def __str__(self) -> str:
        sizes = f"{self.n_draft} tokens"
        if self.n_draft != self.n_verifier:
            sizes = f"the drafter has {sizes}, the verifier {self.n_verifier} tokens"
        match self.verdict:
            case MatchKind.SAME:
                return f"the same vocabulary, {sizes}"
            case MatchKind.PERMUTED:
                return f"the same tokens, {self.moved} of them under other ids ({sizes}): ids are translated"
            case MatchKind.PARTIAL:
                without = f"{self.only_verifier} of the verifier's and {self.only_draft} of the drafter's"
                share = f"{percent(self.overlap)} of the tokens have a counterpart ({sizes})"
                return f"{share}; {without} have none and are never drafted; the first: {self._first()}"
        share = f"only {percent(self.overlap)} of the tokens have a counterpart ({sizes})"
        return f"{share}, {percent(self.least)} are needed; the first differing ids: {self._first()}"

    def _first(self) -> str:
        return "; ".join(map(str, self.differences)) or "none, for there is no text in them"


def compare(draft: Vocabulary, verifier: Vocabulary, least: float = LEAST_OVERLAP) -> VocabularyMatch:
    """Compare two vocabularies; `least` is the share of tokens with a counterpart below which they are different."""
    if _is_same(draft.pieces, verifier.pieces):
        return _same(draft, verifier, least)
    pairs = _Pairs(draft, verifier)
    shares = [_share(table, side.pieces) for table, side in ((pairs.fed, verifier), (pairs.said, draft))]
    (overlap, only_verifier), (draft_overlap, only_draft) = shares
    overlap = min(overlap, draft_overlap)
    moved = sum(v != d for v, d in pairs.fed.items())
    if overlap < least or not pairs.fed:
        verdict = MatchKind.DIFFERENT
    else:
        verdict = MatchKind.PARTIAL if only_draft or only_verifier else MatchKind.PERMUTED
    first = _foreign(pairs, draft, verifier) if verdict is MatchKind.PARTIAL else _differing(draft, verifier)
    named = tuple(Difference(i, _spelt(draft, i), _spelt(verifier, i)) for i in islice(first, SHOWN))
    remap = None if verdict is MatchKind.DIFFERENT else pairs.remap()
    sizes = len(draft), len(verifier)
    return VocabularyMatch(verdict, *sizes, overlap, least, moved, only_draft, only_verifier, named, remap)


def percent(share: float) -> str:
    """A share for people, rounded down: what is below a bar never looks as if it reached it."""
    return f"{floor(share * 1e4 + 1e-6) / 100:g} %"


def spelling(piece: bytes) -> str:
    """Bytes for people, on one line: quoted text, or hexadecimal where they are no whole characters."""
    if not piece:
        return "no text"
    try:
        shown = repr(piece[: 4 * _SPELLING].decode()) if len(piece) <= 4 * _SPELLING else f"{len(piece)} bytes"
    except UnicodeDecodeError:
        shown = f"<{piece[:_SPELLING].hex(' ')}>"
    return shown if len(shown) <= 2 * _SPELLING else f"{shown[: 2 * _SPELLING]}..."


# --- the same ids


def _is_same(a: tuple[bytes, ...], b: tuple[bytes, ...]) -> bool:
    """Whether equal ids mean equal bytes, padding and unused specials aside."""
    if a == b:
        return any(a)
    shorter, longer = sorted((a, b), key=len)
    if len(longer) - len(shorter) > MAX_PADDING or not all(map(_spare, longer[len(shorter) :])):
        return False
    pairs = zip(a, b, strict=False)
    return any(a) and all(x == y or (not (x and y) and _spare(x) and _spare(y)) for x, y in pairs)


def _same(draft: Vocabulary, verifier: Vocabulary, least: float) -> VocabularyMatch:
    n = min(len(draft), len(verifier))
    fed = np.full(len(verifier), _filler(draft), np.int64)
    said = np.full(len(draft), NONE, np.int64)
    fed[:n] = said[:n] = np.arange(n)
    return VocabularyMatch(MatchKind.SAME, len(draft), len(verifier), 1.0, least, 0, 0, 0, (), Remap(fed, said))


def _spare(piece: bytes) -> bool:
    return not piece or _SPARE.fullmatch(piece) is not None


# --- other ids


class _Pairs:
    """Counterparts: fed maps verifier ids to draft ids, said draft ids to verifier ids.

    Text is matched by its bytes; of several ids with the same bytes equal ids belong together, then the first with the
    first, and so on; what is left over shares the first. Tokens without text are matched by id where most others keep
    theirs, end ids by role."""

    def __init__(self, draft: Vocabulary, verifier: Vocabulary) -> None:
        self._draft, self._verifier = draft, verifier
        self.fed: dict[int, int] = {}
        self.said: dict[int, int] = {}
        self._mine = mine = _ids_by_piece(draft.pieces)
        for piece, ids in _ids_by_piece(verifier.pieces).items():
            if piece in mine:
                self._pair(ids, mine[piece])
        kept = sum(v == d for v, d in self.fed.items())
        if 2 * kept > len(self.fed):
            self._pair_by_id()
        self._pair_ends()

    def remap(self) -> Remap:
        filler = _filler(self._draft)
        fed = np.full(len(self._verifier), filler, np.int64)
        fed[list(self.fed)] = list(self.fed.values())
        for v, piece in enumerate(self._verifier.pieces):
            if piece and v not in self.fed:
                fed[v] = _stand_in(piece, self._mine, filler)
        said = np.full(len(self._draft), NONE, np.int64)
        said[list(self.said)] = list(self.said.values())
        return Remap(fed, said)

    def _pair(self, theirs: list[int], mine: list[int]) -> None:
        """Pair ids, both lists in rising order, that mean the same."""
        if not (theirs and mine):
            return
        if len(theirs) == len(mine) == 1:
            self.fed[theirs[0]], self.said[mine[0]] = mine[0], theirs[0]
            return
        common = set(theirs) & set(mine)
        rest = [[i for i in ids if i not in common] for ids in (theirs, mine)]
        for v, d in [*((i, i) for i in common), *zip(*rest, strict=False)]:
            self.fed[v], self.said[d] = d, v
        for v in rest[0][len(rest[1]) :]:
            self.fed[v] = mine[0]
        for d in rest[1][len(rest[0]) :]:
            self.said[d] = theirs[0]

    def _pair_by_id(self) -> None:
        for i, (a, b) in enumerate(zip(self._draft.pieces, self._verifier.pieces, strict=False)):
            if not a and not b:
                self.fed[i] = self.said[i] = i

    def _pair_ends(self) -> None:
        theirs = [i for i in sorted(self._verifier.end_ids) if i < len(self._verifier) and i not in self.fed]
        mine = [i for i in sorted(self._draft.end_ids) if i < len(self._draft) and i not in self.said]
        self._pair(theirs, mine)


def _ids_by_piece(pieces: tuple[bytes, ...]) -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = {}
    for token, piece in enumerate(pieces):
        if piece:
            found.setdefault(piece, []).append(token)
    return found


def _share(table: dict[int, int], pieces: tuple[bytes, ...]) -> tuple[float, int]:
    """Share of a side's tokens that have a counterpart, and how many have none; unused specials do not count."""
    texts = [token for token, piece in enumerate(pieces) if piece]
    paired = sum(token in table for token in texts)
    alone = sum(token not in table and not _spare(pieces[token]) for token in texts)
    return (paired / (paired + alone) if paired else 0.0), alone


def _filler(vocabulary: Vocabulary) -> int:
    """What is fed where nothing better is known: a space, else a line's end, else the first text."""
    known = next((piece for piece in (b" ", b"\n", *vocabulary.pieces) if piece and piece in vocabulary.pieces), b"")
    return vocabulary.pieces.index(known) if known else 0


def _stand_in(piece: bytes, ids: dict[bytes, list[int]], filler: int) -> int:
    """The longest end of a foreign token: what follows it then looks right to the draft model."""
    ends = (piece[start:] for start in range(max(len(piece) - _SUFFIX, 0), len(piece)))
    return next((ids[end][0] for end in ends if end in ids), filler)


def _differing(draft: Vocabulary, verifier: Vocabulary) -> Iterator[int]:
    n = min(len(draft), len(verifier))
    yield from (token for token in range(n) if draft.pieces[token] != verifier.pieces[token])
    yield from range(n, max(len(draft), len(verifier)))


def _foreign(pairs: _Pairs, draft: Vocabulary, verifier: Vocabulary) -> Iterable[int]:
    theirs = [i for i, piece in enumerate(verifier.pieces) if i not in pairs.fed and not _spare(piece)]
    return theirs or [i for i, piece in enumerate(draft.pieces) if i not in pairs.said and not _spare(piece)]


def _spelt(vocabulary: Vocabulary, token: int) -> str:
    return spelling(vocabulary.pieces[token]) if token < len(vocabulary) else "no id"
