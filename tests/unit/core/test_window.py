"""The windows of texts that a draft model reads: where they begin, and when the next one is due."""

from itertools import pairwise

import pytest
from harness.tables import cases

from specmesh.core.drafter.window import WindowReader, Windows
from specmesh.core.kv_contents import ANY_LENGTH
from specmesh.core.kv_slots import KVSlot

WINDOWS = Windows(n_ctx=4096, size=2048, bos=1, spares=2)
WHOLE_ONLY = Windows(n_ctx=4096)
RECURRENT = Windows(n_ctx=4096, size=2048, bos=1, endless=True)
LOOK_UP = Windows(n_ctx=4096, endless=True)
MOST = 4096 - 512


def begun(windows, length, *, whole=True):
    slot = KVSlot(seq=0)
    windows.begin(slot, length, whole=whole)
    return slot.start, slot.bos


@pytest.mark.parametrize(
    ("windows", "length", "whole", "begin"),
    [
        (WINDOWS, 1, True, (0, 0)),
        (WINDOWS, 2048, False, (0, 0)),
        (WINDOWS, 2049, False, (1025, 1)),
        (WINDOWS, MOST, True, (0, 0)),
        (WINDOWS, MOST + 1, True, (MOST + 1 - 1024, 1)),
        (WINDOWS, 100_000, True, (98_976, 1)),
        (WHOLE_ONLY, 4000, False, (0, 0)),
        (RECURRENT, 2048, True, (0, 0)),
        (RECURRENT, 100_000, True, (97_952, 1)),
        (LOOK_UP, 100_000, False, (0, 0)),
    ],
)
def test_a_text_is_read_whole_or_from_half_a_window_back(windows, length, whole, begin):
    assert begun(windows, length, whole=whole) == begin


@pytest.mark.parametrize("length", [10, 1500, 50_000])
def test_the_next_window_begins_half_a_window_back(length):
    slot = KVSlot(seq=0)
    WINDOWS.begin_next(slot, length)
    assert slot.start == max(length - 1024, 0)


@cases(
    "start, length, due",
    "[0, 3584, false] [0, 3585, true] [5000, 7048, false] [5000, 7049, true]",
)
def test_the_next_window_is_due_when_one_is_full(start, length, due):
    assert WINDOWS.is_due(KVSlot(seq=0, length=1, start=start, bos=1), length) is due


@pytest.mark.parametrize("windows", [WHOLE_ONLY, RECURRENT, LOOK_UP])
def test_without_windows_none_is_due(windows):
    assert not windows.is_due(KVSlot(seq=0, length=4096), 90_000)


@pytest.mark.parametrize("size", [8, 64, 200, 512, 2048, 4096])
@pytest.mark.parametrize("n_ctx", [8, 64, 512, 4096])
def test_each_window_gains_on_the_one_before(n_ctx, size):
    """A text that grows by one id has the next window later, and it always fits."""
    windows = Windows(n_ctx=n_ctx, size=min(size, n_ctx), bos=1)
    slot = KVSlot(seq=0)
    starts = []
    for length in range(1, 5 * n_ctx):
        if windows.is_due(slot, length):
            windows.begin_next(slot, length)
            starts.append(slot.start)
        assert length <= windows.limit(slot)
    gains = [after - before for before, after in pairwise(starts)]
    assert min(gains) > windows.full // 2 - 2


@pytest.mark.parametrize(
    ("windows", "limit"), [(WINDOWS, 9095), (WHOLE_ONLY, 9095), (LOOK_UP, ANY_LENGTH)]
)
def test_a_slot_has_room_up_to_a_position(windows, limit):
    assert windows.limit(KVSlot(seq=0, length=10, start=5000, bos=1)) == limit


@cases("read, length", "[3000, 3100] [3000, 3584] [1000, 3000]")
def test_a_slot_with_the_beginning_of_a_text_is_read_on_in(read, length):
    assert WINDOWS.suits(KVSlot(seq=0, length=read), length)


def test_a_slot_whose_next_window_would_be_due_at_once_is_not_read_on_in():
    assert not WINDOWS.suits(KVSlot(seq=0, length=3500), 3585)


