"""How many drafts pay where sessions share a step: the most tokens per second over all of them.

A row costs all of them time and helps one, so drafts compete: those most likely to stand come first, and as many as
raise what the step is expected to commit over what it is expected to take (goodput: Liu et al., arXiv 2406.14066). The
fuller a step, the fewer; where rows are free, as many as there are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

LEAST_GAIN = 1.01
"""Times the rate without drafts that drafts must promise."""


@dataclass(frozen=True, slots=True)
class Bid:
    """What a session could bring to a step, besides its own row.

    stands: the probability that its first 1, 2, ... drafts are all committed, one for each draft in hand, falling.
    chosen: how many is decided already, so they all come if there is room.
    """

    stands: tuple[float, ...]
    chosen: bool = False


def share_rows(bids: Sequence[Bid], room: int, seconds: Callable[[int], float], first: int = 0) -> list[int]:
    """How many of its drafts each bidder brings, at most `room` together. Of drafts that are as likely to stand, those
    of bidder number `first` and of the ones after it come before others'.

    seconds: what a step of so many rows is expected to take, everything between two steps included.
    """
    counts = [0] * len(bids)
    for bidder, bid in enumerate(bids):
        if bid.chosen:
            counts[bidder] = min(len(bid.stands), room)
            room -= counts[bidder]
    tokens = len(bids) + sum(sum(bid.stands[:count]) for bid, count in zip(bids, counts, strict=True))
    size = max(len(bids), 1)
    offered = sorted(
        (-p, (bidder - first) % size, bidder) for bidder, bid in enumerate(bids) if not bid.chosen for p in bid.stands
    )
    del offered[room:]
    rows = len(bids) + sum(counts)
    best, taken = LEAST_GAIN * tokens / max(seconds(rows), 1e-9), 0
    for number, (minus, *_) in enumerate(offered, 1):
        tokens -= minus
        rate = tokens / max(seconds(rows + number), 1e-9)
        if rate > best:
            best, taken = rate, number
    for *_, bidder in offered[:taken]:
        counts[bidder] += 1
    return counts


def even_drafts(rates: Sequence[float], sessions: int, most: int, seconds: Callable[[int], float]) -> int:
    """How many drafts each of so many sessions should bring if all did as this one, whose drafts stand at `rates` given
    that those before them did: what its drafter is worth asking for."""
    stands = tuple(accumulate(rates[:most], mul))
    tokens, best, drafts = 1.0, LEAST_GAIN / max(seconds(sessions), 1e-9), 0
    for count, stand in enumerate(stands, 1):
        tokens += stand
        rate = tokens / max(seconds(sessions * (count + 1)), 1e-9)
        if rate > best:
            best, drafts = rate, count
    return drafts
