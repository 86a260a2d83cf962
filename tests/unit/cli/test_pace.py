"""Blocks shown evenly: nothing is lost, early, or later than it may be."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmesh.cli.streaming import LATE, LONGEST, Pace, pieces

PROFILE = settings(derandomize=True, deadline=None, max_examples=100)
BLOCKS = st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(1, 9)), min_size=1, max_size=20)


def shown(blocks):
    """When each piece is shown, with its block's arrival and the next block's, on a clock that is looked at whenever
    something is due."""
    pace, now, times, arrivals = Pace(), 0.0, {}, []
    for number, (gap, count) in enumerate(blocks):
        end = now + gap
        while (due := pace.next_due()) is not None and due <= end:
            now = max(now, due)
            for piece in pace.take(now):
                times[piece] = now
        now = end
        arrivals.append(now)
        pace.add([(number, index) for index in range(count)], now)
    while (due := pace.next_due()) is not None:
        now = max(now, due)
        for piece in pace.take(now):
            times[piece] = now
    following = [*arrivals[1:], math.inf]
    return [(piece, at, arrivals[piece[0]], following[piece[0]]) for piece, at in times.items()]


@PROFILE
@given(BLOCKS)
def test_each_piece_once_in_order_and_in_time(blocks):
    """After it came, at most LATE after the next block did, at most LONGEST after its own."""
    told = shown(blocks)
    assert [piece for piece, *_ in told] == [(n, i) for n, (_, count) in enumerate(blocks) for i in range(count)]
    assert [at for _, at, _, _ in told] == sorted(at for _, at, _, _ in told)
    for _, at, arrival, following in told:
        assert arrival <= at <= min(arrival + LONGEST, following + LATE) + 1e-9


@PROFILE
@given(st.floats(0.01, LONGEST), st.integers(1, 9), st.integers(3, 15))
def test_steady_blocks_come_evenly(gap, count, blocks):
    """Once a gap is known, pieces are a gap's share apart, and each block is shown before the next."""
    times = [at for (number, _), at, _, _ in shown([(gap, count)] * blocks) if number]
    assert [b - a for a, b in itertools.pairwise(times)] == pytest.approx([gap / count] * (len(times) - 1), abs=1e-6)


@PROFILE
@given(st.text(max_size=30), st.integers(0, 9))
def test_pieces_are_the_text(text, count):
    """All of it, in parts whose lengths differ by one at most."""
    parts = pieces(text, count)
    assert "".join(parts) == text
    assert len(parts) <= max(count, 1)
    assert not parts or max(map(len, parts)) - min(map(len, parts)) <= 1
