"""A verifier of a drafter: whether it is there, and what it has said of itself."""

from collections.abc import Callable
from dataclasses import replace
from enum import Enum

from specmesh.core import events as ev
from specmesh.core.drafting.verifier_choice import ReportedLoad, VerifierLoad
from specmesh.core.requests import VerifierInfo
from specmesh.core.snapshot import Json
from specmesh.core.upstream_sessions import DraftCounts, Outlet, PaceMeter, UpstreamSessions
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import DaemonUnreachable, LocalProtocolError, SpecmeshError

FIRST = 0.25  # seconds until the second HELLO, and between two tries while nobody is connected
LONGEST = 2.0  # most seconds between two HELLOs
STEADY = 5.0  # seconds a verifier must have been there for its loss to be answered by a HELLO at once
UNANSWERED = 3.0  # seconds without an answer after which somebody should be told
RENEW = 30.0  # seconds without an answer after which the connection itself is in doubt


class UpstreamState(Enum):
    AWAY = "away"
    THERE = "there"
    GIVEN_UP = "given up"


NEXT_STATES: dict[UpstreamState, frozenset[UpstreamState]] = {
    # by WELCOME; by another version twice, or a vocabulary that does not suit
    UpstreamState.AWAY: frozenset((UpstreamState.THERE, UpstreamState.GIVEN_UP)),
    # by the WELCOME of one that started anew; by a refusal, a broken connection, silence, BYE or ERROR hello; as above
    UpstreamState.THERE: frozenset(UpstreamState),
    UpstreamState.GIVEN_UP: frozenset(),
}


class HelloTimer:
    """The pauses between HELLOs, doubled each time and shortened by `luck` in [0, 1): drafters must not speak in
    chorus."""

    def __init__(self, luck: Callable[[], float], now: float) -> None:
        self.due = now
        self._luck = luck
        self._pause = FIRST
        self._since = self._answered = self._renewed = now
        self._told = False

    def said(self, now: float, *, sent: bool) -> None:
        """Note that a HELLO was due; `sent`: somebody was connected to take it."""
        self.due = now + (self._pause if sent else FIRST) * (1 - self._luck() / 2)
        if sent:
            self._pause = min(2 * self._pause, LONGEST)

    def answered(self, now: float) -> None:
        self._answered = now

    def lost(self, now: float) -> None:
        """It is gone. One that comes and goes is asked less and less often, too."""
        if now - self._answered >= STEADY:
            self._pause = FIRST
            self.due = now
        else:
            self.said(now, sent=True)
        self._since, self._renewed, self._told = now, now, False

    def unanswered(self, now: float) -> bool:
        """Whether somebody should be told that there was no answer for long; true once."""
        if self._told or now - self._since < UNANSWERED:
            return False
        self._told = True
        return True

    def doubtful(self, now: float) -> bool:
        """Whether to try a fresh connection; true once in RENEW seconds."""
        if now - self._renewed < RENEW:
            return False
        self._renewed = now
        return True


