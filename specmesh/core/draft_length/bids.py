"""How the sessions of one step share its rows for drafts."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

LEAST_GAIN = 1.01  # times the rate without drafts that drafts must promise
SHORTEST = 1e-9  # seconds; a step too fast to measure took some time


class DraftBid(NamedTuple):
    """The drafts that a session offers to a step, besides its own row."""

    acceptance: tuple[float, ...]
    """Probabilities that its first 1, 2, ... drafts are all accepted; they fall."""

    chosen: bool = False
    """The client chose the number, so all drafts come as far as there is room."""


def allocate_drafts(
    bids: Sequence[DraftBid], room: int, seconds: Callable[[int], float]
) -> list[int]:
    """Return the number of drafts that each bidder brings, at most `room` in all.

    Take the most probable drafts first, up to the number with the most tokens per second.
    `seconds` gives the time of a step of so many rows, the pause before it included.
    """
    counts = [0] * len(bids)
    tokens = float(len(bids))
    offered: list[tuple[float, int]] = []
    for bidder, bid in enumerate(bids):
        if bid.chosen:  # those that clients chose come in the order of the bids
            chosen = bid.acceptance[:room]
            counts[bidder] = len(chosen)
            room -= len(chosen)
            tokens += sum(chosen)
        else:
            offered += [(-probability, bidder) for probability in bid.acceptance]
    # The order respects each session's own: its probabilities fall, so its first draft always comes
    # before its second.
    offered.sort()
    del offered[room:]
    rows = len(bids) + sum(counts)
    # Both rates are estimates. So drafts have to promise a little more than a step without.
    best = LEAST_GAIN * tokens / max(seconds(rows), SHORTEST)
    taken = 0
    # All numbers are tried, also beyond the first fall of the rate: a kernel may take longer for 6
    # rows than for 5, but no longer for 8 than for 6.
    for number, (minus_probability, _) in enumerate(offered, 1):
        tokens -= minus_probability
        rate = tokens / max(seconds(rows + number), SHORTEST)
        if rate > best:
            best = rate
            taken = number
    for _, bidder in offered[:taken]:
        counts[bidder] += 1
    return counts
