"""Limits of peers: how much of each kind a verifier takes from one peer, and how fast.

Each cost has a bucket. It fills by time and, for the costs of drafting, with each TRUTH that the
peer is sent, so a peer may send as much as rounds can use, however fast they are. The frames of a
peer over a limit are dropped unread, which slows it. A peer that goes on like that, or sends
invalid frames again and again, is to be cut off.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum, auto
from math import inf

from specmesh.core.request_frames import TEXT_IDS_PER_S
from specmesh.errors import Busy

CONTROL_WEIGHT = 8
"""A byte of a control frame counts so many times. Decoding was measured at 4 ns a byte for ids and
18 to 32 for JSON.
"""
BODY_WEIGHT = 2
"""A byte of BODY counts so many times. It is decoded twice: as part of a string, at 3 to 12 ns, and
then mostly as part of a message's text, at 2 to 6. The longest body fits the burst.
"""
CUT_AFTER_S = 3.0  # seconds that a peer may go on beyond a limit before it is cut off
REST_S = 1.0  # seconds without a dropped frame until a peer counts as back within its limits
MAX_DRAFTERS = 64
MAX_PER_KEY = 8  # most drafters with the same key: one owner must not keep others out
MAX_ACCOUNTS = 256  # peers whose use is remembered; beyond them the oldest begins anew


class Cost(IntEnum):
    """The costs that are counted."""

    FRAMES = 0
    BYTES = 1  # weighted, see CONTROL_WEIGHT
    IDS = 2  # drafted ids
    NACKS = 3  # each may be answered with the whole prefix
    HELLOS = 4  # each may be answered with the prefixes of several sessions
    VOCABS = 5
    PINGS = 6
    OPENS = 7
    TEXT_IDS = 8  # ids of requests, in frames of their own
    BAD = 9  # invalid frames


class FrameAction(Enum):
    """The fate of a frame: taken, dropped, or dropped with its connection."""

    TAKE = auto()
    DROP = auto()
    CUT = auto()


@dataclass(frozen=True, slots=True)
class Rate:
    """How a bucket fills.

    per_second: amount for each second. burst: most that it holds.
    earned: amount for each TRUTH or SYNC that the peer is sent.
    per_draft: amount for each draft that the peer is asked for in it.
    """

    per_second: float
    burst: float
    earned: float = 0.0
    per_draft: float = 0.0


RATES: Mapping[Cost, Rate] = {
    Cost.FRAMES: Rate(1000, 2000, earned=4, per_draft=2),
    Cost.BYTES: Rate(2 * 2**20, 16 * 2**20),
    Cost.IDS: Rate(100, 4096, earned=96),
    Cost.NACKS: Rate(100, 100),
    Cost.HELLOS: Rate(5, 20),
    Cost.VOCABS: Rate(8, 64),
    Cost.PINGS: Rate(200, 200),
    Cost.OPENS: Rate(200, 512),
    Cost.TEXT_IDS: Rate(2 * TEXT_IDS_PER_S, 8 * TEXT_IDS_PER_S),
    Cost.BAD: Rate(1, 60),
}
"""No honest drafter comes near these. It makes one draft in a millisecond, the chain of 48 and the
25 rows of a step for each TRUTH, a frame for each draft and for as many ahead of those asked for,
one NACK in 0.1 s for each of some sessions, one PING in 10 ms, and TEXT_IDS_PER_S ids and
BODY_BYTES_PER_S bytes of requests.
"""

# A member of an enumeration is looked up by a call, which would be several for each frame.
_FRAMES = Cost.FRAMES
_BYTES = Cost.BYTES
_IDS = Cost.IDS


class PeerLimits:
    """The amounts that one peer may still send."""

    __slots__ = ("_dropped_at", "_filled_at", "_levels", "_over_since", "_rates")

    def __init__(self, rates: Mapping[Cost, Rate] = RATES) -> None:
        # By cost: its rate, the level of its bucket, and when the bucket was last filled.
        self._rates = [rates[cost] for cost in Cost]
        self._levels = [rate.burst for rate in self._rates]
        self._filled_at = [0.0] * len(Cost)
        self._over_since = -inf
        self._dropped_at = -inf

    def frame(self, size: int, cost: Cost | None, amount: float, now: float) -> FrameAction:
        """Judge a frame before it is read.

        size: in weighted bytes. cost, amount: that it has besides; None for no other.
        """
        wanted: tuple[tuple[Cost, float], ...] = ((_FRAMES, 1), (_BYTES, size))
        if cost is not None:
            wanted = (*wanted, (cost, amount))
        if self._take(wanted, now):
            return FrameAction.TAKE
        if now - self._dropped_at > REST_S:
            self._over_since = now
        self._dropped_at = now
        if now - self._over_since >= CUT_AFTER_S:
            return FrameAction.CUT
        return FrameAction.DROP

    def bad(self, now: float) -> FrameAction:
        """Judge the sender of an invalid frame."""
        return FrameAction.DROP if self._take(((Cost.BAD, 1),), now) else FrameAction.CUT

    def check_open(self, now: float) -> None:
        """Count a request for a session; raise Busy if they come too fast."""
        if not self._take(((Cost.OPENS, 1),), now):
            raise Busy("requests come too fast", "try again in a moment")

    def _take(self, wanted: Iterable[tuple[Cost, float]], now: float) -> bool:
        """Take amounts out of buckets, in order; stop and return False at one that has less."""
        for cost, amount in wanted:
            level = self._levels[cost]
            elapsed = now - self._filled_at[cost]
            if elapsed > 0:
                rate = self._rates[cost]
                level = min(level + elapsed * rate.per_second, rate.burst)
                self._filled_at[cost] = now
            if amount > level:
                self._levels[cost] = level
                return False
            self._levels[cost] = level - amount
        return True

    def earn(self, drafts: int = 0) -> None:
        """Note that the peer was sent a TRUTH or SYNC which asks for so many drafts."""
        for cost in (_FRAMES, _IDS):
            rate = self._rates[cost]
            earned = rate.earned + rate.per_draft * drafts
            self._levels[cost] = min(self._levels[cost] + earned, rate.burst)

    def are_full(self, now: float) -> bool:
        """Return True if the peer may send as much as one that is new."""
        if now - self._dropped_at <= REST_S:
            return False
        buckets = zip(self._rates, self._levels, self._filled_at, strict=True)
        return all(
            level + (now - filled_at) * rate.per_second >= rate.burst
            for rate, level, filled_at in buckets
        )


class PeerAccounts:
    """The limits of a verifier's peers.

    Peers go by the identity of their connection, which they choose themselves.

    keys: of the attached drafters; empty if keys are not used.
    """

    def __init__(self, rates: Mapping[Cost, Rate] = RATES) -> None:
        self.keys: dict[bytes, str] = {}
        self._rates = rates
        self._limits: dict[Hashable, PeerLimits] = {}

    def attach(self, identity: bytes, key: str) -> None:
        """Take a drafter; raise Busy if there are too many."""
        keys = list(self.keys.values())
        too_many_of_key = bool(key) and keys.count(key) >= MAX_PER_KEY
        if len(keys) >= MAX_DRAFTERS or too_many_of_key:
            raise Busy(f"too many drafters are attached ({len(keys)})", "stop one")
        self.keys[identity] = key

    def limits(self, identity: bytes, key: str | None = None) -> PeerLimits:
        """Return the limits that a peer uses up.

        They are those of its key, so that more connections bring no more, or its own without one.

        key: that it has just proved; None for the key with which it was attached.
        """
        if key is None:
            key = self.keys.get(identity)
        account = key or identity
        if account not in self._limits:
            if len(self._limits) >= MAX_ACCOUNTS:
                del self._limits[next(iter(self._limits))]
            self._limits[account] = PeerLimits(self._rates)
        return self._limits[account]

    def forget_idle(self, now: float) -> None:
        """Forget the peers that may send as much as new ones: nothing changes for them."""
        for account, limits in list(self._limits.items()):
            if limits.are_full(now):
                del self._limits[account]
