"""Damaged frames by the thousand: what `python -m fuzz.mutants` does by the million."""

import random
from itertools import islice

from fuzz.codec import REASONS
from fuzz.mutants import MUTATORS, Tally, is_control, mutants, originals
from specmesh.wire.codec import decode
from specmesh.wire.messages import Kind


def test_nothing_but_frame_error():
    """Each damaged frame is a message or refused; every reason occurs, and not everything is refused."""
    tally = Tally()
    tally.decode(list(islice(mutants(1), 20_000)))
    assert tally.frames == 20_000
    assert set(tally.outcomes) >= REASONS
    assert sum(count for outcome, count in tally.outcomes.items() if outcome not in REASONS) > 200


def test_originals_are_whole():
    """They are frames of every kind, so that it is the damage which is refused."""
    assert {frame[3] for frame in originals()} == set(Kind)
    for frame in originals():
        decode(frame)


def test_mutators_change_frames():
    """Every mutator makes another frame of most, for both planes, the same again from the same seed."""
    frames = originals()
    for mutate in MUTATORS:
        changed = [mutate(random.Random(7), frame, frames[0]) for frame in frames]
        assert changed == [mutate(random.Random(7), frame, frames[0]) for frame in frames]
        different = [frame for frame, made in zip(frames, changed, strict=True) if frame != made]
        assert {is_control(frame) for frame in different} == {True, False}, mutate.__name__
    assert list(islice(mutants(3), 50)) == list(islice(mutants(3), 50))
