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
from dataclasses import dataclass, field
from enum import StrEnum
from math import floor

import numpy as np

from specmesh.core.vocabulary.vocabulary import NONE, Remap, Vocabulary

LEAST_OVERLAP = 0.9  # share of tokens with a counterpart below which a drafter is refused
# how special tokens are spelt where a file does not mark them as such
_SPARE = re.compile(
    rb"<\|[^\s]{0,60}\|>|[<\[](?:pad|unused|reserved|extra_id|dummy)[^\s]{0,60}[>\]]", re.IGNORECASE
)


class MatchKind(StrEnum):
    SAME = "same"
    PERMUTED = "permuted"
    PARTIAL = "partial"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True)
class VocabularyMatch:
    verdict: MatchKind
    overlap: float  # share of tokens with a counterpart; of the two sides' shares the lower
    meaning: str  # for people
    remap: Remap | None = field(default=None, compare=False)  # None where the verdict is different


def compare(
    draft: Vocabulary, verifier: Vocabulary, least: float = LEAST_OVERLAP
) -> VocabularyMatch:
    """Compare two vocabularies; `least` is the share of tokens with a counterpart below which they are different."""
    theirs, mine = verifier.pieces, draft.pieces
    fed, said = (
        _counterparts(theirs, mine),
        _counterparts(mine, theirs),
    )  # by verifier's id, by draft's id
    moved = sum(v != d for v, d in fed.items())
    if 2 * moved < len(fed):  # most keep their ids, so those without text do too
        without = [i for i, (a, b) in enumerate(zip(theirs, mine, strict=False)) if not a and not b]
        without += _ends_on_one_side(verifier, draft, fed, said)
        fed |= zip(without, without, strict=True)
        said |= zip(without, without, strict=True)
    for v, d in zip(_ends(verifier, fed), _ends(draft, said), strict=False):
        fed[v], said[d] = d, v
    only_theirs, only_mine = _without(theirs, fed), _without(mine, said)
    overlap = min(_share(theirs, fed, only_theirs), _share(mine, said, only_mine))
    percent = (
        floor(overlap * 1e4 + 1e-6) / 100
    )  # what is below the bar never looks as if it reached it
    meaning = f"{percent:g} % of the tokens have a counterpart ({len(mine)} and {len(theirs)} ids)"
    if overlap < least or not overlap:
        return VocabularyMatch(
            MatchKind.DIFFERENT, overlap, f"only {meaning}, {least * 100:g} % are needed"
        )
    stand_in = _first_ids(mine).get(b" ", 0)
    to_draft = np.array([fed.get(v, stand_in) for v in range(len(theirs))])
    remap = Remap(to_draft, np.array([said.get(d, NONE) for d in range(len(mine))]))
    if only_theirs or only_mine:
        return VocabularyMatch(
            MatchKind.PARTIAL, overlap, f"{meaning}; the others are never drafted", remap
        )
    if moved:
        return VocabularyMatch(MatchKind.PERMUTED, overlap, f"{meaning}, under other ids", remap)
    return VocabularyMatch(MatchKind.SAME, overlap, meaning, remap)


def _counterparts(pieces: tuple[bytes, ...], others: tuple[bytes, ...]) -> dict[int, int]:
    """Return for each id with text the other side's equal id if it has the same bytes, else the first that has."""
    first = _first_ids(others)
    return {
        i: i if i < len(others) and others[i] == piece else first[piece]
        for i, piece in enumerate(pieces)
        if piece in first
    }


def _first_ids(pieces: tuple[bytes, ...]) -> dict[bytes, int]:
    return {piece: i for i, piece in reversed(list(enumerate(pieces))) if piece}


def _ends_on_one_side(
    verifier: Vocabulary, draft: Vocabulary, fed: dict[int, int], said: dict[int, int]
) -> list[int]:
    """Return the ids that end a text on one side, without text there, and have text on the
    other: two libraries read one file so."""
    found = list[int]()
    for i in sorted(verifier.end_ids | draft.end_ids):
        there = i < min(len(verifier), len(draft)) and i not in fed and i not in said
        if there and bool(verifier.pieces[i]) != bool(draft.pieces[i]):
            found.append(i)
    return found


def _ends(vocabulary: Vocabulary, table: dict[int, int]) -> list[int]:
    """Return the end ids without a counterpart: they are matched by their role."""
    return [i for i in sorted(vocabulary.end_ids) if i < len(vocabulary) and i not in table]


def _without(pieces: tuple[bytes, ...], table: dict[int, int]) -> list[int]:
    """Return the ids without a counterpart; unused specials do not count."""
    return [
        i
        for i, piece in enumerate(pieces)
        if piece and i not in table and not _SPARE.fullmatch(piece)
    ]


def _share(pieces: tuple[bytes, ...], table: dict[int, int], foreign: list[int]) -> float:
    paired = sum(bool(pieces[i]) for i in table)
    return paired / (paired + len(foreign)) if paired else 0.0
