"""The clients of a verifier's sessions, its own and those of drafters: requests in, events out.

The core knows clients by numbers; here each number has its request and its sink. The way of a
request:

1. `submit` or `open` checks that it has a place. It is refused at once, or gets a number.
2. A prompt in words leaves as `Encode`. The shell makes ids of it, off the I/O thread, and calls
   `encoded`. A prompt of ids needs none of this.
3. `encoded` checks ids and parameters against the target, and hands the core an `Opening`.
4. The core begins a session, and `give` gets its news: Began, then rounds, then its end. With the
   end the number is forgotten.

A request that leaves in between is forgotten here first. Whatever still comes for its number finds
nothing, and is dropped.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from specmesh.core.fair_queue import Tenant
from specmesh.core.requests import (
    Account,
    ClientEvent,
    EventSink,
    Failed,
    Finished,
    PromptRead,
    Reply,
    Request,
    Scored,
    Started,
    Tokens,
)
from specmesh.core.rounds import Round
from specmesh.core.session_params import TargetLimits, check_request
from specmesh.core.verifier import events as vev
from specmesh.core.verifier.admission import WaitingRoom, most_sessions
from specmesh.errors import Busy, SpecmeshError

REPEAT_S = 0.75
"""Seconds after which a client gets the last report about its prompt again. A step that reads may
take longer.
"""
_LARGER_QUEUE = "try again, or start the verifier with a larger --max-queue"


@dataclass(slots=True, eq=False, kw_only=True)
class ClientRequest:
    """A request until its session ends.

    number: the core's number of its client.
    owner: the drafter whose client asked, by `ref`; None for a client of the verifier's own.
    tenant: for whom it counts. size: bytes that it takes.
    session: the number of its session; 0 before it has one.
    """

    number: int
    request: Request
    client: EventSink
    owner: bytes | None
    ref: int = 0
    tenant: Tenant = ()
    size: int = 0
    session: int = 0

    @property
    def waits(self) -> bool:
        """Return True if it waits for a session; one by its name only is answered at once."""
        return not self.session and not self.request.named_only


@dataclass(slots=True, kw_only=True)
class SessionTraffic:
    """The traffic of a session, counted by the I/O thread.

    sent_at: time of its newest round.
    drafters: those that were sent a frame of it.
    over: the session has ended; its end may be asked for.
    """

    opened: float
    name: str
    sent_at: float | None = None
    bytes_sent: int = 0
    bytes_received: int = 0
    drafters: set[bytes] = field(default_factory=set)
    over: bool = False


@dataclass(slots=True)
class ReportedPrompt:
    """A prompt that is being read.

    report: the last one. The first is of the beginning, and is not sent at once.
    came_at, sent_at: when `repeat` saw it first, and when it was sent last.
    """

    report: PromptRead
    came_at: float | None = None
    sent_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Encode:
    """Make ids of a prompt and of its prediction, and a constraint of its grammar.

    That is for a request that still waits then.

    The result goes to `Clients.encoded`, an error to `Clients.refuse`.
    """

    opening: vev.Opening


ClientsEffect = Encode | Reply | vev.Opening | vev.ClientLeft | vev.ClientPaused
"""The last three are events for the core."""


class Clients:
    """The requests of clients by number, and the traffic of sessions.

    - Besides those that find one of `max_sessions` sessions free, `most` requests may wait. The
      core decides which is next.
    - The clients of one drafter get half of these places at most.
    - A request waits for its own prompt only: those that are encoded sooner begin sooner.

    sessions: by number. requests: by number.
    reading: prompts with reports, by the number of their request.
    """

    def __init__(self, limits: TargetLimits, max_sessions: int, most: int) -> None:
        self.sessions: dict[int, SessionTraffic] = {}
        self.requests: dict[int | None, ClientRequest] = {}  # None is no client's number
        self.reading: dict[int | None, ReportedPrompt] = {}
        self._limits = limits
        self._max_sessions = max_sessions
        self._most = most
        self._stopped: SpecmeshError | None = None
        self._room = WaitingRoom()
        self._numbers = itertools.count(1)

    @property
    def running(self) -> int:
        """Return the number of sessions that run, kept ones included."""
        return sum(not traffic.over for traffic in self.sessions.values())

    @property
    def waiting(self) -> list[ClientRequest]:
        """Return the requests that wait for a session."""
        return [entry for entry in self.requests.values() if entry.waits]

    def owners(self) -> list[bytes | None]:
        """Return the owner of each session that has a client."""
        return [entry.owner for entry in self.requests.values() if entry.session]

    # --- requests of clients

    def submit(
        self,
        texts: Sequence[tuple[Request, EventSink]],
        tenant: Tenant,
        account: Account | None = None,
    ) -> Sequence[ClientsEffect]:
        """Let the requests of an answer wait, as `open` does, or refuse all if one has no room."""
        effects: list[ClientsEffect] = []
        try:
            # All texts of an answer or none: a client that gets half of them cannot use them. One
            # text by itself is checked by `open`.
            if len(texts) > 1:
                self._check_room(tenant, [request for request, _ in texts])
        except Busy as error:
            return [Reply(client, Failed(error)) for _, client in texts]
        for request, client in texts:
            effects += self.open(request, client, tenant=tenant, account=account)
        return effects

    def open(
        self,
        request: Request,
        client: EventSink,
        *,
        owner: bytes | None = None,
        ref: int = 0,
        key: str = "",
        tenant: Tenant = (),
        account: Account | None = None,
    ) -> Sequence[ClientsEffect]:
        """Let a request wait for a session, or for the one that it names, which may be there."""
        entry = ClientRequest(
            number=next(self._numbers),
            request=request,
            client=client,
            owner=owner,
            ref=ref,
            tenant=tenant,
            size=request.own_size,
        )
        try:
            self._check(entry)
        except SpecmeshError as error:
            return [Reply(client, Failed(error))]
        self.requests[entry.number] = entry
        if entry.waits:
            self._room.enter(entry.tenant, entry.size)
        ids: tuple[int, ...] = ()
        if not request.named_only:  # without ids no new session begins
            ids = request.prompt_ids or ()
        opening = vev.Opening(
            client=entry.number,
            request=request,
            ids=ids,
            n_prompt=len(ids),
            owner=owner,
            key=key,
            tenant=tenant,
            account=account,
        )
        if request.named_only:
            return [opening]
        # Without words and without a grammar there is nothing to wait for.
        is_ids = request.prompt_ids is not None and not request.prediction
        if is_ids and request.params.grammar is None:
            return self.encoded(opening)
        return [Encode(opening)]

    def _check(self, entry: ClientRequest) -> None:
        """Raise an error if a request may not wait: the verifier stops, or too many wait."""
        if self._stopped is not None:
            raise self._stopped
        # It goes on with a session that is here, so it takes no place of others.
        if entry.request.named_only or self._has_place(entry.request.id):
            return
        self._check_room(entry.tenant, [entry.request])
        if entry.owner is None:
            return
        waiting = [other.owner for other in self.waiting]
        own = self.owners().count(entry.owner) + waiting.count(entry.owner)
        # A drafter speaks for many clients by one connection. Half of the places are left for
        # others.
        if own >= most_sessions(self._max_sessions) + (self._most + 1) // 2:
            raise Busy(f"{own} requests of this drafter run or wait", _LARGER_QUEUE)

    def _check_room(self, tenant: Tenant, requests: Sequence[Request]) -> None:
        """Raise Busy if requests would find no room together."""
        owners = self.owners()
        count = self._room.count
        full = (
            f"all {self._max_sessions} sessions are taken and {count} requests wait:"
            f" {_LARGER_QUEUE}"
        )
        places = self._most + max(self._max_sessions - len(owners), 0)
        size = sum(request.own_size for request in requests)
        self._room.check(tenant, size, places, full, count=len(requests))

    def _has_place(self, name: str) -> bool:
        """Return True if a session has this name, and no other request waits for it."""
        if not name or all(traffic.name != name for traffic in self.sessions.values()):
            return False
        return all(entry.request.id != name for entry in self.waiting)

    def _remove(self, number: int | None) -> ClientRequest | None:
        """Forget a request, and the room that it takes; return it, None if it is gone already."""
        self.reading.pop(number, None)
        entry = self.requests.pop(number, None)
        if entry is not None and entry.waits:
            self._room.leave(entry.tenant, entry.size)
        return entry

    def encoded(self, opening: vev.Opening) -> Sequence[ClientsEffect]:
        """Hand a request with its prompt's ids to the core, unless it was withdrawn."""
        if opening.client not in self.requests:
            return []
        request = opening.request
        # A resumed text is the prompt's continuation: the target reads both.
        ids = (*opening.ids, *request.generated)
        try:
            check_request(request.params, ids, len(opening.ids), self._limits)
        except SpecmeshError as error:
            return self.refuse(opening.client, error)
        return [replace(opening, ids=ids)]

    def cancel(self, unwanted: Callable[[ClientRequest], bool]) -> Sequence[ClientsEffect]:
        """Forget requests; those that have a session still get its end."""
        gone = list(filter(unwanted, self.requests.values()))
        for entry in gone:
            if not entry.session:
                # The others have a session, whose end comes from the core and removes them.
                self._remove(entry.number)
        return [vev.ClientLeft(entry.number) for entry in gone]

    def pause(self, client: EventSink, *, paused: bool) -> Sequence[ClientsEffect]:
        """Let a client's session wait, or go on."""
        events: list[ClientsEffect] = []
        for entry in self.requests.values():
            if entry.client is client and entry.session:
                events.append(vev.ClientPaused(entry.number, paused))
        return events

    def withdraw(self, owner: bytes, ref: int) -> Sequence[ClientsEffect]:
        """Forget the request that a drafter sent with `ref`, unless it has a session."""
        return self.cancel(
            lambda entry: entry.owner == owner and entry.ref == ref and not entry.session
        )

    def abandon(self, owner: bytes) -> None:
        """Forget the requests of a drafter that has gone; the core keeps or ends their sessions."""
        for entry in list(self.requests.values()):
            if entry.owner == owner:
                self._remove(entry.number)

    def stop(self, error: SpecmeshError) -> Sequence[ClientsEffect]:
        """Refuse the requests that wait, and all that come."""
        self._stopped = error
        effects: list[ClientsEffect] = []
        for entry in list(self.requests.values()):
            if not entry.session:
                effects += self.refuse(entry.number, error)
                effects.append(vev.ClientLeft(entry.number))  # the core may be about to begin it
        return effects

    def end(self, error: SpecmeshError) -> Sequence[Reply]:
        """End all requests with an error."""
        replies: list[Reply] = []
        for number in list(self.requests):
            replies += self.refuse(number, error)
        return replies

    # --- effects of the core

    def refuse(self, number: int | None, error: SpecmeshError) -> Sequence[Reply]:
        """End a request with an error."""
        return self._end(number, Failed(error))

    def _end(self, number: int | None, event: Failed | Finished) -> Sequence[Reply]:
        """Forget a request, whose client gets this event last."""
        entry = self._remove(number)
        return [] if entry is None else [Reply(entry.client, event)]

    def give(self, number: int | None, news: vev.ClientNews) -> Sequence[Reply]:
        """Give a client the news of its session."""
        event: ClientEvent
        if self.reading:
            # Any news ends a report's turn. What is repeated must be the newest.
            self.reading.pop(number, None)
        match news:
            case Round():
                event = news.text
            case PromptRead():
                event = news
                if number in self.requests:
                    self.reading[number] = ReportedPrompt(news)
            case Scored():
                event = news
            case vev.Began():
                return self._began(number, news)
            case vev.SessionEnded():
                return self._ended(number, news)
            case _:
                assert_never(news)
        entry = self.requests.get(number)
        return [] if entry is None else [Reply(entry.client, event)]

    def repeat(self, now: float) -> Sequence[Reply]:
        """Return the reports about prompts that are due again, with the time that has passed."""
        replies: list[Reply] = []
        for number, reading in self.reading.items():
            if reading.came_at is None:
                reading.came_at = now
                reading.sent_at = now
            elif now >= reading.sent_at + REPEAT_S:
                reading.sent_at = now
                seconds = reading.report.seconds + now - reading.came_at
                report = reading.report._replace(seconds=seconds)
                replies.append(Reply(self.requests[number].client, report))
        return replies

    def _began(self, number: int | None, began: vev.Began) -> Sequence[Reply]:
        """Give a request its session; a client that had the session before is forgotten.

        A request that has left meanwhile gets nothing: the core hears of that next.
        """
        if began.adopted:  # the client before gets no more of it
            for entry in list(self.requests.values()):
                # A session has one client: the one that asked last, which has come back.
                if entry.session == began.session:
                    self._remove(entry.number)
        else:
            self.sessions[began.session] = SessionTraffic(opened=began.opened, name=began.name)
        new = self.requests.get(number)
        if new is None:
            return []
        if new.waits:
            self._room.leave(new.tenant, new.size)
        new.session = began.session
        if began.reading is not None:
            self.reading[number] = ReportedPrompt(began.reading)
        prompt = began.prompt_ids
        started = Started(began.session, len(prompt), prompt, began.params)
        replies = [Reply(new.client, started)]
        if began.ids:
            tokens = Tokens(began.ids, 0, began.logprobs, began.sources)
            replies.append(Reply(new.client, tokens))
        return replies

    def _ended(self, number: int | None, end: vev.SessionEnded) -> Sequence[Reply]:
        """Send the end of a session, with the report and the bytes that it took on the wire."""
        report = dict(end.report)
        traffic = self.sessions.get(end.session)
        if traffic is not None:
            traffic.over = True
            # The core does not see bytes. They are counted on this side.
            report["bytes_sent"] = traffic.bytes_sent
            report["bytes_received"] = traffic.bytes_received
        if end.error is not None:
            return self.refuse(number, end.error)
        return self._end(number, Finished(end.reason, end.prompt_ids, report))

    def forget(self, session: int) -> None:
        """Forget a session that cannot be resumed."""
        self.sessions.pop(session, None)
