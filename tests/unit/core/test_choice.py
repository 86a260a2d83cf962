"""Which verifier a text goes to."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.drafting.verifier_choice import (
    FORGOTTEN,
    NEAR,
    ROWS,
    TYPICAL,
    Load,
    Outlook,
    Pace,
    PaceMeter,
    expected_seconds,
    load_of,
    ranked,
)

PROFILE = settings(derandomize=True, deadline=None, max_examples=60)

seconds = st.floats(1e-4, 1.0)
loads = st.builds(
    Load,
    sessions=st.integers(0, 64),
    queued=st.integers(0, 64),
    places=st.integers(0, 64),
    step_s=st.just(0.0) | seconds,
    row_s=st.just(0.0) | st.floats(1e-5, 0.1),
)
outlooks = st.builds(
    Outlook,
    loads,
    ours=st.integers(-4, 16),
    round_trip=st.floats(0.0, 1.0),
    pace=st.none() | st.builds(Pace, seconds, st.floats(0.0, 16.0)),
    length=st.floats(1.0, 9.0),
)
BOX = Outlook(Load(places=8, step_s=0.03, row_s=0.001))


@PROFILE
@given(outlooks, st.integers(1, 2**31))
def test_what_is_expected_is_a_time(outlook: Outlook, tokens: int):
    """Positive and finite, whatever a peer tells."""
    assert 0 < expected_seconds(outlook, tokens) < float("inf")


@PROFILE
@given(outlooks, st.integers(1, TYPICAL), st.integers(1, 8))
def test_more_of_anything_takes_longer(outlook: Outlook, tokens: int, more: int):
    """Never less where there is more to do, or it is further away; and more tokens take more."""
    before, load = expected_seconds(outlook, tokens), outlook.load
    for changed in (
        replace(outlook, load=replace(load, sessions=load.sessions + more)),
        replace(outlook, load=replace(load, queued=load.queued + more)),
        replace(outlook, ours=outlook.ours + more),
        replace(outlook, round_trip=outlook.round_trip + more),
    ):
        assert expected_seconds(changed, tokens) >= before
    assert expected_seconds(outlook, tokens + more) > before


@PROFILE
@given(st.lists(outlooks, max_size=6), st.integers(1, 1000))
def test_all_are_ranked(those: list[Outlook], tokens: int):
    """Each once; nobody behind another that is clearly slower."""
    order = ranked(those, tokens)
    assert sorted(order) == list(range(len(those)))
    times = [expected_seconds(those[index], tokens) for index in order]
    for before, after in pairwise(times):
        assert before * (1 - NEAR) <= after


def test_the_first_of_equals():
    """And of those that differ by noise only: a chat finds its verifier again."""
    assert ranked([BOX, BOX, BOX], 100) == [0, 1, 2]
    nearly = replace(BOX, load=replace(BOX.load, step_s=0.029))
    assert ranked([BOX, nearly], 100) == [0, 1]
    faster = replace(BOX, load=replace(BOX.load, step_s=0.015))
    assert ranked([BOX, faster, nearly], 100) == [1, 0, 2]


def test_a_full_one_is_left_to_its_queue():
    """A slower verifier with room comes before a faster one where texts wait; one that is merely at work does not."""
    slow = Outlook(Load(places=2, step_s=0.04))
    full = replace(BOX, load=replace(BOX.load, sessions=8, queued=3))
    assert ranked([full, slow], 100) == [1, 0]
    at_work = replace(BOX, load=replace(BOX.load, sessions=1))
    assert ranked([at_work, slow], 100) == [0, 1]


def test_what_was_sent_there_counts_before_it_is_told():
    """Requests that come at once are spread, though the verifiers have told nothing new."""
    small = Outlook(Load(places=1, step_s=0.03))
    assert ranked([replace(small, ours=1), small], 100) == [1, 0]


def test_a_measured_pace_goes_before_what_is_told():
    """It has the network and the drafts in it; for the load it is taken as it would be now."""
    far = replace(BOX, pace=Pace(0.2, 0.0))
    assert ranked([far, BOX], 100) == [1, 0]
    alone = replace(BOX, pace=Pace(0.01, 0.0))
    crowded = replace(alone, load=replace(BOX.load, sessions=4))
    assert expected_seconds(crowded, 100) > expected_seconds(alone, 100)


def test_drafts_that_stand_make_a_target_faster():
    """Where no pace is known there, as many tokens a round as elsewhere are expected."""
    assert expected_seconds(replace(BOX, length=3.0), 90) * 3 == pytest.approx(expected_seconds(BOX, 90))


def test_what_a_verifier_tells():
    """Its steps as measured; nothing of them before."""
    costs = StepCosts()
    assert load_of(2, 1, 8, costs) == Load(2, 1, 8, 0.0, 0.0)
    costs.record(1, 0.030)
    costs.record(1 + ROWS, 0.038)
    told = load_of(2, 1, 8, costs)
    assert (told.sessions, told.queued, told.places, told.step_s) == (2, 1, 8, 0.030)
    assert abs(told.row_s - 0.002) < 1e-9


def test_pace_is_learned_from_tokens_that_follow_tokens():
    """The first of a session only begin it: a prompt is read before. Two sessions do not mix, the old is forgotten."""
    meter = PaceMeter()
    meter.heard(1, 4, 1, 10.0)
    meter.heard(2, 4, 1, 10.01)
    assert meter.pace(10.02) is None
    for step in range(1, 6):
        meter.heard(1, 2, 1, 10.0 + 0.1 * step)
        meter.heard(2, 2, 3, 10.01 + 0.1 * step)
    pace = meter.pace(10.6)
    assert pace is not None
    assert abs(pace.token_s - 0.05) < 1e-6
    assert 1 < pace.others < 3
    meter.ended(1)
    meter.heard(1, 2, 1, 99.0)
    found = meter.pace(99.0)
    assert found is not None
    assert abs(found.token_s - 0.05) < 1e-6
    assert meter.pace(10.5 + FORGOTTEN + 0.1) is None
