"""Who may speak on a verifier's wire, and how much: keys, the limits of each peer, and connections that are cut."""

from dataclasses import dataclass

import structlog

from specmesh.core.peer_limits import BODY_WEIGHT, Cost, FrameAction, LimitsByAccount, PeerLimits
from specmesh.daemons.link.auth import BAN_SECONDS, ZapGuard
from specmesh.daemons.link.curve import TcpConnection, user_of
from specmesh.daemons.link.transport import Inlet
from specmesh.wire.codec import CRC, HEADER
from specmesh.wire.messages import Kind

log = structlog.get_logger("specmesh.verifier")

CUT_INTERVAL = 1.0  # seconds until a peer is cut again: what is read of it meanwhile names another's descriptor perhaps
LOG_INTERVAL = 1.0  # seconds between two log lines about peers that were cut off: they must not fill a disk

_COSTS: dict[int, Cost] = {
    Kind.DRAFT: Cost.IDS,
    Kind.SHADOW: Cost.IDS,
    Kind.DRAFT_PROBS: Cost.IDS,
    Kind.NACK: Cost.NACKS,
    Kind.HELLO: Cost.HELLOS,
    Kind.VOCAB: Cost.VOCABS,
    Kind.PING: Cost.PINGS,
}


@dataclass(frozen=True, slots=True)
class _DrafterEnd:
    """The key that a drafter has proved, where keys are used, its connection where that is known, and its limits."""

    key: str
    connection: TcpConnection | None
    limits: PeerLimits