class Upstream:
    """The verifier at `address`, number `place[0]` of `place[1]`.

    info: what it says of itself; None while it is away. vocabulary: its own, once known. given_up: why nothing more is
    tried. stuck: its loop does not turn.
    """

    def __init__(
        self,
        address: str,
        place: tuple[int, int],
        outlet: Outlet,
        counts: DraftCounts,
        luck: Callable[[], float],
        now: float,
    ) -> None:
        self.address, self.number = address, place[0]
        self.state = UpstreamState.AWAY
        self.info: VerifierInfo | None = None
        self.vocabulary: Vocabulary | None = None
        self.given_up: SpecmeshError | None = None
        self.round_trip, self.stuck = 0.0, False
        self.greeting = HelloTimer(luck, now)
        self.sessions = UpstreamSessions(address, place, outlet, counts)
        self._out, self._counts = outlet, counts
        self._told = ev.UpstreamChanged(self.number, 0.0, speaks=False)
        self._met = self._version_refused = False
        self._own_at_load = 0

    # --- what it is

    @property
    def n_ctx(self) -> int:
        """Ids that a session can hold there; 0 while it is away."""
        return self.info.n_ctx if self.info is not None else 0

    @property
    def refusal(self) -> str | None:
        """Why the verifier or our own keys keep this drafter out, or why it was given up."""
        return str(self.given_up) if self.given_up is not None else self._out.refusal

    @property
    def trouble(self) -> str:
        silent = f"the verifier at {self.address} does not answer: is it running, and reachable from here?"
        return self.refusal or silent

    def outlook(self, now: float) -> VerifierLoad:
        rounds, committed = self._counts.totals.rounds, self._counts.totals.committed
        length = max(committed / rounds, 1.0) if rounds else 1.0
        sessions = self.sessions
        ours = sessions.own - self._own_at_load
        return VerifierLoad(sessions.load, ours, self.round_trip, sessions.meter.pace(now), length)

    def describe(self, now: float, **link: object) -> Json:
        """Return its part of `stats --json`; link: what the connection tells."""
        info, sessions = self.info, self.sessions
        load, pace = sessions.load, sessions.meter.pace(now)
        return {
            "address": self.address,
            "name": info.name if info is not None else None,
            "model": info.model if info is not None else None,
            "refusal": self.refusal,
            **link,
            "sessions": {"live": len(sessions.live), "own": sessions.own},
            "load": {"sessions": load.sessions, "queued": load.queued, "max": load.places or None},
            "token_ms": round(pace.token_s * 1e3, 3) if pace is not None else None,
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
        """Return True where a HELLO is due."""
        if self.info is not None or now < self.greeting.due:
            return False
        if self.greeting.unanswered(now) and self._out.refusal is None:
            meaning = "trying on; is it running there?"
            self._note("verifier_not_answering", "warning", connect=self.address, meaning=meaning)
        if self.greeting.doubtful(now) and self._out.refusal is None:
            self._out.reconnect()
        return True

    def welcomed(self, info: VerifierInfo, now: float) -> bool:
        """Begin with a verifier; return False where it is the one that was there: it got more than one HELLO, or knows
        its file's hash by now."""
        before, known = self.info, self.sessions.known
        if before is not None and before.name == info.name:
            self.info = self.sessions.known = replace(before, model_hash=info.model_hash or before.model_hash)
            return False
        self._enter(UpstreamState.THERE)
        self.sessions.interrupt(DaemonUnreachable("the verifier started anew and has forgotten this session"), now)
        self.info = self.sessions.known = info
        if known is not None and not known.same_model(info):
            self._out.tell(ev.ForgetSlots(), now)
        if before is not None:
            self._counts.peer_lost()
        if self._met:
            self._counts.peer_came()
        self._met, self._version_refused = True, False
        self.greeting.answered(now)
        self._note("verifier_found", verifier=info.name, model=info.model)
        return True

    def speaks(self, vocabulary: Vocabulary | None, now: float, *, ready: bool) -> None:
        """Note what is known of its vocabulary; ready: the draft model speaks its ids. The core hears of it."""
        self.vocabulary = vocabulary
        changed = ev.UpstreamChanged(self.number, self.round_trip, ready)
        if changed != self._told:
            self._told = changed
            self._out.tell(changed, now)

    def loaded(self, load: ReportedLoad, *, stuck: bool) -> None:
        self.sessions.load, self._own_at_load, self.stuck = load, self.sessions.own, stuck

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
            self.greeting.due = now
        return False

    def lost(self, reason: str, now: float) -> None:
        """Note that it went away, if it was there."""
        if self.info is not None:
            self._enter(UpstreamState.AWAY)
            self._note("verifier_lost", "warning", reason=reason)
            self._away(DaemonUnreachable(f"the verifier at {self.address} went away"), now)
            self._out.reconnect()
            self.greeting.lost(now)

    def give_up(self, error: SpecmeshError, now: float) -> None:
        self._enter(UpstreamState.GIVEN_UP)
        self.given_up = error
        self._away(error, now)

    def _enter(self, state: UpstreamState) -> None:
        if state not in NEXT_STATES[self.state]:
            raise LocalProtocolError(f"{self.address} is {self.state.value}: it cannot be {state.value}")
        self.state = state

    def _away(self, error: SpecmeshError, now: float) -> None:
        if self.info is not None:
            self._counts.peer_lost()
        self.info, self.sessions.load, self.sessions.meter = None, ReportedLoad(), PaceMeter()
        self.sessions.interrupt(error, now)

    def _note(self, event: str, level: str = "info", /, **fields: object) -> None:
        self._out.note(ev.Noted(event, fields, level))
