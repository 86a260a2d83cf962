"""The source of drafts that a text has of itself, and of earlier outputs of its account."""

import random
from array import array
from dataclasses import replace

import pytest
from harness.sessions import session as session_of

from specmesh.core.draft_length.match_acceptance import MatchAcceptance
from specmesh.core.prefix import Prefix, common_length
from specmesh.core.requests import Tokens
from specmesh.core.rounds import Round, SourceDrafts
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.sampling.strategy import Strategy
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.core.verifier.earlier_outputs import AccountOutputs
from specmesh.core.verifier.sources.suffix import LEAST_ACCEPTANCE, SuffixSource

LIMITS = TargetLimits(512, 100, frozenset({0}))
PARAMS = SessionParams(SamplingParams(), 9)
REPEATED = (5, 6, 7) * 9
OTHER = tuple(range(50, 90))  # nothing of it occurs twice


def source_of(ids, earlier=None):
    return SuffixSource(Prefix(ids), earlier)


def proposed(ids, limit=8, before=()):
    """Return the drafts after ids and the drafts of other sources."""
    return list(source_of(ids).propose(before, limit))


def round_of(*by_source):
    """Return a round in which drafts of these sources were tested."""
    fields = (1, 0, (1,), 0, Tokens((1,), 0), (), 0, by_source, 1, False, False, 0.0, 1)
    return Round._make(fields)


def taught(source, drafted, accepted):
    """Teach a source that of its newest drafts so many were accepted and the next one was not."""
    count = min(accepted + 1, drafted)
    source.committed(round_of(SourceDrafts("suffix", drafted, count, accepted)))


def test_what_followed_before():
    ids = (*range(1, 10), *OTHER, 1, 2, 3)
    assert proposed(ids, 5) == [4, 5, 6, 7, 8]


def test_the_longer_match_counts():
    long = (1, 2, 3, 4, 5, 6, 70)
    newer = (9, 4, 5, 6, 80)
    assert proposed((*long, *OTHER, *newer, 1, 2, 3, 4, 5, 6), 1) == [70]


def test_of_equal_matches_the_newest_counts():
    ids = (9, 1, 2, 3, 70, *OTHER, 8, 1, 2, 3, 80, 7, 1, 2, 3)
    assert proposed(ids, 1) == [80]


def test_a_text_with_a_period_goes_on_in_it():
    assert proposed((5, 6, 7) * 4, 7) == [5, 6, 7, 5, 6, 7, 5]


def test_it_continues_the_drafts_of_others():
    """Their drafts count as ids of the text."""
    assert proposed((1, 2, 3, 4, 5, *OTHER, 1), 2, before=(2, 3)) == [4, 5]


def test_a_period_that_others_have_begun():
    assert proposed((5, 6, 7, 5, 6, 7, 5), 4, before=(6, 7)) == [5, 6, 7, 5]


@pytest.mark.parametrize("limit", [-1, 0, 1, 3])
def test_no_more_than_the_limit(limit):
    assert len(proposed(REPEATED, limit)) == max(limit, 0)


@pytest.mark.parametrize("ids", [(), (1,), (1, 2, 3), OTHER])
def test_nothing_where_nothing_repeats(ids):
    assert proposed(ids) == []


@pytest.mark.parametrize(
    ("params", "has"),
    [
        (PARAMS, True),
        (replace(PARAMS, draft_n=3), True),
        (replace(PARAMS, draft_n=0), False),
        (replace(PARAMS, sampling=SamplingParams(strategy=Strategy.GREEDY)), False),
    ],
)
def test_sessions_that_want_drafts_have_it(params, has):
    made = session_of(REPEATED, params, LIMITS, attached=False)
    made.prefilled(len(REPEATED) - 1)
    assert bool(made.verify().drafts) == has


def test_a_target_may_draft_no_repeats():
    """As the simulated ones, whose texts do nothing but repeat themselves."""
    limits = replace(LIMITS, drafts_repeats=False)
    made = session_of(REPEATED, PARAMS, limits, attached=False)
    made.prefilled(len(REPEATED) - 1)
    assert made.verify().drafts == ()


def test_a_step_has_its_drafts():
    made = session_of(REPEATED, replace(PARAMS, draft_n=4), LIMITS, attached=False)
    made.prefilled(len(REPEATED) - 1)
    verify = made.verify()
    assert verify.drafts == (5, 6, 7, 5)
    assert [segment.source for segment in verify.sources] == ["suffix"]


def test_a_source_that_is_not_asked_does_nothing():
    """Its gate may be shut for a whole text, which must cost nothing for each token."""
    prefix = Prefix((5, 6, 7) * 4)
    source = SuffixSource(prefix, None)
    for _ in range(100):
        prefix.extend((5, 6, 7))
        source.committed(round_of(SourceDrafts("remote", 3, 3, 3)))
    assert source._index.taken == 0


# --- acceptance


def test_longer_matches_are_accepted_more_often():
    source = source_of((*range(1, 10), *OTHER, 1, 2, 3))
    source.propose((), 4)
    [short] = source.acceptance(1)
    source = source_of((*OTHER, 1, *OTHER))
    source.propose((), 4)
    [long] = source.acceptance(1)
    assert short < long


def test_further_drafts_are_accepted_less_often():
    source = source_of(REPEATED)
    source.propose((), 8)
    probable = list(source.acceptance(8))
    assert probable == sorted(probable, reverse=True)
    assert len(probable) == 8


