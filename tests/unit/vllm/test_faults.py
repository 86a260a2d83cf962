"""How many unexpected errors of the proposer are survived."""

from concurrent.futures import Future

from specmesh.vllm.draft_service import note_failure
from specmesh.vllm.faults import GOOD_CALLS, MOST_FAULTS, Faults


def after(*, errors, good_calls=0):
    """Return the errors after so many, with so many good calls behind each of them."""
    faults = Faults()
    for _ in range(errors):
        faults.came()
        for _ in range(good_calls):
            faults.answered()
    return faults


def test_some_errors_are_survived():
    assert not after(errors=MOST_FAULTS - 1).off


def test_many_errors_are_the_end():
    assert after(errors=MOST_FAULTS).off
    assert after(errors=MOST_FAULTS, good_calls=GOOD_CALLS - 1).off


def test_errors_long_ago_do_not_count():
    assert not after(errors=3 * MOST_FAULTS, good_calls=GOOD_CALLS).off


def test_the_end_stays():
    faults = after(errors=MOST_FAULTS)
    for _ in range(2 * GOOD_CALLS):
        faults.answered()
    faults.came()
    assert faults.off


def test_nothing_is_drafted_after_the_end_of_the_loop():
    """Nobody reads frames any more, and nobody delivers what the core wants."""
    faults = Faults()
    failed = Future()
    failed.set_exception(OverflowError("a number is too large"))
    note_failure(faults, failed)
    assert faults.off