@cases("read, length, suits", "[1801, 21900, true] [1801, 22900, false] [301, 22048, false]")
def test_a_window_of_an_earlier_text_is_read_on_in_if_that_is_less_work(read, length, suits):
    """Less than a new window, which is read from 1,024 ids back."""
    assert WINDOWS.suits(KVSlot(seq=0, length=read, start=20_000, bos=1), length) is suits


# --- pieces


def test_a_piece_takes_no_longer_than_it_may():
    reader = WindowReader(WINDOWS, 128)
    reader.read(16, 0.016)
    assert reader.piece(rest=1024, room=2000, drafts=1, seconds=0.005).ids == 5


def test_a_piece_is_as_large_as_the_room_demands():
    reader = WindowReader(WINDOWS, 128)
    reader.read(16, 1.6)
    assert reader.piece(rest=1000, room=100, drafts=5, seconds=0.005).ids == 50


@pytest.mark.parametrize("room", [0, -3, 1])
def test_a_piece_is_a_whole_chunk_if_there_is_no_room(room):
    reader = WindowReader(WINDOWS, 128)
    assert reader.piece(rest=1000, room=room, drafts=5, seconds=0.005).ids == 128


@cases("room, urgent", "[2000, false] [1300, false] [1000, true]")
def test_a_piece_is_urgent_if_later_would_be_too_late(room, urgent):
    """With pieces of 5 ids 1,000 take 200; the text grows by 5 between two of them."""
    reader = WindowReader(WINDOWS, 128)
    reader.read(10, 0.01)
    assert reader.piece(rest=1000, room=room, drafts=5, seconds=0.005).urgent is urgent


def test_a_piece_is_never_empty():
    reader = WindowReader(WINDOWS, 128)
    reader.read(1, 1.0)
    assert reader.piece(rest=100, room=5000, drafts=1, seconds=0.005).ids == 1


@pytest.mark.parametrize("seconds_of_id", [1e-5, 1e-3, 1.0])
@pytest.mark.parametrize("drafts", [1, 5, 17])
def test_a_window_is_read_before_the_other_is_full(seconds_of_id, drafts):
    """While the text grows as fast as it can between two pieces."""
    reader = WindowReader(WINDOWS, 128)
    reader.read(1, seconds_of_id)
    rest = 1024
    room = 512 - 48
    while rest > 0:
        assert room > 0
        rest -= reader.piece(rest=rest, room=room, drafts=drafts, seconds=1e-3).ids
        rest += drafts
        room -= drafts
        if rest <= drafts:
            break


# --- whole or not


def judged(whole, windows):
    """Return a reader that has judged so many drafts of 100 as accepted, of each kind of text."""
    reader = WindowReader(WINDOWS, 128)
    for start, accepted in ((0, whole), (1000, windows)):
        slot = KVSlot(seq=0, length=1, start=start)
        for _ in range(2):
            reader.judge(slot, 3000, accepted=accepted, rejected=100 - accepted)
    return reader


def start_of(reader, length=3000):
    slot = KVSlot(seq=0)
    reader.begin(slot, length)
    return slot.start


@cases("whole, windows, start", "[80, 80, 1976] [81, 80, 1976] [83, 80, 0] [70, 80, 1976]")
def test_whole_texts_are_read_if_that_pays(whole, windows, start):
    assert start_of(judged(whole, windows)) == start


def test_both_ways_are_tried():
    reader = WindowReader(WINDOWS, 128)
    assert start_of(reader) == 1976
    reader.judge(KVSlot(seq=0, length=1, start=1976), 3000, accepted=3, rejected=1)
    assert start_of(reader) == 0


@pytest.mark.parametrize("length", [2048, MOST + 1])
def test_texts_that_leave_no_choice_are_no_comparison(length):
    reader = WindowReader(WINDOWS, 128)
    for _ in range(200):
        reader.judge(KVSlot(seq=0, length=1), length, accepted=1, rejected=0)
    assert reader.acceptance(whole=True) is None
