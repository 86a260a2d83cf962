"""What a session's drafter is told of the text, and when: TRUTH as it grows, SYNC where it lacks what came before."""

from specmesh.core import events as ev
from specmesh.core.draft_buffer import NACK_INTERVAL
from specmesh.core.draft_length.controller import Pacing
from specmesh.core.prefix import Prefix

TELL_EVERY, TELL_SELDOM = 16, 64
"""Ids after which a drafter that is not asked for drafts is told how the text goes on; where the clock has shown that a
crowd does better without, its work would be for nothing, and may be on the target's own cores."""

SYNC_INTERVAL = 0.01
"""Seconds between two SYNCs, at least: each is as long as the prefix, and a peer can ask for them without end."""


class Telling:
    """What one session's drafter knows of `prefix`, which is the session's and grows; `pacing` is the session's too."""

    def __init__(self, prefix: Prefix, pacing: Pacing) -> None:
        self._prefix, self._pacing = prefix, pacing
        self._untold: int | None = None  # from where it has not been told yet
        self._synced = float("-inf")

    @property
    def told(self) -> int:
        """How many ids it has been told."""
        return len(self._prefix) if self._untold is None else self._untold

    def begin(self, known: int) -> ev.SendSync:
        """What a drafter that knows the first `known` ids is told as it takes the session over."""
        self._untold = None
        return self._sync(known)

    def grown(self, base: int, now: float, *, idle: bool) -> list[ev.SendTruth]:
        """TRUTH from `base` on, where the text has grown from, or from where it was last told.

        idle: nothing is drafted and nobody reads along, so that it may be told some rounds late: a frame costs more
        than it is worth then.
        """
        base = base if self._untold is None else self._untold
        if idle and len(self._prefix) - base < (TELL_SELDOM if self._pacing.refused else TELL_EVERY):
            self._untold = base
            return []
        self._untold = None
        self._pacing.told(len(self._prefix), now)
        draft_n = self._pacing.draft_n
        return [ev.SendTruth(base, self._prefix.crc_at(base), tuple(self._prefix[base : len(self._prefix)]), draft_n)]

    def nacked(self, base: int, crc: int, now: float) -> list[ev.SendSync]:
        """It lacks what follows its first `base` ids, or has other ones; nothing where it was told a moment ago."""
        if now - self._synced < min(NACK_INTERVAL, max(SYNC_INTERVAL, self._pacing.round_trip)):
            return []
        self._synced = now
        return [self._sync(base if self._prefix.holds(base, crc) else 0)]

    def _sync(self, base: int) -> ev.SendSync:
        ids = tuple(self._prefix[base : len(self._prefix)])
        return ev.SendSync(base, self._prefix.crc_at(base), ids, self._pacing.draft_n)
