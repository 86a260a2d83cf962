"""The vocabulary exchange: a drafter gets to know its verifier."""

from dataclasses import replace

import pytest

from specmesh.core.vocabulary.exchange import VocabularyExchange, VocabularyState
from specmesh.core.vocabulary.vocabulary import Vocabulary, chunk
from specmesh.errors import RemoteProtocolError
from specmesh.wire import messages as m

OWN = Vocabulary((b"a", b"b"), frozenset({1}))
THEIRS = Vocabulary((b"b", b"a"), frozenset({1}))
PARTS = [m.Vocab(start, chunk(THEIRS, start)[:1]) for start in (0, 1)]

EACH_STATE = pytest.mark.parametrize("state", VocabularyState)
OUT_OF_TURN = pytest.mark.parametrize(
    "state", [state for state in VocabularyState if state is not VocabularyState.FETCHING]
)


def welcome(vocabulary: Vocabulary) -> m.Welcome:
    return m.Welcome(
        verifier="v",
        model="m",
        model_hash="",
        vocab_fingerprint=vocabulary.fingerprint(),
        n_vocab=len(vocabulary),
        n_ctx=9,
        end_ids=sorted(vocabulary.end_ids),
    )


def exchange(state: VocabularyState) -> VocabularyExchange:
    """An exchange about THEIRS in a state."""
    made = VocabularyExchange(OWN)
    if state is not VocabularyState.NEW:
        made.welcomed(welcome(THEIRS), 0.0)
    if state in (VocabularyState.COMPARING, VocabularyState.KNOWN):
        for part in PARTS:
            made.answered(part, 0.0)
    if state is VocabularyState.KNOWN:
        made.move(VocabularyState.KNOWN)
    return made


# --- in turn


@EACH_STATE
def test_an_exchange_reaches_each_state(state):
    assert exchange(state).state is state


def test_a_welcome_has_the_first_part_asked_for():
    assert VocabularyExchange(OWN).welcomed(welcome(THEIRS), 0.0) == m.Vocab(0)


def test_a_part_has_the_next_one_asked_for():
    assert exchange(VocabularyState.FETCHING).answered(PARTS[0], 0.0) == m.Vocab(1)


def test_the_last_part_completes_the_vocabulary():
    made = exchange(VocabularyState.FETCHING)
    made.answered(PARTS[0], 0.0)
    assert made.answered(PARTS[1], 0.0) == THEIRS


@EACH_STATE
def test_the_draft_models_own_vocabulary_is_not_fetched(state):
    assert exchange(state).welcomed(welcome(OWN), 9.0) == OWN


def test_a_known_vocabulary_is_not_fetched_again():
    assert exchange(VocabularyState.KNOWN).welcomed(welcome(THEIRS), 9.0) is None


@pytest.mark.parametrize(
    "state", [state for state in VocabularyState if state is not VocabularyState.KNOWN]
)
def test_another_welcome_begins_anew(state):
    assert exchange(state).welcomed(welcome(THEIRS), 9.0) == m.Vocab(0)


def test_an_answer_that_does_not_come_is_asked_for_again():
    assert exchange(VocabularyState.FETCHING).late(9.0) == m.Vocab(0)


def test_an_answer_may_take_a_while():
    assert exchange(VocabularyState.FETCHING).late(0.5) is None


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


@EACH_STATE
def test_a_vocabulary_that_nobody_can_have_is_refused(state):
    impossible = replace(welcome(OWN), n_vocab=2**21)
    with pytest.raises(RemoteProtocolError, match="claims a vocabulary"):
        exchange(state).welcomed(impossible, 9.0)


@pytest.mark.parametrize(
    ("pieces", "refusal"),
    [
        (["not base64!"], "not base64"),
        (["YQ==", "Yg==", "Yw=="], "more vocabulary than it has"),
        (["YQ==", "Yg=="], "does not match its own fingerprint"),
    ],
)
def test_parts_that_do_not_fit_the_welcome_are_refused(pieces, refusal):
    with pytest.raises(RemoteProtocolError, match=refusal):
        exchange(VocabularyState.FETCHING).answered(m.Vocab(0, pieces), 0.0)
