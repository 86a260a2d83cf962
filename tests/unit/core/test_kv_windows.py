"""How far back sequences can be cut whose windows have few cells."""

import pytest

from specmesh.core.kv_contents import KVContents
from specmesh.core.kv_orders import KVNarrow, KVSave
from specmesh.core.kv_slots import KVSlots
from specmesh.core.kv_windows import Narrowed, WindowRoom, WindowSizes

IDS = 100
CELLS = 1000


def room():
    return WindowRoom(WindowSizes(IDS, CELLS))


def test_nothing_is_lost_while_there_is_room():
    assert room().make_room({0: 500, 1: 400}, 100) == []


def test_the_least_recently_used_loses_its_oldest_ids():
    assert room().make_room({1: 500, 0: 500}, 10) == [(1, 0, 256)]


def test_no_sequence_loses_its_window():
    assert room().make_room({0: 200, 1: 900}, 50) == [(0, 0, 100), (1, 0, 256)]


def test_what_was_lost_is_not_lost_again():
    windows = room()
    windows.make_room({0: 900}, 200)
    assert windows.make_room({0: 900}, 300) == []


@pytest.mark.parametrize(("length", "reached"), [(356, True), (355, False)])
def test_a_cut_needs_the_window_before_it(length, reached):
    windows = room()
    windows.make_room({0: 900}, 200)
    assert windows.reaches(0, length) == reached


@pytest.mark.parametrize(
    ("narrowed", "length", "loses"),
    [
        (Narrowed(0, 0, 256), 355, True),
        (Narrowed(0, 0, 256), 356, False),
        (Narrowed(0, 256, 512), 355, False),
        (Narrowed(0, 256, 512), 356, True),
    ],
)
def test_a_place_is_lost_with_the_window_before_it(narrowed, length, loses):
    """Once: a place that was lost before is not lost again."""
    assert room().loses(narrowed, length) == loses


@pytest.mark.parametrize(("length", "begin"), [(300, 300), (500, 356)])
def test_a_checkpoint_brings_a_window_where_that_was_lost(length, begin):
    windows = room()
    windows.make_room({0: 900}, 200)
    windows.restore(0, length)
    assert (windows.reaches(0, begin), windows.reaches(0, begin - 1)) == (True, False)


def test_a_copy_has_its_last_window_only():
    windows = room()
    windows.copy(1, 400)
    assert (windows.reaches(1, 400), windows.reaches(1, 399)) == (True, False)


def test_windows_without_a_limit_reach_everything():
    windows = WindowRoom(WindowSizes())
    windows.copy(1, 400)
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
    assert slots.orders(200) == (KVNarrow(0, 256),)


def test_ids_without_their_window_are_read_anew():
    slots = slots_with_text()
    slots.acquire((5, 6, 7), 2)
    slots.orders(200)
    assert slots.acquire((*TEXT[:300], 1), 300).length == 0


def test_where_a_text_may_be_left_is_saved_before_it_is_lost():
    slots = slots_with_text(checkpoints=10)
    slots.acquire((5, 6, 7), 2)
    assert slots.orders(900) == (KVSave(0, 897), KVNarrow(0, 800))


def test_a_sequence_that_was_lost_is_not_saved_where_its_text_was_left():
    slots = slots_with_text(checkpoints=10)
    slots.lost({0})
    slots.acquire((5, 6, 7), 2).length = 950
    assert slots.orders(900) == (KVNarrow(0, 950 - IDS),)


def test_a_text_begins_again_there():
    slots = slots_with_text(checkpoints=10)
    slots.acquire((5, 6, 7), 2)
    slots.orders(900)
    assert slots.acquire((*TEXT[:899], 1, 1), 900).length == 897


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
    assert slots.orders(200) == (KVNarrow(0, 256),)
