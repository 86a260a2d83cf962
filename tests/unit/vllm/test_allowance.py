"""What calls of the proposer may take of a server's time."""

import pytest

from specmesh.vllm.allowance import MOST_SAVED, OVERHEAD_SHARE, RESUMED_WITH, Allowance

STEP_S = 0.01
DEAR_S = 10 * OVERHEAD_SHARE * STEP_S


@pytest.fixture
def allowance():
    return Allowance()


def calls(allowance, count, seconds, *, accepted=0):
    """Call after each of so many steps; return how many calls did their work."""
    now = 0.0
    worked = 0
    for _ in range(count):
        now += STEP_S
        if allowance.begin_call(now):
            continue
        worked += 1
        allowance.saved(accepted, rows=4)
        now += seconds
        allowance.end_call(seconds, now)
    return worked


def test_cheap_calls_never_rest(allowance):
    assert calls(allowance, 1000, 0.9 * OVERHEAD_SHARE * STEP_S) == 1000


def test_dear_calls_take_their_share_of_the_time(allowance):
    """A tenth of the calls, and the first ones."""
    first = RESUMED_WITH / DEAR_S
    assert calls(allowance, 10_000, DEAR_S) == pytest.approx(1000 + first, rel=0.1)


def test_accepted_drafts_pay_for_dear_calls(allowance):
    assert calls(allowance, 1000, DEAR_S, accepted=1) == 1000


def test_what_was_saved_pays_for_a_while_only(allowance):
    calls(allowance, 1000, 0.0, accepted=4)
    assert allowance.left == MOST_SAVED
    assert calls(allowance, 1000, DEAR_S) < 1000


def test_a_call_that_was_stopped_is_soon_forgotten(allowance):
    calls(allowance, 1, 60.0)
    steps = 2 * RESUMED_WITH / (OVERHEAD_SHARE * STEP_S)
    assert calls(allowance, 1000, 0.0) == pytest.approx(1000 - steps, abs=2)
