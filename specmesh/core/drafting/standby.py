"""A drafter that follows a session: measured by its guesses, and ready to take over at once.

It is told the text as it grows, and shows in SHADOWs what it would have drafted. Nothing of it is verified, so nothing
is waited for; it costs a frame per TELL_EVERY ids and fewer back.
"""

from specmesh.core import events as ev
from specmesh.core.prefix import Prefix
from specmesh.core.truth_sender import TELL_EVERY

SYNC_INTERVAL = 0.1
"""Seconds between two SYNCs, at least."""


class Standby:
    """One drafter beside the one that drafts, following `prefix`, which is the session's and grows.

    `known` ids it knows already, as it has drafted for this session. `told` is how many it has been told; `shown` how
    many of its guesses have been compared.
    """

    def __init__(self, prefix: Prefix, now: float, known: int = 0) -> None:
        self.told = known
        self.shown = 0
        self._prefix = prefix
        self._sent_at = now  # when it was told last
        self._judged = len(prefix)  # guesses before this count for nothing: judged, or of what it was told at first
        self._synced = float("-inf")

    def begin(self, now: float) -> ev.SendSync | ev.SendTruth:
        """What it is told first."""
        if self.told:
            return self._truth(now)
        return self._sync(0, now)

    def follow(self, now: float) -> ev.SendTruth | None:
        """What to tell it now that the text has grown, if there is enough of it."""
        return self._truth(now) if len(self._prefix) - self.told >= TELL_EVERY else None

    def rest(self, now: float) -> ev.SendTruth | None:
        """What it has not been told yet, as the text has ended; None for nothing."""
        return self._truth(now) if len(self._prefix) > self.told else None

    def nacked(self, base: int, crc: int, now: float) -> ev.SendSync | None:
        """It lacks what follows its first `base` ids."""
        if now - self._synced < SYNC_INTERVAL:
            return None
        self._synced = now
        return self._sync(base if self._prefix.holds(base, crc) else 0, now)

    def shadowed(self, event: ev.Shadowed, round_trip: float, now: float) -> tuple[tuple[bool, ...], float | None]:
        """Compare its guesses with the text; returns of each whether it was right, and the seconds from one to the
        next. Those of ids that were compared before, or that do not fit, are left out.

        The seconds are known where they end with what it was told last: it has read some ids and guessed these since.
        The first guesses tell none, as it has read all of the text before them.
        """
        if not self._prefix.holds(event.base, event.crc):
            return (), None
        new = max(self._judged - event.base, 0)
        end = event.base + len(event.ids)
        truth = self._prefix[event.base + new : end]
        right = tuple(guess == true for guess, true in zip(event.ids[new:], truth, strict=False))
        if not right:
            return (), None
        timed = self.shown > 0 and end == self.told
        self._judged = event.base + new + len(right)
        self.shown += len(right)
        seconds = max(now - self._sent_at - round_trip, 0.0) / (len(right) + 1)
        return right, seconds if timed else None

    def _truth(self, now: float) -> ev.SendTruth:
        base, self.told, self._sent_at = self.told, len(self._prefix), now
        return ev.SendTruth(base, self._prefix.crc_at(base), tuple(self._prefix[base : self.told]), 0)

    def _sync(self, base: int, now: float) -> ev.SendSync:
        self.told, self._sent_at = len(self._prefix), now
        return ev.SendSync(base, self._prefix.crc_at(base), tuple(self._prefix[base : self.told]), 0)
