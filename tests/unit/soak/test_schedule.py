"""The schedule: the same from the same seed, and what a fault may cost whom."""

from itertools import islice, pairwise

import pytest

from soak.schedule import KILLS, NO_KILLS, SETTLE_S, SPANS, Fault, Kind, Lane, excused, faults, orders


def test_a_seed_is_a_schedule():
    assert faults("1", 300, KILLS) == faults("1", 300, KILLS) != faults("2", 300, KILLS)
    first, again, other = (list(islice(orders(seed, 40, 300), 50)) for seed in "112")
    assert first == again != other


@pytest.mark.parametrize("kinds", [KILLS, NO_KILLS], ids=["kills", "no kills"])
def test_faults_of_a_lane_follow_each_other(kinds):
    """In order, over before the end, one at a time in each lane with time to settle; every kind occurs."""
    found = faults("7", 1200, kinds)
    assert [fault.at for fault in found] == sorted(fault.at for fault in found)
    for lane, choices in kinds.items():
        own = [fault for fault in found if fault.lane is lane]
        assert {fault.kind for fault in own} == set(choices)
        assert all(SPANS[fault.kind][0] <= fault.seconds <= SPANS[fault.kind][1] for fault in own)
        assert all(after.at >= fault.until + SETTLE_S for fault, after in pairwise(own))
        assert own[-1].until <= 1200
        assert len(own) > 60
    overlap = [a for a in found for b in found if a.lane is not b.lane and a.at < b.at < a.until]
    assert overlap


VERIFIER_KILL = Fault(10.0, Lane.VERIFIER, Kind.KILL, 2.0)
DRAFTER_KILL = Fault(10.0, Lane.DRAFTER, Kind.KILL, 2.0)
PARTITION = Fault(10.0, Lane.NETWORK, Kind.PARTITION, 2.0)
DELAY = Fault(10.0, Lane.NETWORK, Kind.DELAY, 2.0)
STOP = Fault(10.0, Lane.VERIFIER, Kind.STOP, 2.0)


@pytest.mark.parametrize("fault", [VERIFIER_KILL, DRAFTER_KILL, PARTITION, DELAY, STOP], ids=repr)
def test_what_excuses_a_lost_answer(fault):
    assert excused([fault], Lane.VERIFIER, 9.0, 11.0, 5.0) == (fault is VERIFIER_KILL)
    assert excused([fault], Lane.DRAFTER, 9.0, 11.0, 5.0) == (fault is not DELAY)


@pytest.mark.parametrize(
    ("begun", "ended", "hit"),
    [(0, 9, False), (0, 10, True), (11, 11.5, True), (12.5, 13, True), (16.9, 20, True), (17.1, 20, False)],
)
def test_only_while_it_lasts(begun, ended, hit):
    """A fault excuses who was there during it, or came before the recovery was over."""
    assert excused([PARTITION], Lane.DRAFTER, begun, ended, 5.0) is hit
