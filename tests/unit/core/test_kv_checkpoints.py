"""Which states of sequences are saved, and which of them go."""

import pytest

from specmesh.core.kv_checkpoints import Checkpoints
from specmesh.core.kv_contents import KVContents
from specmesh.core.kv_orders import KVCopy, KVCut, KVDrop, KVSave
from specmesh.core.kv_slots import KVSlots

ROOM = 10_000
PROMPT = 700
TEXT = tuple(range(1000, 1000 + PROMPT))
ANSWER = tuple(range(10, 25))


def saved(*lengths, most=100, seq=0):
    checkpoints = Checkpoints(most)
    for length in lengths:
        checkpoints.add(seq, length)
    return checkpoints


def test_a_prompt_is_saved_near_its_end_and_at_distances_before_that():
    assert saved().stops(0, PROMPT, 0) == [184, 440, 696]


@pytest.mark.parametrize("begin", [425, 440, 680])
def test_what_is_there_already_is_not_saved_again(begin):
    """Nor where it would save less than 16 ids."""
    assert saved().stops(begin, PROMPT, 0) == [696]


def test_the_end_is_not_saved_where_that_would_save_little():
    assert saved().stops(681, PROMPT, 0) == []


def test_a_text_is_saved_where_another_has_left_it():
    assert 300 in saved().stops(0, PROMPT, 300)


@pytest.mark.parametrize("common", [16, 680])
def test_it_is_saved_where_that_saves_enough(common):
    assert common in saved().stops(0, PROMPT, common)


@pytest.mark.parametrize("common", [15, 681])
def test_it_is_not_saved_where_that_would_save_little(common):
    assert common not in saved().stops(0, PROMPT, common)


def test_none_are_saved_without_memory_for_one():
    assert saved(most=0).stops(0, PROMPT, 300) == []


def test_the_longest_that_is_short_enough_is_reached():
    assert saved(100, 300, 500).reachable(0, 499) == 300


def test_a_cut_forgets_the_longer_ones():
    checkpoints = saved(100, 300, 500)
    checkpoints.cut(0, 300)
    assert checkpoints.reachable(0, PROMPT) == 300


def test_the_one_that_saves_the_fewest_ids_goes_first():
    checkpoints = saved(100, 200, 240, most=3)
    assert checkpoints.add(0, 400) == ([(0, 240)], True)


def test_of_equal_ones_the_least_recently_used_goes_first():
    checkpoints = Checkpoints(2)
    checkpoints.add(0, 100)
    checkpoints.add(1, 100)
    checkpoints.use(0, 100)
    assert checkpoints.add(2, 100) == ([(1, 100)], True)


def test_only_the_one_that_was_used_counts_as_used():
    checkpoints = saved(100, 200, most=2)
    checkpoints.use(0, 100)
    assert checkpoints.add(1, 100) == ([(0, 200)], True)


def test_one_that_would_go_at_once_is_not_saved():
    assert saved(100, 200, most=2).add(0, 250) == ([], False)


def test_copies_share_a_state():
    """It counts once, and goes from both."""
    checkpoints = saved(100, 150, most=2)
    checkpoints.copy(1, 0, 150)
    assert checkpoints.add(0, 400) == ([(0, 150), (1, 150)], True)


def test_a_shared_state_saves_as_many_ids_as_for_the_sequence_that_needs_it_most():
    checkpoints = saved(100, 200, most=2)
    checkpoints.copy(1, 0, 200)
    assert checkpoints.add(1, 150) == ([], False)


def test_a_copy_has_no_state_beyond_its_ids():
    checkpoints = saved(100, 300)
    checkpoints.copy(1, 0, 200)
    assert checkpoints.reachable(1, PROMPT) == 100


# --- slots of a model that reuses whole sequences and checkpoints


def after_a_turn(count=2, **options):
    """Return slots after a session on TEXT that has written ANSWER."""
    slots = KVSlots(count, "whole", ROOM, checkpoints=100, **options)
    slot = slots.acquire(TEXT, PROMPT - 1)
    for stop in list(slot.stops):
        slot.length = stop
        slots.reached(slot)
    slots.release(slot.seq, KVContents((*TEXT, *ANSWER), PROMPT - 1))
    slots.orders()
    return slots


@pytest.mark.parametrize(
    ("ids", "held"),
    [
        (TEXT, 696),
        ((*TEXT, *ANSWER, 1, 2), 715),
        ((*TEXT[:650], *range(60)), 440),
        ((*TEXT, *ANSWER[:-3]), 696),
        (TEXT[:100], 0),
    ],
    ids=["again", "next turn", "edited", "last ids dropped", "too short"],
)
def test_a_session_begins_at_the_best_place(ids, held):
    assert after_a_turn().acquire(ids, len(ids) - 1).length == held


def test_the_sequence_of_the_other_text_stays_whole():
    slots = after_a_turn()
    slots.acquire((*TEXT[:650], 1), 650)
    length = 440
    assert slots.orders() == (KVCopy(1, 0, length),)


def test_it_is_cut_where_there_is_no_other():
    slots = after_a_turn(1)
    slots.acquire((*TEXT[:650], 1), 650)
    assert slots.orders() == (KVCut(0, 440),)


def test_a_draft_model_copies_nothing():
    slots = after_a_turn(copies=False)
    slots.acquire(TEXT, PROMPT - 1)
    assert not any(isinstance(order, KVCopy) for order in slots.orders())


def test_the_end_of_a_turn_is_saved_before_the_next_one():
    slots = after_a_turn()
    slots.acquire((*TEXT, *ANSWER, 1, 2), PROMPT + 20)
    assert slots.orders() == (KVSave(0, 715),)


def test_another_text_at_the_same_place_is_reached_exactly():
    """The place where a first text left it is saved while that is read."""
    slots = after_a_turn(3)
    slot = slots.acquire((*TEXT[:650], *range(60)), 709)
    for stop in list(slot.stops):
        slot.length = stop
        slots.reached(slot)
    slots.release(slot.seq, KVContents((*TEXT[:650], *range(60)), 709))
    assert slots.acquire((*TEXT[:650], *range(70, 99)), 678).length == 650


def test_a_state_that_goes_is_dropped():
    slots = KVSlots(2, "whole", ROOM, checkpoints=1)
    for begin in (0, 5000):
        text = tuple(range(begin, begin + PROMPT))
        slot = slots.acquire(text, PROMPT - 1)
        slot.stops = [696]
        slot.length = 696
        slots.reached(slot)
        slots.release(slot.seq, KVContents(text, PROMPT - 1))
    assert KVDrop(0, 696) in slots.orders()
