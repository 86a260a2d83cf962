"""What a peer may send: honest traffic passes, a flood does not, and one that goes on is to be cut off."""

import re
from pathlib import Path

import pytest

from specmesh.core.peer_limits import Cost, FrameAction, PeerGate, PeerLimits, Rate

FRAME = 36
FEW = {cost: Rate(10, 20) for cost in Cost} | {Cost.BYTES: Rate(10**6, 10**6), Cost.IDS: Rate(10, 40, earned=30)}


def test_an_honest_drafter_never_meets_them():
    """A chain of 32 and a step's 17 for each TRUTH, a draft a millisecond, for a minute: all is taken, however fast the
    rounds are."""
    for rounds in (3, 30, 300, 2000):
        one, left = PeerLimits(), 0.0
        for turn in range(60 * rounds):
            now, left = turn / rounds, left + 1000 / rounds
            one.earn()
            assert one.frame(24, Cost.IDS, 0, now) is FrameAction.TAKE
            for _ in range(min(int(left), 49)):
                assert one.frame(24, Cost.IDS, 1, now) is FrameAction.TAKE
            left -= int(left)


def test_a_burst_is_slowed_and_forgiven():
    one = PeerLimits(FEW)
    for again in range(5):
        told = [one.frame(FRAME, None, 1, again * 4.0) for _ in range(70)]
        assert told == [FrameAction.TAKE] * 20 + [FrameAction.DROP] * 50


@pytest.mark.fault("E2.28")
def test_a_flood_is_bounded_and_then_cut():
    one = PeerLimits(FEW)
    told = [one.frame(FRAME, None, 1, n / 1000) for n in range(6000)]
    assert told.count(FrameAction.TAKE) <= 20 + 6 * 10 + 1
    first = told.index(FrameAction.DROP)
    assert told.index(FrameAction.CUT) == pytest.approx(first + 3 * 1000, abs=2)


@pytest.mark.parametrize("cost", [Cost.IDS, Cost.NACKS, Cost.HELLOS, Cost.VOCABS, Cost.PINGS])
def test_each_cost_has_a_bound_of_its_own(cost: Cost):
    one = PeerLimits(FEW | {Cost.FRAMES: Rate(10**6, 10**6)})
    told = [one.frame(FRAME, cost, 1, n / 90) for n in range(900)]
    assert told.count(FrameAction.TAKE) <= FEW[cost].burst + 10 * 10 + 1
    assert FrameAction.CUT in told
    assert one.frame(FRAME, None, 1, 10.0) is FrameAction.TAKE


def test_drafts_are_earned_by_rounds():
    one = PeerLimits(FEW)
    assert one.frame(FRAME, Cost.IDS, 40, 0.0) is FrameAction.TAKE
    assert one.frame(FRAME, Cost.IDS, 30, 0.0) is FrameAction.DROP
    one.earn()
    assert one.frame(FRAME, Cost.IDS, 30, 0.0) is FrameAction.TAKE
    assert one.frame(FRAME, Cost.IDS, 1, 0.0) is FrameAction.DROP


@pytest.mark.fault("E2.28")
def test_frames_that_are_none():
    one, other = PeerLimits(FEW), PeerLimits(FEW)
    assert {one.bad(n / 10) for n in range(200)} == {FrameAction.DROP}
    assert [other.bad(0.0) for _ in range(21)] == [FrameAction.DROP] * 20 + [FrameAction.CUT]


def test_accounts_are_apart_and_bounded():
    gate = PeerGate()
    while gate.limits(b"flood", "").frame(1, None, 1, 0.0) is FrameAction.TAKE:
        pass
    assert gate.limits(b"flood", "good").frame(1, None, 1, 0.0) is FrameAction.TAKE
    first = gate.limits(b"first")
    for number in range(10_000):
        assert gate.limits(b"%d" % number) is gate.limits(b"%d" % number)
    assert gate.limits(b"first") is not first


def test_the_protocol_tells_them():
    text = (Path(__file__).parents[3] / "wire" / "PROTOCOL.md").read_text(encoding="utf-8")
    section = text.partition("### 7.5")[2].partition("## 8.")[0]
    rows = re.findall(r"^\| [^|]+ \| (\d+)( MiB)? \| (\d+)(?: MiB)? \| ?(\d*) ?\| ?(\d*) ?\|$", section, re.MULTILINE)
    for cost, (rate, unit, burst, *more) in zip(Cost, rows, strict=True):
        one, size, (earned, per_draft) = PeerLimits(), 2**20 if unit else 1, (int(number or 0) for number in more)
        at_once, per_second = (0.0, None, int(burst) * size), (1.0, None, int(rate) * size)
        for now, drafts, most in (at_once, per_second, (1.0, 0, earned), (1.0, 2, earned + 2 * per_draft)):
            if drafts is not None:
                one.earn(drafts)
            told = [one.frame(0, cost, amount, now) for amount in (most - (cost is Cost.FRAMES), 1)]
            assert told == [FrameAction.TAKE, FrameAction.DROP], cost
