"""Texts through two encoders."""

from specmesh.core.vocabulary.match import EncodingMatch, compare_encodings
from specmesh.core.vocabulary.vocabulary import Vocabulary

MINE = Vocabulary((b"", b"a", b"b", b"ab", b" "), frozenset())
THEIRS = Vocabulary((b"ab", b" ", b"a", b"b", b"", b"x"), frozenset())


def test_alike_under_other_ids():
    assert compare_encodings(MINE, THEIRS, [("ab a", [0, 3, 4, 1], [0, 1, 2, 4])]) == EncodingMatch(1, 1)


def test_other_cuts_are_named():
    encodings = [("ab", [3], [0]), (" ab", [4, 1, 2], [1, 0]), ("a", [1], [2, 3])]
    found = compare_encodings(MINE, THEIRS, encodings)
    assert (found.agreed, found.compared) == (1, 3)
    assert found.first == "' ab': from token 1 on 'a' 'b' for the drafter, 'ab' for the verifier"
