"""The verifier's clients, here and at drafters: what the core says of their sessions, as their events."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from specmesh.api.requests import EventSink, Failed, Finished, Request, Started, Tokens
from specmesh.core import verifier_events as vev
from specmesh.core.report import with_drafting
from specmesh.daemons.runtime.prompts import ClientRequest, EncodedPrompt
from specmesh.daemons.runtime.request_queue import RequestQueue, opening_of
from specmesh.errors import NoSuchText, SpecmeshError

CLOSE_GRACE = 0.2  # most seconds that a finished session's report waits for the drafter's CLOSE


@dataclass(slots=True)
class SessionTraffic:
    """What is counted here of a session. sent_at: time of its last round. drafters: those that were told of it."""

    opened: float
    name: str
    sent_at: float | None = None
    bytes_sent: int = 0
    bytes_received: int = 0
    drafters: set[bytes] = field(default_factory=set)
    over: bool = False


@dataclass(slots=True)
class _Report:
    """A finished session's, which waits for the numbers of its drafter in CLOSE."""

    until: float
    end: vev.SessionEnded
    client: EventSink
    traffic: SessionTraffic


class Clients:
    """Requests by number, sessions by id, and reports on their way. tell: hands events to the core."""

    def __init__(self, queue: RequestQueue, tell: Callable[[vev.Happened], None]) -> None:
        self._queue, self._tell = queue, tell
        self._stopped: SpecmeshError | None = None
        self.sessions: dict[int, SessionTraffic] = {}
        self._requests: dict[int, ClientRequest] = {}
        self._named: dict[str, int] = {}  # sessions that may be resumed
        self._reports: dict[int, _Report] = {}
        self._numbers = itertools.count(1)

    def __bool__(self) -> bool:
        return bool(self._requests or self._reports)

    @property
    def live(self) -> int:
        """Sessions that run, those that are kept too."""
        return sum(not traffic.over for traffic in self.sessions.values())

    @property
    def waiting(self) -> int:
        """Requests without a session."""
        return len(self._queue)

    # --- what clients ask for

    def open(self, request: Request, client: EventSink, owner: bytes | None, ref: int, key: str, now: float) -> None:
        """Resume the session that a request names, else let it wait for one."""
        if self._stopped is not None:
            client.on_event(Failed(self._stopped))
            return
        asked = ClientRequest(next(self._numbers), request, client, owner, ref, key)
        self._requests[asked.number] = asked
        if request.id in self._named:
            self._tell(opening_of(asked, request.generated))
        else:
            self._enqueue(asked, now)

    def not_held(self, number: int, now: float) -> None:
        """The session that a request names has gone meanwhile."""
        if number in self._requests:
            self._enqueue(self._requests[number], now)

    def _enqueue(self, asked: ClientRequest, now: float) -> None:
        try:
            if self._stopped is not None:
                raise self._stopped
            if asked.request.named_only:
                raise NoSuchText
            opening = self._queue.add(asked, self.owners(), now)
        except SpecmeshError as error:
            self.refuse(asked.number, error, now)
            return
        if opening is not None:
            self._tell(opening)

    def encoded(self, encoded: EncodedPrompt, now: float) -> None:
        try:
            opening = self._queue.encoded(encoded)
        except SpecmeshError as error:
            self.refuse(encoded.asked.number, error, now)
            return
        if opening is not None:
            self._tell(opening)

    def cancel(self, unwanted: Callable[[ClientRequest], bool]) -> None:
        for number in self.withdraw(unwanted):
            self._tell(vev.ClientLeft(number))

    def withdraw(self, unwanted: Callable[[ClientRequest], bool]) -> list[int]:
        """Forget requests that have no session; return the numbers of all that are unwanted."""
        self._queue.withdraw(unwanted)
        gone = [asked for asked in self._requests.values() if unwanted(asked)]
        for asked in gone:
            if not asked.session:
                del self._requests[asked.number]
        return [asked.number for asked in gone]

    def stop(self, error: SpecmeshError) -> None:
        """Refuse those that wait, and whoever comes."""
        self._stopped = error
        for asked in self._queue.withdraw(lambda _: True):
            self.refuse(asked.number, error, 0.0)
            self._tell(vev.ClientLeft(asked.number))  # the core may be about to begin it

    def owners(self) -> list[bytes | None]:
        """Who asked for the sessions that run, without those that are kept, which give way."""
        return [asked.owner for asked in self._requests.values() if asked.session]

    def end(self, error: SpecmeshError) -> None:
        """Nobody hears more than this."""
        for number in list(self._requests):
            self.refuse(number, error, 0.0)
        self.expire(float("inf"))

    # --- what the core says

    def refuse(self, number: int, error: SpecmeshError, now: float) -> None:
        self._queue.left(number, now)
        asked = self._requests.pop(number, None)
        if asked is not None:
            asked.client.on_event(Failed(error))

    def began(self, began: vev.Began, now: float) -> None:
        self._queue.left(began.client, now)
        if began.adopted:
            self.left(began.session)
        else:
            self.sessions[began.session] = SessionTraffic(began.opened, began.name)
            if began.name:
                self._named[began.name] = began.session
        asked = self._requests.get(began.client)
        if asked is None:
            return
        asked.session = began.session
        asked.client.on_event(Started(began.session, len(began.prompt_ids), began.prompt_ids, began.params))
        if began.said:
            asked.client.on_event(Tokens(began.said, 0, None, began.logprobs))

    def committed(self, done: vev.Committed) -> SessionTraffic | None:
        """Give a round to its session's client; return what is counted of the session."""
        asked = self._requests.get(done.client) if done.client is not None else None
        if asked is not None:
            emit = done.emit
            tokens = Tokens(emit.ids, min(emit.accepted, len(emit.ids)), emit.drafts, emit.logprobs)
            asked.client.on_event(tokens)
        return self.sessions.get(done.session)

    def left(self, session: int) -> None:
        """Its client, at a drafter that is gone or has asked for it again, hears no more of it."""
        for asked in [one for one in self._requests.values() if one.session == session]:
            del self._requests[asked.number]

    def forgotten(self, session: int) -> None:
        traffic = self.sessions.pop(session, None)
        if traffic is not None and self._named.get(traffic.name) == session:
            del self._named[traffic.name]

    def ended(self, end: vev.SessionEnded, now: float) -> None:
        """Tell a session's client of its end, with the report; that waits a moment for the drafter's CLOSE."""
        asked = self._requests.pop(end.client, None) if end.client is not None else None
        traffic = self.sessions.get(end.session)
        if traffic is not None:
            traffic.over = True
        if asked is None:
            return
        if end.error is not None:
            asked.client.on_event(Failed(end.error))
            return
        if end.again or traffic is None:
            asked.client.on_event(Finished(end.reason, end.prompt_ids, end.report))
            return
        self._reports[end.session] = _Report(now + CLOSE_GRACE, end, asked.client, traffic)
        if end.drafter is None or end.owner is not None or end.reason == "cancelled":
            self._deliver(end.session, 0, 0.0)

    # --- reports

    def expire(self, now: float) -> None:
        for session in [session for session, report in self._reports.items() if now >= report.until]:
            self._deliver(session, 0, 0.0)

    def closed(self, session: int, drafter: bytes, drafted: int, draft_s: float, now: float) -> None:
        """Deliver with its drafter's numbers; none can have worked longer than the session lived."""
        report = self._reports.get(session)
        if report is not None and report.end.drafter == drafter:
            self._deliver(session, drafted, min(max(draft_s, 0.0), now - report.traffic.opened))

    def _deliver(self, session: int, drafted: int, draft_s: float) -> None:
        report = self._reports.pop(session)
        numbers = with_drafting(report.end.report, drafted, draft_s)
        numbers |= {"bytes_sent": report.traffic.bytes_sent, "bytes_received": report.traffic.bytes_received}
        report.client.on_event(Finished(report.end.reason, report.end.prompt_ids, numbers))
