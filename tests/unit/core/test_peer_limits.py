"""What a peer may send: honest traffic passes, a flood does not, and one that goes on is to be cut off."""

import re
from pathlib import Path

import pytest

from specmesh.core.peer_limits import CUT_AFTER_S, RATES, REST_S, Cost, FrameAction, PeerGate, PeerLimits, Rate

FRAME = 36


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
    one, burst = PeerLimits(), int(RATES[Cost.FRAMES].burst)
    for again in range(5):
        start = again * (CUT_AFTER_S + REST_S)
        told = [one.frame(FRAME, None, 1, start) for _ in range(burst + 500)]
        assert told == [FrameAction.TAKE] * burst + [FrameAction.DROP] * 500


@pytest.mark.fault("E2.28")
def test_a_flood_is_bounded_and_then_cut():
    one, rate = PeerLimits(), RATES[Cost.FRAMES]
    told = [one.frame(FRAME, None, 1, n / 10_000) for n in range(60_000)]
    assert told.count(FrameAction.TAKE) <= rate.burst + 6 * rate.per_second + 1
    first = told.index(FrameAction.DROP)
    assert told.index(FrameAction.CUT) == pytest.approx(first + CUT_AFTER_S * 10_000, abs=2)


@pytest.mark.parametrize(
    ("cost", "amount"),
    [(Cost.IDS, 8192), (Cost.NACKS, 1), (Cost.HELLOS, 1), (Cost.VOCABS, 1), (Cost.PINGS, 1)],
)
def test_each_cost_has_a_bound_of_its_own(cost: Cost, amount: int):
    one = PeerLimits()
    told = [one.frame(20, cost, amount, n / 900) for n in range(9_000)]
    rate = RATES[cost]
    assert told.count(FrameAction.TAKE) * amount <= rate.burst + 10 * rate.per_second + amount
    assert FrameAction.CUT in told
    assert one.frame(20, None, 1, 10.0) is FrameAction.TAKE


def test_drafts_are_earned_by_rounds():
    one = PeerLimits()
    assert one.frame(FRAME, Cost.IDS, RATES[Cost.IDS].burst, 0.0) is FrameAction.TAKE
    earned = int(RATES[Cost.IDS].earned)
    assert one.frame(FRAME, Cost.IDS, earned, 0.0) is FrameAction.DROP
    one.earn()
    assert one.frame(FRAME, Cost.IDS, earned, 0.0) is FrameAction.TAKE
    assert one.frame(FRAME, Cost.IDS, 1, 0.0) is FrameAction.DROP


@pytest.mark.fault("E2.28")
def test_frames_that_are_none():
    one, other = PeerLimits(), PeerLimits()
    assert {one.bad(float(n)) for n in range(200)} == {FrameAction.DROP}
    assert [other.bad(0.0) for _ in range(61)] == [FrameAction.DROP] * 60 + [FrameAction.CUT]


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
    rows = re.findall(
        r"^\| [^|]+ \| ([\d]+)( MiB)? \| ([\d]+)(?: MiB)? \| ?(\d*) ?\| ?(\d*) ?\|$", section, re.MULTILINE
    )
    assert list(Cost) == list(RATES)
    told = [
        Rate(float(rate) * (2**20 if unit else 1), float(burst) * (2**20 if unit else 1), *map(float, more))
        for rate, unit, burst, *more in ((*row[:3], row[3] or 0, row[4] or 0) for row in rows)
    ]
    assert told == list(RATES.values())
