"""What a drafter beside another one is worth."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmesh.core.acceptance import RollingAcceptance
from specmesh.core.policy import PolicyInputs
from specmesh.core.second import Second, rescues
from specmesh.core.usefulness import ASK, KEEP, second_pays, usefulness

PROFILE = settings(derandomize=True, deadline=None, max_examples=200)
share = st.floats(0.01, 0.99)


def learned(rate: float, record: RollingAcceptance) -> RollingAcceptance:
    """A record that has seen this rate for long."""
    for number in range(400):
        record.record(1, int((number + 1) * rate) - int(number * rate))
    return record


def second(rate: float, rescue: float) -> Second:
    """One that is right this often, and this often where the first is wrong."""
    return Second(learned(rate, RollingAcceptance(positions=1)), learned(rescue, rescues()))


def first(rate: float, row: float, round_trip: float = 0.005) -> PolicyInputs:
    """A drafter beside which it drafts."""
    steps = tuple(0.034 + row * drafts for drafts in range(17))
    return PolicyInputs(steps, (rate,) * 17, 0.005, round_trip + 0.0075, steps[0])


def test_it_is_known_by_what_it_shows_and_then_by_what_it_does():
    """One that showed guesses copied from the text is found out by the corrections it does not have."""
    liar = second(0.99, 0.99)
    assert liar.rescue > 0.9
    for _ in range(24):
        liar.judged((False,), 0)
    assert liar.rescue < 0.2


def test_what_counts_is_where_the_first_is_wrong():
    """Being right beside it is worth nothing; a correction for which there was no draft counts as one missed."""
    one = second(0.5, 0.5)
    before = one.rescue
    one.judged((True, True, True), None)
    assert one.rescue == before
    one.judged((True, True, True), 1)
    assert one.rescue > before
    for right, rejected in (((True, False), 1), ((True,), 1), ((), 0)):
        known = one.rescue
        one.judged(right, rejected)
        assert one.rescue < known


def test_what_a_second_chain_brings():
    """Two drafters that are right at 0.6 of all places, independently of each other: where they part, each is at 0.375
    (0.24 of 0.64). It falls with the place of the fork, and from id to id."""
    one = second(0.6, 0.6)
    stands = tuple(0.6**n for n in range(1, 6))
    assert one.stands(stands, 0, 3) == pytest.approx((0.375, 0.375 * 0.6, 0.375 * 0.36), rel=0.06)
    assert one.stands(stands, 2, 1) == pytest.approx((0.375 * 0.36,), rel=0.06)


@PROFILE
@given(share, share, st.lists(share, min_size=1, max_size=6), st.data())
def test_it_never_comes_before_the_draft_that_it_replaces(rate, rescue, rates, data):
    """Whatever is believed: probabilities that fall, none of them above that of the draft at the fork."""
    stands, alive = [], 1.0
    for one in rates:
        alive *= one
        stands.append(alive)
    fork = data.draw(st.integers(0, len(stands) - 1))
    found = second(rate, rescue).stands(stands, fork, 4)
    assert list(found) == sorted(found, reverse=True)
    assert all(0 <= one <= stands[fork] for one in found)


@pytest.mark.parametrize(("rate", "rescue", "row", "pays"), [
    (0.6, 0.6, 0.0, True),  # independent, rows free
    (0.6, 0.3, 0.0, True),
    (0.6, 0.6, 0.003, True),
    (0.6, 0.02, 0.0, False),  # wrong where the first is
    (0.98, 0.1, 0.0, False),  # hardly anything is left to be done
    (0.6, 0.6, 0.1, False),  # drafting does not pay at all
])  # fmt: skip
def test_it_is_asked_where_that_pays(rate, rescue, row, pays):
    """By its rescues, the first's rate and what rows cost."""
    assert second_pays(first(rate, row), rescue, asked=False) == pays


def test_it_is_not_turned_on_and_off():
    """Less is enough to go on than to begin."""
    inputs = first(0.6, 0.0)
    alone = usefulness(inputs)
    between = next(rescue for rescue in (n / 200 for n in range(200)) if usefulness(inputs, rescue) > KEEP * alone)
    assert usefulness(inputs, between) < ASK * alone
    assert second_pays(inputs, between, asked=True)
    assert not second_pays(inputs, between, asked=False)


@PROFILE
@given(share, st.floats(0, 0.02), st.floats(0, 0.1), share)
def test_a_second_drafter_promises_nothing_less(rate, row, round_trip, rescue):
    """More rescues, more tokens; without any, the first one's own rate."""
    inputs = first(rate, row, round_trip)
    found = [usefulness(inputs, one) for one in (0.0, rescue / 2, rescue)]
    assert found == sorted(found)
    assert found[0] == usefulness(inputs)
