"""The vocabulary exchange: a drafter gets to know its verifier."""

from dataclasses import replace

import pytest
from harness.tables import cases

from specmesh.core.vocabulary.exchange import VocabularyExchange, VocabularyState
from specmesh.core.vocabulary.vocabulary import Vocabulary, chunk
from specmesh.wire import messages as m

OWN = Vocabulary((b"a", b"b"), frozenset({1}))
THEIRS = Vocabulary((b"b", b"a"), frozenset({1}))
OTHERS = [Vocabulary((b"x%d" % number,), frozenset()) for number in range(4)]
PARTS = [m.Vocab(start, chunk(THEIRS, start)[:1]) for start in (0, 1)]

EACH_STATE = pytest.mark.parametrize("state", VocabularyState)
OUT_OF_TURN = pytest.mark.parametrize(
    "state", [state for state in VocabularyState if state is not VocabularyState.FETCHING]
)


def welcome(vocabulary):
    return m.Welcome(
        verifier="v",
        model="m",
        model_hash="",
        vocab_fingerprint=vocabulary.fingerprint(),
        n_vocab=len(vocabulary),
        n_ctx=9,
        end_ids=sorted(vocabulary.end_ids),
    )


def exchange(state):
    """An exchange about THEIRS in a state."""
    made = VocabularyExchange(OWN)
    if state is not VocabularyState.NEW:
        made.welcomed(welcome(THEIRS), 0.0)
    if state in (VocabularyState.COMPARING, VocabularyState.KNOWN):
        for part in PARTS:
            made.answered(part, 0.0)
    if state is VocabularyState.KNOWN:
        made.compared()
    if state is VocabularyState.UNUSABLE:
        made.answered(m.Vocab(0, ["!"]), 0.0)
    return made


# --- in turn


def test_a_vocabulary_is_fetched_in_parts():
    made = VocabularyExchange(OWN)
    assert made.welcomed(welcome(THEIRS), 0.0) == m.Vocab(0)
    assert [made.answered(part, 0.0) for part in PARTS] == [m.Vocab(1), THEIRS]


@EACH_STATE
def test_the_draft_models_own_vocabulary_is_not_fetched(state):
    assert exchange(state).welcomed(welcome(OWN), 9.0) == OWN


@pytest.mark.parametrize(
    ("state", "answer"),
    [
        (VocabularyState.NEW, m.Vocab(0)),
        (VocabularyState.FETCHING, m.Vocab(0)),
        (VocabularyState.COMPARING, THEIRS),
        (VocabularyState.KNOWN, None),
        (VocabularyState.UNUSABLE, None),
    ],
)
def test_a_vocabulary_that_was_fetched_is_kept(state, answer):
    assert exchange(state).welcomed(welcome(THEIRS), 9.0) == answer


@pytest.fixture
def crowded():
    """An exchange that has fetched THEIRS and then four others."""
    made = exchange(VocabularyState.KNOWN)
    for other in OTHERS:
        made.welcomed(welcome(other), 1.0)
        made.answered(m.Vocab(0, chunk(other, 0)), 1.0)
    return made


def test_only_the_newest_vocabularies_are_kept(crowded):
    assert crowded.welcomed(welcome(OTHERS[-2]), 1.0) == OTHERS[-2]
    assert crowded.welcomed(welcome(THEIRS), 1.0) == m.Vocab(0)


def test_an_answer_that_does_not_come_is_asked_for_again():
    """It may take a while."""
    made = exchange(VocabularyState.FETCHING)
    assert [made.late(0.5), made.late(9.0)] == [None, m.Vocab(0)]


# --- out of turn


@OUT_OF_TURN
def test_a_part_that_was_not_asked_for_is_ignored(state):
    assert exchange(state).answered(PARTS[0], 9.0) is None


@EACH_STATE
@pytest.mark.parametrize("part", [PARTS[1], m.Vocab(0)], ids=["of another start", "without ids"])
def test_an_answer_to_another_question_is_ignored(state, part):
    assert exchange(state).answered(part, 9.0) is None


@OUT_OF_TURN
def test_nothing_is_late_that_was_not_asked_for(state):
    assert exchange(state).late(9.0) is None


# --- an unusable vocabulary


@EACH_STATE
def test_a_vocabulary_of_an_impossible_size_is_not_fetched(state):
    made = exchange(state)
    assert made.welcomed(replace(welcome(OWN), n_vocab=2**21), 9.0) is None
    assert (made.state, "2097152 tokens" in made.trouble) == (VocabularyState.UNUSABLE, True)


@cases(
    "pieces, trouble",
    """
    [["not base64!"], "not base64"]
    [["\u00fc"], "not base64"]
    [["YQ==", "Yg==", "Yw=="], "more vocabulary than it has"]
    [["YQ==", "Yg=="], "does not match its own fingerprint"]
    """,
)
def test_parts_that_do_not_fit_the_welcome_are_unusable(pieces, trouble):
    made = exchange(VocabularyState.FETCHING)
    assert made.answered(m.Vocab(0, pieces), 0.0) is None
    assert (made.state, trouble in made.trouble) == (VocabularyState.UNUSABLE, True)
