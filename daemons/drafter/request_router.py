"""Which verifier gets a request of the drafter's clients: another one where the first refuses or goes away."""

from collections.abc import Sequence
from dataclasses import replace

import structlog

from specmesh.api.requests import EventSink, Failed, Request
from specmesh.core.drafting.verifier_choice import rank_verifiers
from specmesh.daemons.drafter.retry_queue import PendingRequest, RetryQueue, same_file, same_model
from specmesh.daemons.drafter.upstream import Upstream
from specmesh.daemons.runtime.request_queue import MAX_QUEUE, QueueLimits
from specmesh.errors import Busy, DaemonUnreachable, NoSuchText, SpecmeshError
from specmesh.wire.messages import Welcome

log = structlog.get_logger("specmesh.drafter")

AHEAD = 32  # most requests that verifiers are asked for and have not begun; the others wait here


class RequestRouter:
    """The requests of a drafter's clients, from their arrival to their end.

    upstreams: the verifiers, in the order of the settings; set once they are made. max_queue: most requests that wait
    here until a verifier is asked.
    """

    def __init__(self, max_queue: int = MAX_QUEUE) -> None:
        self.upstreams: Sequence[Upstream] = ()
        self.retries = RetryQueue()
        self._queue: list[PendingRequest] = []
        self._room = QueueLimits(max_queue)
        self._most_ahead = AHEAD  # fewer while verifiers take no more
        self._arrived = 0

    def ask(self, request: Request, client: EventSink, now: float) -> None:
        """Start a request, or resume it; a client that had it here loses it."""
        self._arrived += 1
        pending = PendingRequest(request, client, self._arrived)
        if request.id:
            had = [one.address for one in self.upstreams if one.sessions.take_over(request.id)]
            pending = replace(pending, home=had[0]) if had else pending
        pending = self.retries.recalled(pending)
        if not self._queue and self._ahead() < self._most_ahead:
            self._put(pending, now)
        else:
            self._enqueue(pending, now)

    def cancel_of(self, client: EventSink) -> None:
        self._queue = [pending for pending in self._queue if pending.client is not client]
        self.retries.take(lambda pending: pending.client is client)
        for upstream in self.upstreams:
            upstream.sessions.cancel_of(client)

    def refuse(self, error: SpecmeshError) -> None:
        for pending in self._queue:
            pending.client.on_event(Failed(error))
        self._queue.clear()

    def stop(self, error: SpecmeshError) -> None:
        self.refuse(error)
        for pending in self.retries.take(lambda _: True):
            pending.client.on_event(Failed(error))
        for upstream in self.upstreams:
            upstream.sessions.stop(error)

    def refused(self, pending: PendingRequest, error: SpecmeshError, now: float, by: str) -> None:
        """Try another verifier. An invalid request is invalid everywhere, but for a prompt too long for this one."""
        tried, busy = (*pending.tried, by), isinstance(pending.error, Busy)
        if pending.began is None and not isinstance(error, Busy | NoSuchText | DaemonUnreachable):
            n_ctx = next(one.n_ctx for one in self.upstreams if one.address == by)
            larger = [one.address for one in self.upstreams if one.n_ctx > n_ctx]
            busy = busy and any(address in larger for address in pending.tried)
            tried = (*tried, *(one.address for one in self.upstreams if one.welcome and one.address not in larger))
        self._put(replace(pending, tried=tried, error=pending.error if busy else error), now)

    def lost(self, pending: PendingRequest, error: SpecmeshError, now: float, *, again: bool) -> None:
        """Resume at another verifier where one can, else wait for one."""
        request = pending.request
        waits = bool(request.id) and request.reconnect_timeout > 0
        elsewhere = replace(pending, tried=(), error=None)
        found = [one for one in self._candidates(elsewhere, now) if one.address != pending.home and not again]
        if found:
            log.info("session_goes_elsewhere", request=request.label, verifier=found[0].address)
            until = now + request.reconnect_timeout if waits and pending.until is None else pending.until
            found[0].sessions.ask(replace(elsewhere, until=until), now)
        elif waits:
            self.retries.add(elsewhere, now)
        else:
            self._give_up(pending, error)

    def found(self, welcome: Welcome, by: str) -> None:
        """End the texts that this verifier began with another model, where no other can continue them."""

        def hopeless(pending: PendingRequest) -> bool:
            began = pending.began
            if began is None or pending.home != by:
                return False
            others = (one.welcome for one in self.upstreams if one.address != by)
            return not same_model(began, welcome) and not any(one and same_model(began, one) for one in others)

        for pending in self.retries.take(hopeless):
            other = f"the verifier came back with another model, {welcome.model}: the text ends here"
            pending.client.on_event(Failed(DaemonUnreachable(other)))

    def next_due(self, now: float) -> float | None:
        if self._queue and self._ahead() < self._most_ahead:
            return now
        return self.retries.next_due(lambda pending: self._candidates(pending, now))

    def reopen(self, now: float) -> None:
        while self._queue and self._ahead() < self._most_ahead:
            self._room.left(now)
            pending = self._queue.pop(0)
            if self._candidates(pending, now):
                self._put(pending, now)
            else:
                self.lost(pending, DaemonUnreachable("the verifier went away"), now, again=False)
        if not self._queue:
            self._most_ahead = AHEAD
        for pending in self.retries.due(now, lambda pending: self._candidates(pending, now)):
            self._put(pending, now)

    def expire(self, now: float) -> None:
        for pending in self.retries.take(lambda one: one.until is not None and now >= one.until):
            seconds = pending.request.reconnect_timeout
            why = next((one.refusal for one in self.upstreams if one.address == pending.home), None)
            went = f"the verifier at {pending.home} went away and was not back within {seconds:g} s"
            self._give_up(pending, DaemonUnreachable(why or went))

    def _ahead(self) -> int:
        return sum(len(one.sessions.asked) for one in self.upstreams)

    def _enqueue(self, pending: PendingRequest, now: float) -> None:
        full = f"{len(self._queue)} requests wait at this drafter: try again, or start it with a larger --max-queue"
        try:
            self._room.check((one.request for one in self._queue), pending.request, now, full)
        except Busy as error:
            pending.client.on_event(Failed(error))
            return
        self._queue.append(pending)
        self._queue.sort(key=lambda one: (one.request.priority, one.number))

    def _put(self, pending: PendingRequest, now: float) -> None:
        """Ask the best verifier that has not refused; where all have, wait or fail."""
        found = self._candidates(pending, now)
        if found:
            found[0].sessions.ask(pending, now)
            return
        error = pending.error or DaemonUnreachable("no verifier is there that could have this text")
        # Those that refused were others: its own may come back, and take it.
        others_only = pending.began is not None and pending.home not in pending.tried
        fresh = replace(pending, tried=(), error=None)
        if pending.until is not None and (others_only or isinstance(error, Busy)):
            self.retries.add(fresh, now)
        elif isinstance(error, Busy) and self._ahead():  # others of this drafter's fill it: after one of them
            self._most_ahead = self._ahead()
            self._enqueue(fresh, now)
        elif isinstance(error, DaemonUnreachable):
            self._give_up(pending, error)
        else:
            pending.client.on_event(Failed(error))

    def _candidates(self, pending: PendingRequest, now: float) -> list[Upstream]:
        """Return the verifiers that may have a request and have not refused it, the best first: the one that had it,
        then those that are not stuck, by when they would have finished."""
        fit = [one for one in self.upstreams if one.address not in pending.tried and self._fits(pending, one)]
        if len(fit) < 2:
            return fit
        order = rank_verifiers([one.outlook(now) for one in fit], pending.request.params.max_tokens)
        return sorted((fit[index] for index in order), key=lambda one: (one.address != pending.home, one.link.stuck))

    def _fits(self, pending: PendingRequest, upstream: Upstream) -> bool:
        """Return True where the verifier has the model that was asked for, or that the text began with."""
        welcome, began = upstream.welcome, pending.began
        if welcome is None:
            return False
        if began is None:
            return pending.request.target in ("", upstream.target)
        if upstream.address == pending.home:
            return same_model(began, welcome)
        return same_file(began, welcome) and welcome.n_ctx >= began.n_ctx  # a shorter one would end the text early

    def _give_up(self, pending: PendingRequest, error: SpecmeshError) -> None:
        self.retries.remember(pending)
        pending.client.on_event(Failed(error))
