"""The liveness of a connection's other end: round trips, silence, and when to greet it."""

import itertools
from collections.abc import Callable
from enum import StrEnum

from specmesh.core.statistics.counters import RecentSamples

PING_INTERVAL = 1.0  # seconds between PINGs
FIRST_INTERVAL = 0.1  # seconds between the first PINGs
FIRST_PINGS = 5
"""PINGs that follow each other at once. The first may meet a peer that is still getting ready."""
SILENCE = 3.5  # seconds without a frame after which a peer counts as gone
MAX_UNREAD = 2**24
"""Bytes for a drafter since it answered a PING. Beyond them it does not keep up."""


class Departure(StrEnum):
    """Why a drafter is let go."""

    STOPPED = "stopped"
    UNREACHABLE = "unreachable"
    HELLO_AGAIN = "hello again"
    SILENT = "silent"
    BEHIND = "behind"
    FLOODING = "flooding"
    REVOKED = "revoked"

    @property
    def may_return(self) -> bool:
        """Return True if the sessions of its clients wait for it."""
        return self not in (Departure.FLOODING, Departure.REVOKED)

    @property
    def cuts(self) -> bool:
        """Return True if the connection is to be cut: the drafter may never end it."""
        return self in (Departure.SILENT, Departure.BEHIND, Departure.REVOKED)


class Link:
    """Liveness and round trips of one connection.

    last_frame_at: when the peer's newest frame came.
    round_trips: in seconds. A PING with an `answer` counts nowhere: measuring for a client, or
        behind a long text, must not move the estimates that drafting is decided by.
    busy: share of time that the peer works, by its own account.
    next_ping: when the next PING is due.
    mute: the peer drafts nothing here, by its own account.
    unread: bytes sent since the newest PONG.
    """

    def __init__(
        self, now: float, *, silence: float = SILENCE, max_unread: int = MAX_UNREAD
    ) -> None:
        """Begin with a frame that has just come.

        silence: seconds without a frame after which the peer counts as gone.
        max_unread: bytes that it may leave unanswered.
        """
        self.last_frame_at = now
        self.round_trips = RecentSamples()
        self.busy = 0.0
        self.next_ping = 0.0
        self.mute = False
        self.unread = 0
        self._silence = silence
        self._max_unread = max_unread
        self._numbers = itertools.count(1)
        # When each PING was sent, by its number; in `_answers` those that somebody waits for.
        self._sent_at: dict[int, float] = {}
        self._answers: dict[int, Callable[[float], None]] = {}

    def note_busy(self, busy: float) -> None:
        """Note the share of time that the peer claims to work."""
        # The claim of a peer is shown in `stats`, so it is bounded.
        self.busy = min(max(0.0, busy), 1.0)

    def note_mute(self, *, mute: bool) -> bool:
        """Note whether the peer drafts nothing here; return True if that has changed."""
        changed = mute != self.mute
        self.mute = mute
        return changed

    def ping_at(self, time: float) -> None:
        """Have the next PING sent then."""
        self.next_ping = time

    def ping(self, now: float, answer: Callable[[float], None] | None = None) -> int:
        """Return the number of a PING to be sent now.

        answer: takes the seconds until PONG, if somebody waits for it.
        """
        if answer is None:
            self.next_ping = now + PING_INTERVAL
            # All PINGs are forgotten but those whose answers somebody waits for, and may get.
            for other, sent_at in list(self._sent_at.items()):
                if other not in self._answers or now - sent_at > self._silence:
                    del self._sent_at[other]
                    self._answers.pop(other, None)
        number = next(self._numbers)
        self._sent_at[number] = now
        if answer is not None:
            self._answers[number] = answer
        return number

    def pong(self, number: int, busy: float, now: float) -> float | None:
        """Return the round trip in seconds.

        None for a PONG that somebody waits for, or that answers no PING of this side.
        """
        self.note_busy(busy)
        # It came twice, after its PING was given up, or was never asked for.
        if number not in self._sent_at:
            return None
        round_trip = now - self._sent_at.pop(number)
        self.unread = 0
        answer = self._answers.pop(number, None)
        if answer is not None:
            answer(round_trip)
            return None
        self.round_trips.record(round_trip)
        # The first round trips come close together: a policy needs one before the first steps.
        if number < FIRST_PINGS:
            self.next_ping = min(self.next_ping, now + FIRST_INTERVAL)
        return round_trip

    def silent(self, now: float) -> bool:
        """Return True if no frame has come for too long."""
        return now - self.last_frame_at > self._silence

    def departure(self, now: float) -> Departure | None:
        """Return why a drafter is to be let go now; None if it is not."""
        if self.unread > self._max_unread:
            return Departure.BEHIND
        return Departure.SILENT if self.silent(now) else None


HELLO_INTERVAL = 0.5  # most seconds between the first two HELLOs
LONGEST_INTERVAL = 2.0  # most seconds between two HELLOs at last
REFUSED_INTERVAL = 15.0
"""The same of a verifier that speaks another version: it may be updated."""
UNANSWERED = 3.0  # seconds without an answer after which a connection is in doubt
RENEW = 30.0  # seconds until it is again


class Greeting:
    """When to send HELLO to a verifier that does not answer, and when over a new connection."""

    def __init__(self, now: float) -> None:
        self._next = now
        self._pause = HELLO_INTERVAL
        self._doubtful_at = now + UNANSWERED

    def due(self, now: float, share: float) -> bool:
        """Return True if a HELLO is due now.

        share: of the pause until the next one. It differs, so that drafters do not speak in chorus.
        """
        if now < self._next:
            return False
        self._next = now + self._pause * share
        return True

    def doubtful(self, now: float) -> bool:
        """Return True if the connection is in doubt, once in RENEW."""
        if now < self._doubtful_at:
            return False
        self._doubtful_at = now + RENEW
        return True

    def sent(self) -> None:
        """Note that a HELLO could be sent: pauses get longer."""
        self._pause = min(2 * self._pause, LONGEST_INTERVAL)

    def answered(self) -> None:
        """Note that the verifier answers."""
        self._pause = HELLO_INTERVAL

    def refused(self, now: float, share: float) -> None:
        """Note that the verifier speaks another version: the next HELLO comes after a long pause.

        share: of that pause.
        """
        self._next = now + REFUSED_INTERVAL * share

    def begins(self, now: float) -> None:
        """Note that another way to it is tried: a HELLO is due."""
        self._next = now
        self._pause = HELLO_INTERVAL

    def lost(self, now: float) -> None:
        """Note that the verifier has gone."""
        self._doubtful_at = now + UNANSWERED
