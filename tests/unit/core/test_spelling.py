"""Texts spelled by the longest pieces of a vocabulary."""

from harness.tables import cases
from hypothesis import given
from hypothesis import strategies as st

from specmesh.core.vocabulary.spelling import Spelling

TEXTS = st.binary(max_size=12).map(lambda raw: bytes(byte % 3 for byte in raw))


def by_trying(pieces, left_out, text):
    """Return the ids as found by comparing each piece."""
    ids = []
    while text:
        fitting = []
        for token, piece in enumerate(pieces):
            if piece and token not in left_out and text.startswith(piece):
                fitting.append((-len(piece), token))
        if not fitting:
            break
        _, token = min(fitting)
        ids.append(token)
        text = text[len(pieces[token]) :]
    return ids


@given(st.lists(TEXTS, max_size=20), st.sets(st.integers(0, 19), max_size=3), TEXTS)
def test_the_longest_piece_and_the_lowest_id(pieces, left_out, text):
    spelled = Spelling(pieces, left_out).spell(text)
    assert spelled == by_trying(pieces, left_out, text)


@cases(
    "text, ids",
    """
    ["abcd", [3, 4]]
    ["abab", [1, 1]]
    ["abcx", [3]]
    ["x", []]
    ["", []]
    """,
)
def test_spelled_texts(text, ids):
    pieces = [b"a", b"ab", b"", b"abc", b"d", b"ab", b"abcd"]
    assert Spelling(pieces, left_out={6}).spell(text.encode()) == ids
