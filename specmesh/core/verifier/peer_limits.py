"""What a verifier takes from one peer: how much of what, how fast, and what becomes of a peer that sends more.

A bucket per cost, which fills by time and, for what drafting needs, with each TRUTH that the peer is sent: so much may
come as rounds can use, however fast the rounds are. A peer over a limit is slowed, as what it sends is dropped unread;
one that goes on like that, or sends invalid frames again and again, is to be cut off.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum, auto
from math import inf

from specmesh.errors import Busy


class Cost(IntEnum):
    """What is counted."""

    FRAMES = 0
    BYTES = 1  # those of control frames `BODY_WEIGHT` times: JSON takes that much longer to read than ids
    IDS = 2  # drafted ids
    NACKS = 3  # each may be answered with the whole prefix
    HELLOS = 4  # each may be answered with the prefixes of several sessions
    VOCABS = 5
    PINGS = 6
    OPENS = 7
    BAD = 8  # invalid frames


class FrameAction(Enum):
    """What becomes of a frame: taken, dropped, or dropped with the connection it came by."""

    TAKE = auto()
    DROP = auto()
    CUT = auto()


@dataclass(frozen=True, slots=True)
class Rate:
    """So much per second, `burst` at once, `earned` more for each TRUTH or SYNC that the peer is sent, and
    `per_draft` more for each draft that it is asked for there."""

    per_second: float
    burst: float
    earned: float = 0.0
    per_draft: float = 0.0


# No honest drafter comes near them: one draft in a millisecond, the chain of 48 and a step's 25 rows for each TRUTH, a
# frame for each draft and for as many ahead of those asked for, one NACK in 0.1 s for each of some sessions, one PING
# in 10 ms.
RATES: Mapping[Cost, Rate] = {
    Cost.FRAMES: Rate(1000, 2000, earned=4, per_draft=2),
    Cost.BYTES: Rate(2 * 2**20, 16 * 2**20),
    Cost.IDS: Rate(100, 4096, earned=96),
    Cost.NACKS: Rate(100, 100),
    Cost.HELLOS: Rate(5, 20),
    Cost.VOCABS: Rate(8, 64),
    Cost.PINGS: Rate(200, 200),
    Cost.OPENS: Rate(200, 512),
    Cost.BAD: Rate(1, 60),
}
BODY_WEIGHT = 8  # of a control frame's byte: decoding was measured at 4 ns a byte for ids and 18 to 32 for JSON
CUT_AFTER_S = 3.0  # how long a peer may go on beyond a limit before it is cut off
REST_S = 1.0  # without a dropped frame, after which a peer counts as back within its limits
MAX_DRAFTERS = 64
MAX_PER_KEY = 8  # most drafters with the same key: one owner must not keep others out
# per frame: a look-up in an enumeration is a call
_FRAMES, _BYTES, _IDS = Cost.FRAMES, Cost.BYTES, Cost.IDS
MAX_ACCOUNTS = 256  # peers whose use is remembered; beyond them the oldest begins anew


class PeerLimits:
    """What one peer may still send: a level for each cost, and when it was filled last."""

    __slots__ = ("_filled", "_levels", "_over", "_rates", "_refused")

    def __init__(self, rates: Mapping[Cost, Rate] = RATES) -> None:
        self._rates = [rates[cost] for cost in Cost]
        self._levels, self._filled = [rate.burst for rate in self._rates], [0.0] * len(Cost)
        self._over = self._refused = -inf  # since when, and when last, something was dropped

    def frame(self, size: int, cost: Cost | None, amount: float, now: float) -> FrameAction:
        """Judge a frame of `size` bytes that also costs `amount` of `cost`, before anything of it is read."""
        if self._take(now, (_FRAMES, 1), (_BYTES, size), (cost, amount)):
            return FrameAction.TAKE
        if now - self._refused > REST_S:
            self._over = now
        self._refused = now
        return FrameAction.CUT if now - self._over >= CUT_AFTER_S else FrameAction.DROP

    def bad(self, now: float) -> FrameAction:
        """Judge the sender of an invalid frame."""
        return FrameAction.DROP if self._take(now, (Cost.BAD, 1)) else FrameAction.CUT

    def check_open(self, now: float) -> None:
        """Count a request for a session; raise Busy where they come too fast."""
        if not self._take(now, (Cost.OPENS, 1)):
            raise Busy("requests come too fast", "try again in a moment")

    def _take(self, now: float, *costs: tuple[Cost | None, float]) -> bool:
        """Lower levels up to the first that has not enough; return True if all have."""
        levels, filled = self._levels, self._filled
        for cost, amount in costs:
            if cost is None:
                continue
            if now > filled[cost]:
                rate = self._rates[cost]
                levels[cost] = min(
                    levels[cost] + (now - filled[cost]) * rate.per_second, rate.burst
                )
                filled[cost] = now
            if amount > levels[cost]:
                return False
            levels[cost] -= amount
        return True

    def earn(self, drafts: int = 0) -> None:
        """Note that the peer was sent a TRUTH or SYNC which asks for so many drafts."""
        for cost in (_FRAMES, _IDS):
            rate = self._rates[cost]
            self._levels[cost] = min(
                self._levels[cost] + rate.earned + rate.per_draft * drafts, rate.burst
            )


class PeerAccounts:
    """The limits of a verifier's peers, and the attached drafters' `keys`, by the identity of their connection.
    Identities are the peers' own choice. A key is empty where keys are not used."""

    def __init__(self, rates: Mapping[Cost, Rate] = RATES) -> None:
        self.keys: dict[bytes, str] = {}
        self._rates = rates
        self._limits: dict[Hashable, PeerLimits] = {}

    def attach(self, identity: bytes, key: str) -> None:
        """Take a drafter; raise Busy where there are too many."""
        keys = list(self.keys.values())
        if len(keys) >= MAX_DRAFTERS or (key and keys.count(key) >= MAX_PER_KEY):
            raise Busy(f"too many drafters are attached ({len(keys)})", "stop one")
        self.keys[identity] = key

    def limits(self, identity: bytes, key: str | None = None) -> PeerLimits:
        """Return the limits that a peer uses up: its key's, so that more connections bring no more, or its own. key: as
        it has just proved; by default as it had when it was attached."""
        account = (self.keys.get(identity) if key is None else key) or identity
        if account not in self._limits:
            if len(self._limits) >= MAX_ACCOUNTS:
                del self._limits[next(iter(self._limits))]
            self._limits[account] = PeerLimits(self._rates)
        return self._limits[account]


class Throttle:
    """What is done once in `seconds` for each subject, and for `most` subjects."""

    def __init__(self, seconds: float, most: int = 2**20) -> None:
        self._seconds, self._most = seconds, most
        self._done: dict[Hashable, float] = {}

    def due(self, subject: Hashable, now: float) -> bool:
        """Return whether it is to be done now, and take it as done."""
        if now - self._done.get(subject, -inf) < self._seconds:
            return False
        self._done = {one: at for one, at in self._done.items() if now - at < self._seconds}
        if len(self._done) >= self._most:
            return False
        self._done[subject] = now
        return True
