"""A session at the verifier with its client and drafters, until its client has its report."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from specmesh.api.requests import EventSink, Finished
from specmesh.core.drafting.drafter_pool import SessionDrafters, Standby
from specmesh.core.events import Told
from specmesh.core.report import with_drafting
from specmesh.core.session import VerifierSession
from specmesh.wire.messages import MAX_ALTERNATIVES, MAX_LOGPROBS, MAX_TOKENS, Logprobs, Sync, Truth

CLOSE_GRACE = 0.2  # most seconds that a finished session's report waits for the drafter's CLOSE


@dataclass(slots=True)
class SessionContext:
    """A session: its client, and its drafters.

    owner: the drafter whose client asked for it, None for a client of this daemon. sent_at: time of the last round.
    name: to resume it by; key: it was opened with; either may be empty. asked: drafts were asked for when drafters'
    loads were last counted. unguided: the log has that its grammar can check no more drafts.
    """

    id: int
    machine: VerifierSession
    client: EventSink
    owner: bytes | None
    drafter: bytes | None = None
    sent_at: float | None = None
    bytes_sent: int = 0
    bytes_received: int = 0
    name: str = ""
    key: str = ""
    casting: SessionDrafters[bytes] = field(default_factory=SessionDrafters)
    standby: Standby | None = None
    asked: bool = False
    unguided: bool = False

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        return tuple(self.machine.prefix[: self.machine.n_prompt])

    def frames(self, effect: Told) -> Iterator[Truth | Sync]:
        """Return TRUTH, or SYNC in as many frames as its ids need."""
        if not effect.sync:
            yield Truth(self.id, effect.base, effect.crc, effect.ids, effect.draft_n)
            return
        for at in range(0, max(len(effect.ids), 1), MAX_TOKENS):
            base = effect.base + at
            ids = effect.ids[at : at + MAX_TOKENS]
            yield Sync(self.id, base, self.machine.prefix.crc_at(base), ids, effect.draft_n)

    def logprob_frames(self, base: int, count: int) -> Iterator[Logprobs]:
        known, end = self.machine.logprobs, base + count
        most = max(min(MAX_LOGPROBS, MAX_ALTERNATIVES // ((self.machine.params.logprobs or 0) + 1)), 1)
        for at in range(max(base, known.begin), end, most):
            found = [each for each in known.between(at, min(at + most, end)) if each is not None]
            ids = [token for each in found for token in each.ids]
            yield Logprobs(self.id, at, [each.chosen for each in found], ids, [p for each in found for p in each.top])


class PendingReports:
    """Finished sessions whose reports wait for the drafter's own numbers in CLOSE."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[float, SessionContext, Finished]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, live: SessionContext, finished: Finished, now: float) -> None:
        self._waiting[live.id] = (now + CLOSE_GRACE, live, finished)

    def next_deadline(self) -> float | None:
        return min((deadline for deadline, _, _ in self._waiting.values()), default=None)

    def expire(self, now: float) -> None:
        for session in [session for session, (deadline, _, _) in self._waiting.items() if now >= deadline]:
            self.deliver(session, 0, 0.0)

    def closed(self, session: int, drafter: bytes, drafted: int, draft_s: float, now: float) -> None:
        """Deliver with its drafter's numbers; none can have worked longer than the session lived."""
        if session in self._waiting and self._waiting[session][1].drafter == drafter:
            lived = now - self._waiting[session][1].machine.times.opened
            self.deliver(session, drafted, min(max(draft_s, 0.0), lived))

    def deliver(self, session: int, drafted: int, draft_s: float) -> None:
        _, live, finished = self._waiting.pop(session)
        report = with_drafting(finished.report, drafted, draft_s)
        report |= {"bytes_sent": live.bytes_sent, "bytes_received": live.bytes_received}
        live.client.on_event(Finished(finished.reason, finished.prompt_ids, report))