class PeerGate:
    """Judges the messages of an inlet by their sender: the newest message's, unless another is named.

    With a guard, a frame counts only while its sender's key is allowed, whatever its handshake has proved before.
    Frames beyond core.peer_limits are dropped, and who goes on is cut off, with keys for some time. gone: who went
    away or was cut off, and why, until `Router.gone` asks.
    """

    def __init__(self, inlet: Inlet, guard: ZapGuard | None) -> None:
        self._inlet, self._guard = inlet, guard
        self._ends: dict[bytes, _DrafterEnd] = {}
        self._allowed = frozenset[str]() if guard is None else guard.allowed
        if guard is not None:
            guard.introduced = frozenset()
        self._limits = LimitsByAccount()
        self._cut: dict[bytes, float] = {}
        self._logged = -LOG_INTERVAL
        self.gone: dict[bytes, str] = {}

    def attach(self, identity: bytes) -> str:
        """Remember the sender as a drafter; return its key's name, empty where it has none."""
        frame = self._inlet.last()
        key = user_of(frame) if self._guard is not None else ""
        self._ends[identity] = _DrafterEnd(key, TcpConnection.of(frame), self._limits[key or identity])
        self._tell_introduced()
        return self._guard.names.get(key, "") if self._guard is not None else ""

    def detach(self, identity: bytes) -> None:
        if self._ends.pop(identity, None) is not None:
            self._tell_introduced()

    def key_of(self, identity: bytes) -> str:
        """Return the key that a drafter has proved; empty where keys are not used, and for anybody else."""
        end = self._ends.get(identity)
        return end.key if end is not None else ""

    def same_key(self, identity: bytes) -> int:
        """Count the drafters with the key of this one, or of the sender; 0 where keys are not used."""
        key = self._sender(identity)
        return sum(end.key == key for end in self._ends.values()) if key else 0

    def expel(self) -> None:
        """Cut drafters whose key has been revoked since the last call."""
        if self._guard is None or self._guard.allowed is self._allowed:
            return
        self._allowed = self._guard.allowed
        for identity in [identity for identity, end in self._ends.items() if end.key not in self._allowed]:
            self.hang_up(identity)
            self.gone[identity] = "revoked"

    def hang_up(self, identity: bytes) -> None:
        """End the connection of a drafter that has fallen silent: its end may never."""
        end = self._ends.get(identity)
        if end is not None and end.connection is not None:
            end.connection.cut()

    def objection(self, parts: list[bytes], now: float) -> str | None:
        """Return why the newest message is not to be decoded, as a label of a counter; None if it is."""
        identity = parts[0]
        if self._guard is not None and not self._admitted(identity, self._guard, now):
            return "key"
        if len(parts) != 2:
            self.bad(identity, now)
            return "parts"
        frame = parts[1]
        kind = frame[3] if len(frame) >= HEADER.size else 0
        cost = _COSTS.get(kind)
        amount = max(_ids_in(frame), 1) if cost is Cost.IDS else 1
        size = len(frame) * (BODY_WEIGHT if kind >= Kind.HELLO else 1)
        action = self._limits_of(identity).frame(size, cost, amount, now)
        if action is FrameAction.CUT:
            self._cut_off(identity, now)
        return None if action is FrameAction.TAKE else "rate"

    def bad(self, identity: bytes, now: float) -> None:
        """Count a sender's last message, which was no frame, or none for a verifier."""
        if self._limits_of(identity).bad(now) is FrameAction.CUT:
            self._cut_off(identity, now)

    def may_open(self, identity: bytes, now: float) -> bool:
        """Return True, and count it, if a drafter may ask for one more session so soon."""
        return self._limits_of(identity).take(Cost.OPENS, 1, now)

    def earn(self, identity: bytes, drafts: int) -> None:
        """A drafter is sent a TRUTH or SYNC, which asks for so many drafts."""
        if identity in self._ends:
            self._ends[identity].limits.earn(drafts)

    def _admitted(self, identity: bytes, guard: ZapGuard, now: float) -> bool:
        """May the sender speak, and as this drafter? Identities are the peers' own choice."""
        key = user_of(self._inlet.last())
        if not guard.admits(key):
            self._cut_once(identity, now)
            return False
        known = self._ends.get(identity)
        return known is None or known.key == key

    def _cut_off(self, identity: bytes, now: float) -> None:
        """End the connection of a sender of too much; its key stays out for a while."""
        if not self._cut_once(identity, now):
            return
        self.gone[identity] = "flooding"
        key, told = self._sender(identity), dict[str, object]()
        if self._guard is not None:
            self._guard.ban(key)
            told = {"key": self._guard.names.get(key, key), "barred_s": BAN_SECONDS}
        if now - self._logged >= LOG_INTERVAL:
            self._logged = now
            log.warning("peer_cut_off", address=self._inlet.sender(), meaning="it sent too much", **told)

    def _cut_once(self, identity: bytes, now: float) -> bool:
        """Cut the sender's connection; return False if that was just done."""
        if now - self._cut.get(identity, -CUT_INTERVAL) < CUT_INTERVAL:
            return False
        self._cut = {other: at for other, at in self._cut.items() if now - at < CUT_INTERVAL} | {identity: now}
        end = self._ends.get(identity)
        connection = end.connection if end is not None else TcpConnection.of(self._inlet.last())
        if connection is not None:
            connection.cut()
        return True

    def _sender(self, identity: bytes) -> str:
        """The key that a drafter, or else the sender, has proved; empty where keys are not used."""
        if self._guard is None or identity in self._ends:
            return self.key_of(identity)
        return user_of(self._inlet.last())

    def _limits_of(self, identity: bytes) -> PeerLimits:
        """The limits that a peer uses up: its key's, so that more connections bring no more, or else its own."""
        end = self._ends.get(identity)
        return end.limits if end is not None else self._limits[self._sender(identity) or identity]

    def _tell_introduced(self) -> None:
        if self._guard is not None:
            connections = {end.connection for end in self._ends.values()}
            known = frozenset(connection for connection in connections if connection is not None)
            self._guard.introduced = known if None not in connections else None


def _ids_in(frame: bytes) -> int:
    """How many ids a frame of drafts has. One whose length does not bear out its count is refused when it is decoded,
    and what else it may have is counted in bytes."""
    if frame[3] == Kind.DRAFT_PROBS:
        return int.from_bytes(frame[16:18], "little")
    return (len(frame) - HEADER.size - CRC.size) // 4
