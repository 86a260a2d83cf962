"""What a drafter is told of a text that grows by one id a round."""

from specmesh.core import events as ev
from specmesh.core.draft_buffer import NACK_INTERVAL
from specmesh.core.draft_length.acceptance import RollingAcceptance
from specmesh.core.draft_length.controller import Pacing
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.prefix import Prefix
from specmesh.core.statistics import SessionTimes
from specmesh.core.truth_sender import SYNC_INTERVAL, TELL_EVERY, Telling

PROMPT = (1, 2, 3)


def telling() -> tuple[Prefix, Telling]:
    prefix = Prefix(PROMPT)
    return prefix, Telling(prefix, Pacing(4, 8, StepCosts(), RollingAcceptance(), SessionTimes(0.0)))


def grow(prefix: Prefix, told: Telling, *ids: int, idle: bool = False) -> list[ev.SendTruth]:
    base = len(prefix)
    prefix.extend(ids)
    return told.grown(base, 0.0, idle=idle)


def test_each_round_is_told():
    """With the checksum of what is before it, and how many drafts are asked for."""
    prefix, told = telling()
    assert told.begin(1) == ev.SendSync(1, prefix.crc_at(1), (2, 3), 4)
    assert grow(prefix, told, 8, 9) == [ev.SendTruth(3, prefix.crc_at(3), (8, 9), 4)]
    assert told.told == 5


def test_the_idle_are_told_late():
    """Many rounds at once, or what they were not told as soon as they are not idle any more."""
    prefix, told = telling()
    told.begin(0)
    for _ in range(TELL_EVERY - 1):
        assert grow(prefix, told, 7, idle=True) == []
    assert told.told == len(PROMPT)
    (truth,) = grow(prefix, told, 7, idle=True)
    assert (truth.base, len(truth.ids)) == (len(PROMPT), TELL_EVERY)
    assert grow(prefix, told, 5, idle=True) == []
    (truth,) = grow(prefix, told, 6)
    assert truth.ids == (5, 6)
    assert told.told == len(prefix)


def test_another_drafter_is_not_told_twice():
    """What the one before it was not told yet comes with what it begins with."""
    prefix, told = telling()
    told.begin(0)
    grow(prefix, told, 7, idle=True)
    assert told.begin(0).ids == (*PROMPT, 7)
    (truth,) = grow(prefix, told, 8)
    assert truth.ids == (8,)


def test_what_is_lacking_is_told_again():
    """From where both agree, or all of it; and not at every cry."""
    prefix, told = telling()
    assert told.nacked(2, prefix.crc_at(2), 1.0) == [ev.SendSync(2, prefix.crc_at(2), (3,), 4)]
    assert told.nacked(2, prefix.crc_at(2), 1.0 + min(SYNC_INTERVAL, NACK_INTERVAL) / 2) == []
    assert told.nacked(2, 12345, 2.0) == [ev.SendSync(0, 0, PROMPT, 4)]
