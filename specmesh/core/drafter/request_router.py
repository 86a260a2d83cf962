"""The choice of a verifier for each request of the drafter's clients.

If one refuses a request or goes away, the next one gets it:

1. A request is placed at the best verifier that may have it and has not refused it.
2. One that refuses it is noted in `tried`. The request is placed again, at the next one.
3. Where all have refused, the request waits if that may change, for as long as its client allows:
   its verifier may come back, or one that was busy may have room. Else its client gets the error.
4. A verifier that goes away loses its requests. Those that have begun resume where they were: at
   the same verifier if it has kept the session, or from the tokens at one with the same model.

`handle` takes an event and returns the effects. The router hands the events of requests to the
upstreams. What becomes of a request there comes back as an effect of the upstream, and is an event
here.

Nothing here is lost with a verifier: the drafter keeps each request with all tokens that came.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import assert_never

from specmesh.core.drafter import upstream_events as uev
from specmesh.core.drafter.pending_request import (
    DrafterRequest,
    RequestEvent,
    RequestState,
)
from specmesh.core.drafter.placement import (
    PlacementEffect,
    PlacementEnded,
    PlacementLost,
    PlacementOpened,
    PlacementRefused,
)
from specmesh.core.drafter.router_events import (
    AtUpstream,
    DrafterStops,
    PlacingDue,
    ReaderLeft,
    ReaderPaused,
    RouterEffect,
    RouterEvent,
    TextsWanted,
)
from specmesh.core.drafter.upstream import Upstream
from specmesh.core.drafter.upstream_facts import UpstreamFacts
from specmesh.core.drafter.verifier_choice import candidates, has_room, is_hopeless
from specmesh.core.fair_queue import Tenant, parts_of
from specmesh.core.requests import EventSink, Failed, Reply, Request
from specmesh.core.verifier.admission import MAX_QUEUE, WaitingRoom
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import (
    Busy,
    DaemonUnreachable,
    NoSuchModel,
    RemoteProtocolError,
    SpecmeshError,
    Starting,
)
from specmesh.wire import messages as m

CONNECTING = 1.0  # seconds after the start in which a verifier counts as not found yet
RETRY_S = 0.5  # seconds until verifiers that are there, but refused a request, are asked again
MAX_GIVEN_UP = 64  # most requests that are remembered after they were given up


class RequestRouter:
    """The requests of a drafter's clients.

    - Up to MAX_OPENING of them queue at each verifier. The others are not placed yet.
    - Tenants with the fewest requests at verifiers come first, of one tenant the oldest request.

    upstreams: the verifiers, in the order of the settings.
    requests: in the order of their arrival, to be read only.
    """

    def __init__(self, upstreams: Sequence[Upstream], now: float) -> None:
        self.upstreams = upstreams
        self.requests: list[DrafterRequest] = []
        self._effects = list[RouterEffect]()  # of the event that is handled
        self._started_at = now
        self._numbers = itertools.count(1)

    def handle(self, event: RouterEvent, now: float) -> list[RouterEffect]:
        """Take an event that happened at `now`."""
        match event:
            case TextsWanted(texts, tenant):
                self._submit(texts, tenant, now)
            case ReaderLeft(client):
                self._cancel(client, now)
            case ReaderPaused(client, paused):
                self._pause(client, now, paused=paused)
            case DrafterStops(error):
                self._stop(error)
            case PlacingDue():
                self._look(now)
            case PlacementOpened() | PlacementRefused() | PlacementLost() | PlacementEnded():
                self._take_back(event, now)
            case _:
                assert_never(event)
        effects = self._effects
        self._effects = []
        return effects

    def _order(self, upstream: Upstream, order: uev.PlacementOrder, now: float) -> None:
        """Have an upstream handle an order, and take what it gives back of requests."""
        for effect in upstream.handle(order, now):
            match effect:
                case PlacementOpened() | PlacementRefused() | PlacementLost() | PlacementEnded():
                    self._take_back(effect, now)
                case Reply():
                    self._effects.append(effect)
                case _:
                    self._effects.append(AtUpstream(upstream.number, effect))

    def _take_back(self, event: PlacementEffect, now: float) -> None:
        """Note what has become of a request at an upstream."""
        match event:
            case PlacementOpened(number, place, request, verifier):
                upstream = self.upstreams[place]
                pending = self._request(number)
                pending.opened(request, verifier, upstream.facts.address)
                if pending.paused:
                    # Its client stopped reading while the session was being opened, so the
                    # verifier does not know it yet.
                    self._order(upstream, uev.PausePlacement(number, paused=True), now)
            case PlacementRefused(number, place, error):
                self._request(number).refused(self.upstreams[place].facts.address, error)
            case PlacementLost():
                address = self.upstreams[event.upstream].facts.address
                pending = self._request(event.placement.number)
                pending.lost(now, event.placement, address, event.error)
                if event.tried:
                    # It stops, and would refuse the request at once.
                    pending.avoid(address)
            case PlacementEnded(number):
                self._request(number).advance(RequestEvent.CLOSED)
            case _:
                assert_never(event)

    def _request(self, number: int) -> DrafterRequest:
        """Return the request of this number, which an upstream has."""
        return next(pending for pending in self.requests if pending.number == number)

    # --- the models

    @property
    def _reachable(self) -> list[Upstream]:
        """Return the verifiers that are there, in the order of the settings."""
        return [upstream for upstream in self.upstreams if upstream.facts.info is not None]

    @property
    def first(self) -> Upstream:
        """Return the first verifier that is there, or the first of all if none is."""
        return next(iter(self._reachable), self.upstreams[0])

    @property
    def trouble(self) -> str:
        """Return why the verifiers are away."""
        return _troubles([upstream.facts for upstream in self.upstreams])

    @property
    def models(self) -> tuple[str, ...]:
        """Return the names of the verifiers' models."""
        names = dict[str, None]()
        for upstream in self.upstreams:
            if upstream.facts.info is not None:
                names[upstream.facts.info.model] = None
        return tuple(names)

    def serving(self, name: str, now: float) -> tuple[m.Welcome, Vocabulary]:
        """Return a verifier with the model of this name, or of any if that is empty.

        A lone verifier answers to any name. One that can be drafted for comes first.

        Raise Starting while it is looked for, NoSuchModel if none has that model, and
        DaemonUnreachable if it is away.
        """
        # With one verifier there is no choice, and clients send any name that their settings have.
        any_name = not name or len(self.upstreams) == 1
        wanted = list[UpstreamFacts]()
        ready = list[tuple[bool, m.Welcome, Vocabulary]]()
        for upstream in self.upstreams:
            facts = upstream.facts
            info = facts.info
            if info is None or not (any_name or info.model == name):
                continue
            wanted.append(facts)
            # Without a vocabulary nothing can be shown of a text, neither its stop strings nor its
            # words.
            if facts.vocabulary is not None:
                ready.append((bool(facts.foreign), info, facts.vocabulary))
        if ready:
            _, info, vocabulary = min(ready, key=lambda entry: entry[0])
            return info, vocabulary
        raise self._not_serving(name, wanted, now)

    def _not_serving(self, name: str, wanted: Sequence[UpstreamFacts], now: float) -> SpecmeshError:
        """Return why no verifier serves a model; wanted: those that have it."""
        if wanted and all(facts.unusable for facts in wanted):
            return DaemonUnreachable(_troubles(wanted))
        if wanted:
            fetching = "the vocabulary is still being fetched from the verifier"
            return Starting(fetching, "try again in a moment")
        if not self._reachable:
            refused = all(upstream.facts.refusal for upstream in self.upstreams)
            # A drafter that has just begun has not found its verifiers yet: to wait is better
            # advice than to look for a fault.
            if now >= self._started_at + CONNECTING or refused:
                return DaemonUnreachable(self.trouble)
            addresses = ", ".join(upstream.facts.address for upstream in self.upstreams)
            connecting = f"the drafter is connecting to {addresses}"
            return Starting(connecting, "try again in a moment")
        # One that is away may have had the model: then it is not unknown, it is not there.
        away = list[UpstreamFacts]()
        for upstream in self.upstreams:
            known = upstream.facts.known
            if known is not None and known.model == name:
                away.append(upstream.facts)
        if away:
            return DaemonUnreachable(_troubles(away))
        return NoSuchModel.of(name)

    # --- requests

    def in_state(self, *states: RequestState) -> list[DrafterRequest]:
        """Return the requests in one of these states, the oldest first."""
        return [pending for pending in self.requests if pending.state in states]

    def _submit(
        self, texts: Sequence[tuple[Request, EventSink]], tenant: Tenant, now: float
    ) -> None:
        """Start the requests of an answer, as `_ask` does, or refuse them if not all have room."""
        try:
            if len(texts) > 1:
                self._check_room(tenant, [request for request, _ in texts])
        except Busy as error:
            for _, client in texts:
                self._effects.append(Reply(client, Failed(error)))
            return
        for request, client in texts:
            self._ask(request, client, now, tenant)

    def _ask(self, request: Request, client: EventSink, now: float, tenant: Tenant) -> None:
        """Start a request, or resume it; a client that had it here loses it."""
        new = DrafterRequest(
            number=next(self._numbers),
            request=request,
            client=client,
            tenant=tenant,
            size=request.own_size,
        )
        if self.first.facts.info is None:
            self._effects.append(new.fail(DaemonUnreachable(self.trouble)))
            return
        try:
            self._check_room(tenant, [request])
        except Busy as error:
            self._effects.append(new.fail(error))
            return
        if request.id:
            for before in self.in_state(RequestState.OPEN, RequestState.GIVEN_UP):
                if before.request.id == request.id:
                    self._resume(new, before, now)
        next_in_line = not self.in_state(RequestState.UNPLACED)
        self.requests.append(new)
        if next_in_line:
            self._place(new, now)

    def _check_room(self, tenant: Tenant, requests: Sequence[Request]) -> None:
        """Raise Busy if requests would find no room together, beside those without a verifier."""
        room = WaitingRoom()
        for pending in self.in_state(RequestState.UNPLACED):
            room.enter(pending.tenant, pending.size)
        full = f"{room.count} requests wait at this drafter: try again"
        size = sum(request.own_size for request in requests)
        room.check(tenant, size, MAX_QUEUE, full, count=len(requests))

    def _cancel(self, client: EventSink, now: float) -> None:
        """End the requests of a client."""
        for pending in self.requests:
            if pending.client is not client:
                continue
            if pending.state in (RequestState.OPENING, RequestState.OPEN):
                for upstream in self.upstreams:
                    self._order(upstream, uev.Withdraw(pending.number), now)
            elif pending.state is not RequestState.OVER:
                pending.advance(RequestEvent.CLOSED)

    def _pause(self, client: EventSink, now: float, *, paused: bool) -> None:
        """Let a client's text wait for its reader, or go on; also after it is opened anew."""
        for pending in self.requests:
            if pending.client is client:
                pending.pause(paused=paused)
                for upstream in self.upstreams:
                    self._order(upstream, uev.PausePlacement(pending.number, paused), now)

    def _stop(self, error: SpecmeshError) -> None:
        """Fail the requests that are not over."""
        for pending in self.requests:
            if pending.state not in (RequestState.GIVEN_UP, RequestState.OVER):
                self._effects.append(pending.fail(error))

    def _look(self, now: float) -> None:
        """Place the requests that are due, and forget those that are over."""
        if not self.requests:
            return
        for pending in self._in_turn(self.in_state(RequestState.UNPLACED)):
            self._place(pending, now)
        for pending in self.in_state(RequestState.WAITING):
            self._retry(pending, now)
        given_up = self.in_state(RequestState.GIVEN_UP)
        for pending in given_up[: max(len(given_up) - MAX_GIVEN_UP, 0)]:
            pending.advance(RequestEvent.CLOSED)
        self.requests = [
            pending for pending in self.requests if pending.state is not RequestState.OVER
        ]

    def _in_turn(self, unplaced: list[DrafterRequest]) -> list[DrafterRequest]:
        """Return requests in the order in which they are placed."""
        if len(unplaced) < 2:
            return unplaced
        taken = Counter[Tenant]()
        for pending in self.in_state(RequestState.OPENING, RequestState.OPEN):
            taken.update(parts_of(pending.tenant))
        ranked = list[tuple[list[int], int]]()
        for age, pending in enumerate(unplaced):
            parts = parts_of(pending.tenant)
            ranked.append(([taken[part] for part in parts], age))
            taken.update(parts)
        return [unplaced[age] for _, age in sorted(ranked)]

    def _resume(self, new: DrafterRequest, before: DrafterRequest, now: float) -> None:
        """Continue the text of another request, at its verifier if that has it."""
        new.prefer(before.home)
        if before.state is RequestState.OPEN:
            for upstream in self.upstreams:
                self._order(upstream, uev.TakeOver(before.number), now)
            return
        new.take_text_of(before)
        before.advance(RequestEvent.CLOSED)

    def _place(self, pending: DrafterRequest, now: float) -> None:
        """Ask the best verifier that has not refused; if all have, let it wait or fail."""
        fitting = candidates(self.upstreams, pending)
        if fitting:
            if has_room(fitting[0], pending, now):
                pending.advance(RequestEvent.ASKED)
                placement = pending.placement(fitting[0].facts.address)
                self._order(fitting[0], uev.AskFor(placement), now)
                # Its frames may not hold the request, which is a refusal at once.
                if pending.state is RequestState.UNPLACED:
                    self._place(pending, now)
            return
        error = pending.error
        if error is None:
            error = DaemonUnreachable("no verifier is there that could have this text")
        # If others have refused it, its own may come back: it may have kept the session.
        may_return = pending.began is not None and pending.home not in pending.tried
        gone = isinstance(error, DaemonUnreachable | RemoteProtocolError)
        passes = may_return or gone or isinstance(error, Busy)
        if pending.until is not None and passes:
            pending.wait(now, RETRY_S)
        elif gone:
            self._give_up(pending, error)
        else:
            self._effects.append(pending.fail(error))

    def _retry(self, pending: DrafterRequest, now: float) -> None:
        """Ask again for a request that waits, or end it after long enough or if that is vain."""
        assert pending.until is not None, "a request that waits has a deadline"
        if is_hopeless(self.upstreams, pending):
            other_model = "the verifier came back with another model: the text ends here"
            self._effects.append(pending.fail(DaemonUnreachable(other_model)))
        elif now >= pending.until:
            seconds = pending.request.reconnect_timeout
            reason = (
                f"the verifier at {pending.home} went away and was not back within {seconds:g} s"
            )
            for upstream in self.upstreams:
                if upstream.facts.address == pending.home:
                    reason = upstream.facts.refusal or reason
            self._give_up(pending, DaemonUnreachable(reason))
        elif now >= pending.due and candidates(self.upstreams, pending):
            self._place(pending, now)

    def _give_up(self, pending: DrafterRequest, error: SpecmeshError) -> None:
        """Fail a request; its client may resume it if it has a name and ids."""
        resumable = bool(pending.request.id and pending.request.prompt_ids)
        event = RequestEvent.TIME_UP if resumable else RequestEvent.CLOSED
        self._effects.append(pending.fail(error, event))


def _troubles(verifiers: Sequence[UpstreamFacts]) -> str:
    """Return why verifiers are away, each in its own words."""
    return "; ".join(facts.trouble for facts in verifiers)
