"""How far a drafter is with a session, as far as frames tell, and when its next drafts can be here."""

from specmesh.core.arrivals import Arrivals
from specmesh.core.stats import SessionTimes

UNKNOWN_INTERVAL = 0.01
"""Seconds that a draft may be late whose interval is not known."""


class Outlook:
    """One drafter and one session, from when it took that over.

    What arrives is learned in `arrivals`, the drafter's, and told in `times`, the session's. Positions are absolute:
    `frontier` is the number of committed ids, `lead` how many drafts are in hand beyond it; `asked` how many it is
    asked for.
    """

    def __init__(self, arrivals: Arrivals, times: SessionTimes) -> None:
        self._arrivals, self._times = arrivals, times
        self._flush: tuple[float, int] | None = None  # when and where the drafter last had to start anew
        self._anchor: tuple[float, int] | None = None  # (time, position): that many ids were, or will be, here
        self._arrived: tuple[float, int] | None = None  # the newest drafts since the last truth: when, up to where
        self._told: tuple[float, int] | None = None  # the newest truth: when, up to where

    def lead(self, frontier: int, lead: int, now: float) -> float:
        """How far the drafter is ahead as seen here, with the part of the next draft that is done.

        A draft that is overdue is due one interval from now, never "soon".
        """
        interval = self._arrivals.interval
        if self._anchor is None or interval is None:
            return float(lead)
        time, position = self._anchor
        real = position - frontier + (now - time) / interval
        return real if real < lead + 1 and (lead == 0 or real >= lead) else float(lead)

    def due(self, position: int, now: float) -> float:
        """When a draft can be here; those up to the anchor come together."""
        time, here = self._anchor if self._anchor is not None else (now, position)
        return time + max(position - here, 0) * (self._arrivals.interval or 0.0)

    @property
    def slack(self) -> float:
        """How late a draft may be before it is given up, in seconds."""
        return (self._arrivals.interval or UNKNOWN_INTERVAL) + 0.25 * self._arrivals.round_trip + 2e-4

    def told(self, frontier: int, now: float) -> None:
        """The drafter is told of all ids up to the frontier."""
        self._told = now, frontier

    def shadowed(self, end: int, guesses: int, now: float) -> None:
        """Guesses of known ids have come, the last for the one before `end`: begun no earlier than that was told."""
        if self._told is not None and self._told[1] == end:
            self._arrivals.record_bound(now - self._told[0], guesses)
            self._told = None

    def arrived(self, frontier: int, asked: int, end: int, now: float) -> None:
        """Drafts up to position `end` have come."""
        if self._flush is not None and end > self._flush[1]:
            sent_at, position = self._flush
            self._arrivals.record_restart(now - sent_at, end - position)
            self._times.restart += now - sent_at
            self._times.restarts += 1
            self._flush = None
        elif self._arrived is not None and self._arrived[1] < end <= frontier + asked:
            time, position = self._arrived
            self._arrivals.record_interval(now - time, end - position)
        if self._arrived is None or end > self._arrived[1]:
            self._arrived = (now, end)
        if self._anchor is None or end > self._anchor[1]:
            self._anchor = (now, end)

    def moved(self, frontier: int, asked: int, now: float, *, flushed: bool) -> None:
        """The text has grown up to the frontier, and the drafter is about to be told: set what can be expected of it
        from then on. flushed: no draft is left beyond the frontier."""
        self._arrived = None
        if flushed:
            self._flush = (now, frontier) if asked else None
            seconds, drafts = self._arrivals.restart or (self._arrivals.round_trip, 0)
            self._anchor = (now + seconds, frontier + drafts)
        elif self._anchor is not None and now - self._anchor[0] > 2 * (self._arrivals.interval or 0.0):
            # It had stopped at the end of its credit and goes on when it hears this truth.
            self._anchor = (now + self._arrivals.round_trip, self._anchor[1])
