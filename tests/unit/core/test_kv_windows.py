"""How far back sequences can be cut whose windows have few cells."""

import pytest

from specmesh.core.kv_checkpoints import NEAR_END
from specmesh.core.kv_contents import KVContents
from specmesh.core.kv_orders import KVNarrow, KVSave
from specmesh.core.kv_slots import KVSlots
from specmesh.core.kv_windows import STEP, WindowRoom, WindowSizes

IDS = 100
CELLS = 1000


def room():
    return WindowRoom(WindowSizes(IDS, CELLS))


def test_nothing_is_lost_while_there_is_room():
    assert room().make_room({0: 500, 1: 400}, 100) == []


def test_the_least_recently_used_loses_its_oldest_ids():
    assert room().make_room({1: 500, 0: 500}, 10) == [(1, 0, STEP)]


def test_no_sequence_loses_its_window():
    assert room().make_room({0: 200, 1: 900}, 50) == [(0, 0, 100), (1, 0, STEP)]


def test_what_was_lost_is_not_lost_again():
    windows = room()
    windows.make_room({0: 900}, 200)
    assert windows.make_room({0: 900}, 300) == []


@pytest.mark.parametrize(("length", "reached"), [(STEP + IDS, True), (STEP + IDS - 1, False)])
def test_a_cut_needs_the_window_before_it(length, reached):
    windows = room()
    windows.make_room({0: 900}, 200)
    assert windows.reaches(0, length) == reached


def test_a_copy_has_its_last_window_only():
    windows = room()
    windows.copy(1, 0, 400)
    assert (windows.reaches(1, 400), windows.reaches(1, 399)) == (True, False)


def test_windows_without_a_limit_reach_everything():
    windows = WindowRoom(WindowSizes())
    windows.copy(1, 0, 400)
    assert windows.reaches(1, 1)


def test_an_empty_sequence_begins_anew():
    windows = room()
    windows.make_room({0: 900}, 200)
    windows.empty(0)
    assert windows.reaches(0, 1)


# --- slots

TEXT = tuple(range(900))


def slots_with_text(**options):
    slots = KVSlots(3, "copied", 10_000, windows=WindowSizes(IDS, CELLS), **options)
    slot = slots.acquire((*TEXT, 1), 900)
    slot.length = len(TEXT)
    slots.release(slot.seq, KVContents(TEXT, 900))
    slots.orders()
    return slots


def test_a_step_makes_room():
    slots = slots_with_text()
    slots.acquire((5, 6, 7), 2)
    assert slots.orders(200) == (KVNarrow(0, STEP),)


def test_ids_without_their_window_are_read_anew():
    slots = slots_with_text()
    slots.acquire((5, 6, 7), 2)
    slots.orders(200)
    assert slots.acquire((*TEXT[:300], 1), 300).length == 0


def test_where_a_text_may_be_left_is_saved_before_it_is_lost():
    slots = slots_with_text(checkpoints=10)
    slots.acquire((5, 6, 7), 2)
    assert slots.orders(900) == (KVSave(0, 901 - NEAR_END), KVNarrow(0, 900 - IDS))


def test_a_sequence_that_was_lost_is_not_saved_where_its_text_was_left():
    slots = slots_with_text(checkpoints=10)
    slots.lost({0})
    slots.acquire((5, 6, 7), 2).length = 950
    assert slots.orders(900) == (KVNarrow(0, 950 - IDS),)


def test_a_text_begins_again_there():
    slots = slots_with_text(checkpoints=10)
    slots.acquire((5, 6, 7), 2)
    slots.orders(900)
    assert slots.acquire((*TEXT[:899], 1, 1), 900).length == 901 - NEAR_END


def test_an_offloaded_sequence_needs_no_room():
    slots = slots_with_text(offloads=True)
    slots.acquire((5, 6, 7), 2)
    kinds = [type(order) for order in slots.orders(200)]
    assert KVNarrow not in kinds


def test_it_needs_room_again_when_it_is_back():
    slots = slots_with_text(offloads=True)
    slots.acquire((5, 6, 7), 2)
    slots.orders(200)
    slots.acquire((*TEXT, 8, 9), 901)
    assert slots.orders(200) == (KVNarrow(0, STEP),)
