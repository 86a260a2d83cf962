"""The other end of the wire, as this side knows it: liveness, round trip."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from specmesh.core.statistics.counters import RecentSamples

PING_INTERVAL = 1.0  # seconds between PINGs
FIRST_INTERVAL, FIRST_PINGS = 0.1, 5  # one alone may meet a peer that is still getting ready
SILENCE = 3.5  # seconds without a frame after which a peer counts as gone
MAX_UNREAD = 2**24  # bytes for a drafter since it answered a PING, beyond which it does not keep up


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
        """Its clients' sessions wait for it."""
        return self not in (Departure.FLOODING, Departure.REVOKED)

    @property
    def cuts(self) -> bool:
        """Its own end may never end the connection."""
        return self in (Departure.SILENT, Departure.BEHIND, Departure.REVOKED)


@dataclass(slots=True)
class Link:
    """Liveness and round trip of one connection. A PING that a client asked for counts nowhere: measuring must not
    move what drafting is decided by."""

    last_heard: float
    silence: float = SILENCE
    max_unread: int = MAX_UNREAD
    round_trips: RecentSamples = field(default_factory=RecentSamples)
    busy: float = 0.0
    next_ping: float = 0.0
    mute: bool = False  # it drafts nothing here, as it says
    unread: int = 0  # bytes sent since the newest PONG
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    _sent: dict[int, tuple[float, Callable[[float], None] | None]] = field(default_factory=dict)

    def heard_busy(self, busy: float) -> None:
        self.busy = min(max(0.0, busy), 1.0)  # its own word

    def ping(self, now: float, answer: Callable[[float], None] | None = None) -> int:
        """Return the number of a PING to be sent now; `answer`, if a client asked for it, gets the seconds until its
        PONG."""
        if answer is None:
            self.next_ping = now + PING_INTERVAL
            self._sent = {
                number: one
                for number, one in self._sent.items()
                if one[1] and now - one[0] <= self.silence
            }
        number = next(self._numbers)
        self._sent[number] = now, answer
        return number

    def pong(self, number: int, busy: float, now: float) -> float | None:
        """Return the round trip in seconds; None for a PONG that answers no PING of ours, or a client's."""
        self.heard_busy(busy)
        if number not in self._sent:
            return None
        sent, answer = self._sent.pop(number)
        round_trip, self.unread = now - sent, 0
        if answer is not None:
            answer(round_trip)
            return None
        self.round_trips.record(round_trip)
        if number < FIRST_PINGS:
            self.next_ping = min(self.next_ping, now + FIRST_INTERVAL)
        return round_trip

    def silent(self, now: float) -> bool:
        return now - self.last_heard > self.silence

    def departure(self, now: float) -> Departure | None:
        """Why a drafter is to be let go now, if it is."""
        if self.unread > self.max_unread:
            return Departure.BEHIND
        return Departure.SILENT if self.silent(now) else None


HELLO_INTERVAL, LONGEST_INTERVAL = 0.5, 2.0  # most seconds between two HELLOs, at first and at last
REFUSED_INTERVAL = 15.0  # the same of a verifier that speaks another version: it may be updated
UNANSWERED = 3.0  # seconds without an answer after which a connection is in doubt
RENEW = 30.0  # seconds until it is again


class Greeting:
    """When to say HELLO to a verifier that is not there yet, and when to do so over a fresh connection."""

    def __init__(self, now: float) -> None:
        self._next, self._pause, self._doubtful = now, HELLO_INTERVAL, now + UNANSWERED

    def due(self, now: float, share: float) -> bool:
        """Return True for a HELLO now; the next comes after this share of a pause, since drafters must not speak in
        chorus."""
        due = now >= self._next
        if due:
            self._next = now + self._pause * share
        return due

    def doubtful(self, now: float) -> bool:
        """Return True where the connection is in doubt, once in RENEW."""
        doubtful = now >= self._doubtful
        if doubtful:
            self._doubtful = now + RENEW
        return doubtful

    def said(self) -> None:
        """Note that a HELLO could be sent: pauses get longer."""
        self._pause = min(2 * self._pause, LONGEST_INTERVAL)

    def answered(self) -> None:
        self._pause = HELLO_INTERVAL

    def refused(self, now: float, share: float) -> None:
        """Note that the verifier cannot be spoken with: the next HELLO comes after this share of
        a long pause."""
        self._next = now + REFUSED_INTERVAL * share

    def begins(self, now: float) -> None:
        """Note that another way to it is tried: a HELLO is due."""
        self._next, self._pause = now, HELLO_INTERVAL

    def lost(self, now: float) -> None:
        """Note that a verifier that was there is gone."""
        self._doubtful = now + UNANSWERED
