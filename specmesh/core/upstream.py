"""A verifier of a drafter: whether it is there, and what it has said of itself."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from specmesh.core import events as ev
from specmesh.core.daemon_statistics import DrafterStats
from specmesh.core.requests import VerifierInfo
from specmesh.core.snapshot import Json
from specmesh.core.upstream_sessions import Outlet, UpstreamSessions
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import DaemonUnreachable, SpecmeshError

HELLO_INTERVAL = 0.5  # most seconds between two HELLOs
UNANSWERED = 3.0  # seconds without an answer after which somebody should be told
RENEW = 30.0  # seconds without an answer after which the connection itself is in doubt
UNKNOWN_STEP = 0.05  # seconds of a step where the verifier does not tell
ROWS = 4  # rows that each other session is expected to add to a step, drafts included


@dataclass(frozen=True, slots=True)
class ReportedLoad:
    """What a verifier told of its work. places: sessions it holds at once, 0 where it does not tell; step_s: a step of
    one row; row_s: what each further row adds."""

    sessions: int = 0
    queued: int = 0
    places: int = 0
    step_s: float = 0.0
    row_s: float = 0.0

    def token_seconds(self, own: int) -> float:
        """Seconds per token that one more text can expect, with those that wait for a place before it; own: requests
        of this drafter there, some perhaps newer than the load."""
        others = max(self.sessions + self.queued, own)
        beside = min(others, self.places - 1) if self.places else others
        waits = max(others + 1 - self.places, 0) / self.places if self.places else 0.0
        return ((self.step_s or UNKNOWN_STEP) + self.row_s * ROWS * beside) * (1 + waits)


class Upstream:
    """The verifier at `address`, number `place[0]` of `place[1]`.

    info: what it says of itself; None while it is away. vocabulary: its own, once known. given_up: why nothing more is
    tried. stuck: its loop does not turn. luck: in [0, 1), shortens pauses: drafters must not speak in chorus.
    """

    def __init__(
        self,
        address: str,
        place: tuple[int, int],
        outlet: Outlet,
        stats: DrafterStats,
        luck: Callable[[], float],
        now: float,
    ) -> None:
        self.address, self.number = address, place[0]
        self.info: VerifierInfo | None = None
        self.vocabulary: Vocabulary | None = None
        self.given_up: SpecmeshError | None = None
        self.round_trip, self.stuck = 0.0, False
        self.load = ReportedLoad()
        self.sessions = UpstreamSessions(address, place, outlet, stats)
        self._out, self._stats, self._luck = outlet, stats, luck
        self._told = ev.UpstreamChanged(self.number, 0.0, speaks=False)
        self._met = self._version_refused = self._silence_told = False
        self._next_hello = self._lost_at = self._renewed = now

    # --- what it is

    @property
    def refusal(self) -> str | None:
        """Why the verifier or our own keys keep this drafter out, or why it was given up."""
        return str(self.given_up) if self.given_up is not None else self._out.refusal

    @property
    def trouble(self) -> str:
        silent = f"the verifier at {self.address} does not answer: is it running, and reachable from here?"
        return self.refusal or silent

    def describe(self, **link: object) -> Json:
        """Return its part of `stats --json`; link: what the connection tells."""
        info, load = self.info, self.load
        return {
            "address": self.address,
            "name": info.name if info is not None else None,
            "model": info.model if info is not None else None,
            "refusal": self.refusal,
            **link,
            "sessions": {"live": len(self.sessions.live), "own": self.sessions.own},
            "load": {"sessions": load.sessions, "queued": load.queued, "max": load.places or None},
        }

    # --- whether it is there

    def look(self, now: float, *, refused: str | None, cut: bool, silent: bool) -> None:
        """Judge the connection: refused now, ended, or without a frame for too long."""
        if refused is not None:
            self._note("refused", "warning", error=refused)
            self.lost("refused", now)
        elif cut or silent:
            self.lost("disconnected" if cut else "silent", now)

    def says_hello(self, now: float) -> bool:
        """Return True where a HELLO is to be sent now."""
        if self.info is not None or now < self._next_hello:
            return False
        self._next_hello = now + HELLO_INTERVAL * (1 - self._luck() / 2)
        if self._out.refusal is None:
            if now - self._lost_at >= UNANSWERED and not self._silence_told:
                self._silence_told = True
                meaning = "trying on; is it running there?"
                self._note("verifier_not_answering", "warning", connect=self.address, meaning=meaning)
            if now - self._renewed >= RENEW:
                self._renewed = now
                self._out.reconnect()
        return True

    def welcomed(self, info: VerifierInfo, now: float) -> bool:
        """Begin with a verifier; return False where it is the one that was there: it got more than one HELLO, or knows
        its file's hash by now."""
        before, known = self.info, self.sessions.known
        if before is not None and before.name == info.name:
            self.info = self.sessions.known = replace(before, model_hash=info.model_hash or before.model_hash)
            return False
        self.sessions.interrupt(DaemonUnreachable("the verifier started anew and has forgotten this session"), now)
        self.info = self.sessions.known = info
        if known is not None and not known.same_model(info):
            self._out.tell(ev.ForgetSlots(), now)
        self._stats.reconnects += self._met
        self._met, self._version_refused = True, False
        self._note("verifier_found", verifier=info.name, model=info.model)
        return True

    def speaks(self, vocabulary: Vocabulary | None, now: float, *, ready: bool) -> None:
        """Note what is known of its vocabulary; ready: the draft model speaks its ids. The core hears of it."""
        self.vocabulary = vocabulary
        changed = ev.UpstreamChanged(self.number, self.round_trip, ready)
        if changed != self._told:
            self._told = changed
            self._out.tell(changed, now)

    def refused(self, code: str, error: SpecmeshError, ref: int, now: float) -> bool:
        """Handle an ERROR. Return True for another version: the verifier says so again on a fresh connection."""
        if ref and self.sessions.request_failed(ref, error):
            return False
        if code == "hello":
            self.lost(str(error), now)
        elif code != "version":
            self._note("verifier_error", "warning", code=code, message=str(error))
        elif self.info is None:
            if self._version_refused:
                return True
            self._version_refused = True
            self._note("other_version", "warning", error=str(error), meaning="asking again on a fresh connection")
            self._out.reconnect()
            self._next_hello = now
        return False

    def lost(self, reason: str, now: float) -> None:
        """Note that it went away, if it was there."""
        if self.info is not None:
            self._note("verifier_lost", "warning", reason=reason)
            self._away(DaemonUnreachable(f"the verifier at {self.address} went away"), now)
            self._out.reconnect()
            self._lost_at, self._renewed, self._silence_told = now, now, False

    def give_up(self, error: SpecmeshError, now: float) -> None:
        self.given_up = error
        self._away(error, now)

    def _away(self, error: SpecmeshError, now: float) -> None:
        self.info, self.load = None, ReportedLoad()
        self.sessions.interrupt(error, now)

    def _note(self, event: str, level: str = "info", /, **fields: object) -> None:
        self._out.note(ev.Noted(event, fields, level))
