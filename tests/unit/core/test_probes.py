"""Texts through two encoders."""

from specmesh.core.vocabulary.probes import PROBES, Probed, compare_encodings
from specmesh.core.vocabulary.vocabulary import Vocabulary

MINE = Vocabulary((b"", b"a", b"b", b"ab", b" "), frozenset())
THEIRS = Vocabulary((b"ab", b" ", b"a", b"b", b"", b"x"), frozenset())


def test_alike_under_other_ids():
    """The same tokens under other ids, control tokens aside, are alike."""
    assert compare_encodings(MINE, THEIRS, [("ab a", [0, 3, 4, 1], [0, 1, 2, 4])]) == Probed(1, 1)


def test_other_cuts_are_named():
    """The first text cut otherwise is told with both cuts."""
    encodings = [("ab", [3], [0]), (" ab", [4, 1, 2], [1, 0]), ("a", [1], [2, 3])]
    found = compare_encodings(MINE, THEIRS, encodings)
    assert (found.agreed, found.compared) == (1, 3)
    assert found.first == "' ab': from token 1 on 'a' 'b' for the drafter, 'ab' for the verifier"


def test_the_end_is_a_difference():
    """An encoding that stops early differs."""
    found = compare_encodings(MINE, THEIRS, [("ab", [], [0])])
    assert found.first == "'ab': from token 0 on the end for the drafter, 'ab' for the verifier"


def test_texts_with_foreign_tokens_are_left_out():
    """Where the verifier uses a token the drafter lacks, nothing could be alike."""
    assert compare_encodings(MINE, THEIRS, [("x", [1], [5])]) == Probed(0, 0)


def test_probes_cover_what_tokenizers_differ_in():
    """Distinct and short; digits, white space, scripts, emoji and code are among them."""
    assert len(set(PROBES)) == len(PROBES) <= 32
    assert all(len(text) <= 512 for text in PROBES)
    whole = "".join(PROBES)
    for sample in ("def ", "  ", "\t", "\n\n", "007", "日", "한", "ü", "😀", "\u200d", "\u0301"):
        assert sample in whole