def test_it_learns():
    source = source_of(REPEATED)
    drafts = source.propose((), 8)
    before = source.acceptance(1)[0]
    for _ in range(20):
        taught(source, len(drafts), 0)
    assert source.acceptance(1)[0] < before / 3


def test_nothing_is_proposed_that_is_hardly_ever_accepted():
    source = source_of(REPEATED)
    while drafts := source.propose((), 8):
        assert source.acceptance(len(drafts))[-1] >= LEAST_ACCEPTANCE
        taught(source, len(drafts), 0)


def test_drafts_that_were_not_tested_teach_nothing():
    source = source_of(REPEATED)
    source.propose((), 8)
    before = source.acceptance(8)
    source.committed(round_of(SourceDrafts("suffix", 8, 0, 0)))
    source.committed(round_of(SourceDrafts("remote", 8, 8, 0)))
    assert source.acceptance(8) == before


@pytest.mark.parametrize("length", [3, 10])
def test_measured_rates_are_those_of_the_drafts(length):
    rng = random.Random(length)
    learned = MatchAcceptance()
    for _ in range(4000):
        learned.record(length, 1, int(rng.random() < 0.5))
    assert learned.chain(length, 1)[0] == pytest.approx(0.5, abs=0.15)


def test_an_accepted_draft_makes_the_match_of_the_next_one_longer():
    learned = MatchAcceptance()
    for _ in range(100):
        learned.record(3, 2, 1)
    first, both = learned.chain(3, 2)
    assert first > 0.9
    assert both < 0.1


def test_a_session_begins_with_the_rates_of_its_account():
    account = MatchAcceptance()
    for _ in range(100):
        MatchAcceptance(account).record(3, 1, 0)
    assert MatchAcceptance(account).chain(3, 1)[0] < 0.1
    assert MatchAcceptance().chain(3, 1)[0] > 0.5


# --- after a wrong draft


def after_a_wrong_draft(*generated):
    """Return a text and its source, whose drafts were 4 5 6 7 8 9, after these ids instead."""
    prefix = Prefix((*range(1, 10), *OTHER, 1, 2, 3))
    source = SuffixSource(prefix, None)
    drafts = source.propose((), 6)
    accepted = common_length(drafts, generated)
    prefix.extend(generated)
    taught(source, len(drafts), accepted)
    return prefix, source


@pytest.mark.parametrize(
    ("generated", "drafts"),
    [((99,), [5, 6, 7]), ((4, 99), [6, 7, 8]), ((4, 5, 6, 7, 99), [9, *OTHER[:2]])],
)
def test_after_a_wrong_draft_those_behind_it_come(generated, drafts):
    """The text may differ in one id, as in a name."""
    _, source = after_a_wrong_draft(*generated)
    assert list(source.propose((), 3)) == drafts


def test_they_come_once():
    prefix, source = after_a_wrong_draft(4, 99)
    prefix.extend((98,))
    source.committed(round_of())
    assert source.propose((), 3) == ()


def test_they_come_no_more_if_the_first_is_wrong_too():
    prefix, source = after_a_wrong_draft(4, 99)
    taught(source, len(source.propose((), 3)), 0)
    prefix.extend((98,))
    assert source.propose((), 3) == ()


def test_they_do_not_come_behind_the_drafts_of_others():
    _, source = after_a_wrong_draft(4, 99)
    assert source.propose((6,), 3) == ()


def test_a_match_comes_before_them():
    _, source = after_a_wrong_draft(4, *OTHER[:3])
    assert list(source.propose((), 2)) == list(OTHER[3:5])


def test_how_often_they_are_accepted_is_learned():
    _, source = after_a_wrong_draft(4, 99)
    source.propose((), 3)
    before = source.acceptance(1)[0]
    for _ in range(20):
        source._acceptance.record(0, 1, 0)
    assert source.acceptance(1)[0] < before / 2


# --- earlier outputs


def earlier(*outputs):
    made = AccountOutputs()
    for ids in outputs:
        made.add(array("i", ids))
    return made


def with_earlier(ids, *outputs):
    return list(source_of(ids, earlier(*outputs)).propose((), 4))


def test_an_earlier_output_goes_on():
    found = with_earlier((9, 1, 2, 3), OTHER, (8, 1, 2, 3, 4, 5))
    assert found == [4, 5]


def test_the_text_itself_is_nearer():
    """Of two matches of one length its own counts."""
    found = with_earlier((1, 2, 3, 7, *OTHER, 1, 2, 3), (1, 2, 3, 8))
    assert found[0] == 7


def test_a_longer_match_of_an_earlier_output_counts():
    found = with_earlier((1, 2, 3, 7, 9, 1, 2, 3), (6, 9, 1, 2, 3, 8))
    assert found == [8]


def test_an_output_does_not_go_on_in_the_next_one():
    assert with_earlier((1, 2, 3), (1, 2, 3, 4), (5, 6, 7)) == [4]


def test_no_match_across_two_outputs():
    assert with_earlier((1, 2, 3), (8, 9, 1), (2, 3, 4)) == []


def test_after_a_change_of_hands_only_the_text_counts():
    source = source_of((1, 2, 3), earlier((1, 2, 3, 4)))
    source.forget_earlier()
    assert source.propose((), 4) == ()
