"""Vocabularies compared by content: verdicts, and tables that keep the text."""

import hashlib
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmesh.core.vocabulary.match import MatchKind, compare
from specmesh.core.vocabulary.remap import NONE
from specmesh.core.vocabulary.vocabulary import Vocabulary

FEW = settings(max_examples=settings().max_examples // 4)
WORDS = tuple(b"w%d" % number for number in range(990))
BASE = Vocabulary((b"", *WORDS[:499], b"", *WORDS[499:], b" ", b""), frozenset({500}))
"""1 start, 1 end and 1 other control token; 991 with text."""


def shuffled(seed):
    """The ids in some order (hypothesis would draw each of them)."""
    return random.Random(seed).sample(range(len(BASE)), len(BASE))


permutations = st.integers(0, 2**32).map(shuffled)


def changed(vocabulary, changes, extra=()):
    pieces = list(vocabulary.pieces)
    for token, piece in changes.items():
        pieces[token] = piece
    return Vocabulary((*pieces, *extra), vocabulary.end_ids)


def permuted(vocabulary, order):
    pieces = tuple(vocabulary.pieces[old] for old in order)
    ends = [new for new, old in enumerate(order) if old in vocabulary.end_ids]
    return Vocabulary(pieces, frozenset(ends))


SWAPPED = pytest.mark.parametrize("swapped", [False, True])


def either(first, second, swapped):
    return (second, first) if swapped else (first, second)


def to_verifier(remap, count):
    return [remap.to_verifier(token) for token in range(count)]


def check_table(found, draft, verifier):
    """Check that each id is mapped to the same text, or to none."""
    texts = set(draft.pieces)
    for token, piece in enumerate(verifier.pieces):
        [fed] = found.remap.to_draft([token])
        assert 0 <= fed < len(draft)
        if piece and piece in texts:
            assert draft.pieces[fed] == piece
    for token, piece in enumerate(draft.pieces):
        mapped = found.remap.to_verifier(token)
        if piece and piece in verifier.pieces:
            assert mapped != NONE
        if mapped != NONE:
            assert verifier.pieces[mapped] == piece


@pytest.mark.fault("E7.78")
def test_end_ids_may_differ_between_the_same_tokens():
    found = compare(Vocabulary(BASE.pieces, frozenset({0})), BASE)
    assert found.verdict is MatchKind.SAME
    assert found.remap.identity


@SWAPPED
def test_an_end_id_may_be_text_on_the_other_side(swapped):
    """One library makes an end of `</s>`, another one reads it as text of the same file."""
    without = Vocabulary(changed(BASE, {300: b""}).pieces, frozenset({500, 300}))
    found = compare(*either(without, BASE, swapped))
    assert found.verdict is MatchKind.SAME
    assert found.remap.identity


def test_an_id_without_text_on_one_side_that_ends_nothing_is_foreign():
    assert compare(changed(BASE, {300: b""}), BASE).verdict is MatchKind.PARTIAL


@pytest.mark.parametrize(
    "extra", [(b"",), (b"",) * 300, (b"<unused7>", b"[PAD99]", b"<|reserved_3|>")]
)
@SWAPPED
def test_padding_is_the_same(extra, swapped):
    draft, verifier = either(changed(BASE, {}, extra), BASE, swapped)
    found = compare(draft, verifier)
    assert found.verdict is MatchKind.SAME
    assert not found.remap.identity
    same = [*range(len(BASE))]
    assert [*found.remap.to_draft(same)] == same
    assert max(found.remap.to_draft(range(len(verifier)))) < len(draft)
    padding = len(draft) - len(BASE)
    assert to_verifier(found.remap, len(draft)) == same + [NONE] * padding


@SWAPPED
@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        (MatchKind.SAME, "<unused12> <|tool|> [PAD3] <reserved_4>"),
        (MatchKind.PARTIAL, "<br> a < [1]"),
    ],
)
def test_only_unused_specials_may_differ(kind, texts, swapped):
    for text in texts.split():
        draft, verifier = either(changed(BASE, {993: text.encode()}), BASE, swapped)
        assert compare(draft, verifier).verdict is kind


@FEW
@given(permutations)
@pytest.mark.fault("E7.78")
def test_permuted_ids(order):
    """Each text has its counterpart, and end ids are matched by their role."""
    draft = permuted(BASE, order)
    found = compare(draft, BASE)
    assert found.verdict is (MatchKind.SAME if draft.pieces == BASE.pieces else MatchKind.PERMUTED)
    check_table(found, draft, BASE)
    if found.verdict is MatchKind.PERMUTED:
        [end] = draft.end_ids
        assert found.remap.to_verifier(end) == 500
        assert found.remap.to_draft([500]) == (end,)
        assert "under other ids" in found.meaning


@FEW
@given(permutations, st.sets(st.integers(1, 499), min_size=1, max_size=9), st.booleans())
def test_one_per_cent_foreign(order, tokens, swapped):
    foreign = changed(BASE, {token: b"foreign%d" % token for token in tokens})
    draft, verifier = either(permuted(foreign, order), BASE, swapped)
    found = compare(draft, verifier)
    assert found.verdict is MatchKind.PARTIAL
    assert found.overlap == pytest.approx(1 - len(tokens) / 991)
    assert "never drafted" in found.meaning
    check_table(found, draft, verifier)


MANY = Vocabulary((b"a", b"b", b"a", b"c", b"a"), frozenset())
FEW_IDS = Vocabulary((b"b", b"a", b"a", b"c"), frozenset())


@pytest.mark.parametrize(
    ("draft", "verifier", "to_draft", "back"),
    [
        (MANY, FEW_IDS, [1, 0, 2, 3], [1, 0, 2, 3, 1]),
        (FEW_IDS, MANY, [1, 0, 2, 3, 1], [1, 0, 2, 3]),
    ],
)
def test_duplicates_are_matched_in_order(draft, verifier, to_draft, back):
    found = compare(draft, verifier)
    assert found.verdict is MatchKind.PERMUTED
    assert [*found.remap.to_draft(range(len(verifier)))] == to_draft
    assert to_verifier(found.remap, len(draft)) == back


def test_scatter_orders_logits_by_the_verifiers_ids():
    draft = Vocabulary((b"a", b"b", b"a", b"c"), frozenset())
    verifier = Vocabulary((b"c", b"x", b"a", b"b"), frozenset())
    remap = compare(draft, verifier, 0.1).remap
    row = remap.reordered(np.array([1, 2, 3, 4, 99], np.float32))
    assert row.tolist() == [4.0, -np.inf, 1.0, 2.0]


def test_fingerprint_is_the_sha_256_of_the_framed_pieces():
    digest = hashlib.sha256(b"\x02\0\0\0ab" + b"\0\0\0\0" + b"\x01\0\0\0c").hexdigest()
    assert Vocabulary((b"ab", b"", b"c"), frozenset()).fingerprint() == digest
