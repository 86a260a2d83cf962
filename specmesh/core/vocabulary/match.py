"""Comparison of a drafter's vocabulary with a verifier's: token by token, as bytes.

Files of one model spell their tokens differently and pad their tables differently, and two models
of one size may share nothing. Only the bytes behind each id count. The verdicts:

    same       equal ids mean equal bytes; padding rows and unused specials may differ
    permuted   the same tokens under other ids: a table translates
    partial    most tokens have a counterpart: a table translates them, others are never drafted
    different  too few have: a drafter would be wrong nearly always

A wrong verdict could waste time but never change a text: the verifier takes only ids that its own
target chose.

Ids without text have nothing to compare: begin and end of a text, padding, marks of a chat. Where
most other tokens have equal ids, these are taken for equal, too. End ids matter most, as no text
would end: those without a counterpart are matched by their role.

The two tables of a `Remap` are not each other's inverse. A token without a counterpart is read by
the draft model as a blank, since something must stand in its place; but it is never drafted.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import floor

import numpy as np

from specmesh.core.vocabulary.remap import NONE, Remap
from specmesh.core.vocabulary.vocabulary import Vocabulary

LEAST_OVERLAP = 0.9  # share of tokens with a counterpart below which a drafter is refused

_UNUSED = re.compile(
    rb"<\|[^\s]{0,60}\|>|[<\[](?:pad|unused|reserved|extra_id|dummy)[^\s]{0,60}[>\]]", re.IGNORECASE
)
"""The spelling of unused special tokens in files that do not mark them as such."""

Pieces = tuple[bytes, ...]


class MatchKind(StrEnum):
    """The verdicts."""

    SAME = "same"
    PERMUTED = "permuted"
    PARTIAL = "partial"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True)
class VocabularyMatch:
    """The outcome of a comparison.

    overlap: share of tokens with a counterpart, the lower of both sides' shares.
    meaning: the verdict for people. remap: None if the vocabularies are different.
    """

    verdict: MatchKind
    overlap: float
    meaning: str
    remap: Remap | None = field(default=None, compare=False)


def compare(
    draft: Vocabulary, verifier: Vocabulary, least: float = LEAST_OVERLAP
) -> VocabularyMatch:
    """Compare two vocabularies.

    least: share of tokens with a counterpart below which they are different.
    """
    to_draft = _counterparts(verifier.pieces, draft.pieces)
    to_verifier = _counterparts(draft.pieces, verifier.pieces)
    moved = _moved(to_draft)
    if 2 * moved < len(to_draft):
        # Most tokens keep their ids, so those without text do too.
        textless = _textless(verifier.pieces, draft.pieces)
        textless += _ends_on_one_side(verifier, draft, to_draft, to_verifier)
        for token in textless:
            to_draft[token] = token
            to_verifier[token] = token
    # End ids without a counterpart are matched by their role.
    verifier_ends = _unmatched_ends(verifier, to_draft)
    draft_ends = _unmatched_ends(draft, to_verifier)
    for verifier_id, draft_id in zip(verifier_ends, draft_ends, strict=False):
        to_draft[verifier_id] = draft_id
        to_verifier[draft_id] = verifier_id
    verifier_only = _count_foreign(verifier.pieces, to_draft)
    draft_only = _count_foreign(draft.pieces, to_verifier)
    overlap = min(
        _share(verifier.pieces, to_draft, verifier_only),
        _share(draft.pieces, to_verifier, draft_only),
    )
    meaning = _described(overlap, len(draft), len(verifier))
    if overlap < least or not overlap:
        needed = f"only {meaning}, {least * 100:g} % are needed"
        return VocabularyMatch(MatchKind.DIFFERENT, overlap, needed)
    remap = _remap(draft, verifier, to_draft, to_verifier)
    if verifier_only or draft_only:
        meaning = f"{meaning}; the others are never drafted"
        return VocabularyMatch(MatchKind.PARTIAL, overlap, meaning, remap)
    if moved:
        meaning = f"{meaning}, under other ids"
        return VocabularyMatch(MatchKind.PERMUTED, overlap, meaning, remap)
    return VocabularyMatch(MatchKind.SAME, overlap, meaning, remap)


def _counterparts(pieces: Pieces, others: Pieces) -> dict[int, int]:
    """Return the counterpart of each id that has one.

    It is the other side's equal id if that has the same bytes, otherwise the first id that has.
    """
    first = _first_ids(others)
    table: dict[int, int] = {}
    for token, piece in enumerate(pieces):
        # The equal id comes first. Some vocabularies have a text twice, and then the first would do
        # for both.
        if token < len(others) and others[token] == piece and piece:
            table[token] = token
        elif piece in first:
            table[token] = first[piece]
    return table


def _first_ids(pieces: Pieces) -> dict[bytes, int]:
    """Return the first id of each piece that has text."""
    first: dict[bytes, int] = {}
    for token, piece in enumerate(pieces):
        if piece:
            first.setdefault(piece, token)
    return first


def _moved(table: Mapping[int, int]) -> int:
    """Return how many ids have another id as their counterpart."""
    return sum(token != other for token, other in table.items())


def _ends_on_one_side(
    verifier: Vocabulary,
    draft: Vocabulary,
    to_draft: Mapping[int, int],
    to_verifier: Mapping[int, int],
) -> list[int]:
    """Return the end ids that have text on one side only: two libraries read one file so."""
    found: list[int] = []
    for token in sorted(verifier.end_ids | draft.end_ids):
        if token >= min(len(verifier), len(draft)):
            continue
        unmatched = token not in to_draft and token not in to_verifier
        if unmatched and bool(verifier.pieces[token]) != bool(draft.pieces[token]):
            found.append(token)
    return found


def _textless(pieces: Pieces, others: Pieces) -> list[int]:
    """Return the ids that have no text on either side."""
    found: list[int] = []
    for token, (piece, other) in enumerate(zip(pieces, others, strict=False)):
        if not piece and not other:
            found.append(token)
    return found


def _unmatched_ends(vocabulary: Vocabulary, table: Mapping[int, int]) -> list[int]:
    """Return the end ids without a counterpart."""
    unmatched = vocabulary.end_ids - table.keys()
    return [token for token in sorted(unmatched) if token in range(len(vocabulary))]


def _count_foreign(pieces: Pieces, table: Mapping[int, int]) -> int:
    """Return how many tokens have no counterpart; unused specials do not count."""
    count = 0
    for token, piece in enumerate(pieces):
        if piece and token not in table and not _UNUSED.fullmatch(piece):
            count += 1
    return count


def _share(pieces: Pieces, table: Mapping[int, int], foreign: int) -> float:
    """Return the share of the tokens with text that have a counterpart."""
    paired = sum(bool(pieces[token]) for token in table)
    return paired / (paired + foreign) if paired else 0.0


def _described(overlap: float, n_draft: int, n_verifier: int) -> str:
    """Return the overlap for people; it is rounded down, so it never seems to reach the bar."""
    percent = floor(overlap * 1e4 + 1e-6) / 100
    return f"{percent:g} % of the tokens have a counterpart ({n_draft} and {n_verifier} ids)"


def _remap(
    draft: Vocabulary,
    verifier: Vocabulary,
    to_draft: Mapping[int, int],
    to_verifier: Mapping[int, int],
) -> Remap:
    """Return the tables that translate the ids of both sides."""
    # Something must stand in the place of a token without a counterpart. A blank disturbs least.
    space = _first_ids(draft.pieces).get(b" ", 0)
    to_draft_ids = [to_draft.get(token, space) for token in range(len(verifier))]
    to_verifier_ids = [to_verifier.get(token, NONE) for token in range(len(draft))]
    return Remap(np.array(to_draft_ids), np.array(to_verifier_ids))
