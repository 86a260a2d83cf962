"""The verifier's clients, here and at drafters: what the core says of their sessions, as their events."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from specmesh.core.fair_queue import Tenant
from specmesh.core.requests import EventSink, Failed, Finished, Reply, Request, Started, Tokens
from specmesh.core.session_params import TargetLimits, check_request
from specmesh.core.verifier import events as vev
from specmesh.core.verifier.admission import WaitingRoom, most_sessions
from specmesh.errors import Busy, SpecmeshError


@dataclass(slots=True, eq=False)
class ClientRequest:
    """A request until its session ends. `number` names its client to the core. owner: the drafter
    whose client asked, by `ref`; None for a client here. tenant: whom it counts for. size: bytes
    that it takes. session: 0 before it has one."""

    number: int
    request: Request
    client: EventSink
    owner: bytes | None
    ref: int = 0
    tenant: Tenant = ()
    size: int = 0
    session: int = 0


@dataclass(slots=True)
class SessionTraffic:
    """What is counted here of a session. sent_at: time of its last round. drafters: those that have heard of it."""

    opened: float
    name: str
    sent_at: float | None = None
    bytes_sent: int = 0
    bytes_received: int = 0
    drafters: set[bytes] = field(default_factory=set)
    over: bool = False


@dataclass(frozen=True, slots=True)
class Encode:
    """Make ids of a prompt and a constraint of its grammar, if its request is still there when it is its turn. They
    come back by `encoded`, or why not by `refuse`."""

    opening: vev.Opening


ClientsEffect = Encode | Reply | vev.Opening | vev.ClientLeft | vev.ClientPaused
"""What is to be done; the last three the core is to hear."""


class Clients:
    """Requests by number, sessions by id. Beside those that find one of `max_sessions` free `most`
    requests may wait; the core decides who is next. A drafter's own clients get half of these places
    at most. A prompt that takes long to encode holds up nobody: those that are ready overtake it."""

    def __init__(self, limits: TargetLimits, max_sessions: int, most: int) -> None:
        self._limits, self._max_sessions, self._most = limits, max_sessions, most
        self._stopped: SpecmeshError | None = None
        self.sessions: dict[int, SessionTraffic] = {}
        self.requests: dict[int, ClientRequest] = {}
        self._waiting: dict[int, ClientRequest] = {}  # those that need a session of their own
        self._room = WaitingRoom()
        self._numbers = itertools.count(1)

    @property
    def live(self) -> int:
        """Sessions that run, those that are kept too."""
        return sum(not traffic.over for traffic in self.sessions.values())

    @property
    def waiting(self) -> list[ClientRequest]:
        """Requests that wait for a session; one by its name only is answered at once."""
        return list(self._waiting.values())

    def _add(self, entry: ClientRequest) -> None:
        self.requests[entry.number] = entry
        if not entry.request.named_only:
            self._waiting[entry.number] = entry
            self._room.enter(entry.tenant, entry.size)

    def _waits_no_longer(self, number: int) -> None:
        entry = self._waiting.pop(number, None)
        if entry is not None:
            self._room.leave(entry.tenant, entry.size)

    def _remove(self, number: int) -> ClientRequest | None:
        self._waits_no_longer(number)
        return self.requests.pop(number, None)

    # --- what clients ask for

    def open(
        self,
        request: Request,
        client: EventSink,
        owner: bytes | None = None,
        ref: int = 0,
        key: str = "",
        tenant: Tenant = (),
    ) -> Sequence[ClientsEffect]:
        """Let a request wait for a session, or for the one that it names, which may be there."""
        entry = ClientRequest(
            next(self._numbers), request, client, owner, ref, tenant, request.own_size
        )
        try:
            if self._stopped is not None:
                raise self._stopped
            if not (request.named_only or self._held(request.id)):
                self._check_room(entry)
        except SpecmeshError as error:
            return [Reply(client, Failed(error))]
        self._add(entry)
        ids = (
            () if request.named_only else request.prompt_ids or ()
        )  # without ids no new session begins
        opening = vev.Opening(
            entry.number, request, ids, len(ids), None, entry.owner, key, entry.tenant
        )
        if request.named_only:
            return [opening]  # the core answers at once
        if request.prompt_ids is not None and request.params.grammar is None:
            return self.encoded(opening)
        return [Encode(opening)]

    def _held(self, name: str) -> bool:
        """Return whether a session has this name, and nobody waits for it yet: it takes no other place."""
        names = [traffic.name for traffic in self.sessions.values()]
        return bool(name) and name in names and all(one.request.id != name for one in self.waiting)

    def _check_room(self, entry: ClientRequest) -> None:
        """Raise Busy where too many wait already."""
        count, owners = self._room.count, self.owners()
        hint = "try again, or start the verifier with a larger --max-queue"
        full = f"all {self._max_sessions} sessions are taken and {count} requests wait: {hint}"
        places = self._most + max(self._max_sessions - len(owners), 0)
        self._room.check(entry.tenant, entry.size, places, full)
        if entry.owner is None:
            return
        theirs = owners.count(entry.owner)
        theirs += sum(one.owner == entry.owner for one in self._waiting.values())
        if theirs >= most_sessions(self._max_sessions) + (self._most + 1) // 2:
            raise Busy(f"{theirs} requests of this drafter run or wait", hint)

    def encoded(self, opening: vev.Opening) -> Sequence[ClientsEffect]:
        """Hand a request with its prompt to the core, unless it was withdrawn."""
        entry, request = self.requests.get(opening.client), opening.request
        if entry is None:
            return []
        known = (*opening.ids, *request.generated)
        try:
            check_request(request.params, known, len(opening.ids), self._limits)
        except SpecmeshError as error:
            return self.refuse(entry.number, error)
        return [replace(opening, ids=known)]

    def cancel(self, unwanted: Callable[[ClientRequest], bool]) -> Sequence[ClientsEffect]:
        """Forget requests; those that have a session hear its end."""
        gone = [one for one in self.requests.values() if unwanted(one)]
        for entry in gone:
            if not entry.session:
                self._remove(entry.number)
        return [vev.ClientLeft(entry.number) for entry in gone]

    def pause(self, client: EventSink, *, paused: bool) -> Sequence[ClientsEffect]:
        """Let a client's session wait, or go on."""
        entries = [one for one in self.requests.values() if one.client is client and one.session]
        return [vev.ClientPaused(entry.number, paused) for entry in entries]

    def withdraw(self, owner: bytes, ref: int) -> Sequence[ClientsEffect]:
        """Forget the request that a drafter sent with `ref`, unless a session has come of it."""
        return self.cancel(lambda one: (one.owner, one.ref) == (owner, ref) and not one.session)

    def abandon(self, owner: bytes) -> None:
        """Forget what a drafter's clients asked for: it is gone, and the core keeps or ends their sessions."""
        for entry in [one for one in self.requests.values() if one.owner == owner]:
            self._remove(entry.number)

    def stop(self, error: SpecmeshError) -> Sequence[ClientsEffect]:
        """Refuse those that wait, and whoever comes."""
        self._stopped, effects = error, list[ClientsEffect]()
        for entry in [one for one in self.requests.values() if not one.session]:
            effects += self.refuse(entry.number, error)
            effects.append(vev.ClientLeft(entry.number))  # the core may be about to begin it
        return effects

    def owners(self) -> list[bytes | None]:
        """Who asked for the sessions that run, without those that are kept, which give way."""
        return [entry.owner for entry in self.requests.values() if entry.session]

    def end(self, error: SpecmeshError) -> Sequence[Reply]:
        """Nobody hears more than this."""
        return [reply for number in list(self.requests) for reply in self.refuse(number, error)]

    # --- what the core says

    def refuse(self, number: int, error: SpecmeshError) -> Sequence[Reply]:
        entry = self._remove(number)
        return [Reply(entry.client, Failed(error))] if entry is not None else []

    def began(self, began: vev.Began) -> Sequence[Reply]:
        if began.adopted:  # whoever had it before hears no more of it
            for entry in [one for one in self.requests.values() if one.session == began.session]:
                self._remove(entry.number)
        else:
            self.sessions[began.session] = SessionTraffic(began.opened, began.name)
        new = self.requests.get(began.client)
        if new is None:
            return []
        new.session = began.session
        self._waits_no_longer(new.number)
        replies = [
            Reply(
                new.client,
                Started(began.session, len(began.prompt_ids), began.prompt_ids, began.params),
            )
        ]
        if began.said:
            replies.append(Reply(new.client, Tokens(began.said, 0, began.logprobs)))
        return replies

    def hear(self, effect: vev.ToClient) -> Sequence[Reply]:
        entry = self.requests.get(effect.client) if effect.client is not None else None
        return [Reply(entry.client, effect.what)] if entry is not None else []

    def committed(self, done: vev.Committed) -> Sequence[Reply]:
        """Give a round to its session's client."""
        entry = self.requests.get(done.client) if done.client is not None else None
        if entry is None:
            return []
        return [
            Reply(
                entry.client,
                Tokens(
                    done.round.text_ids,
                    min(done.round.accepted, done.round.shown),
                    done.round.logprobs,
                ),
            )
        ]

    def ended(self, end: vev.SessionEnded) -> Sequence[Reply]:
        """Tell a session's client of its end, with the report."""
        entry = self._remove(end.client) if end.client is not None else None
        traffic = self.sessions.get(end.session)
        if traffic is not None:
            traffic.over = True
        if entry is None:
            return []
        if end.error is not None:
            return [Reply(entry.client, Failed(end.error))]
        report = end.report
        if traffic is not None:
            report = report | {
                "bytes_sent": traffic.bytes_sent,
                "bytes_received": traffic.bytes_received,
            }
        return [Reply(entry.client, Finished(end.reason, end.prompt_ids, report))]
