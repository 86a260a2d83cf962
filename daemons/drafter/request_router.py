"""What a drafter's clients ask for, and which of its verifiers gets it: sent elsewhere where one refuses or goes away,
kept waiting where none has it now."""

from collections.abc import Sequence
from dataclasses import replace

import structlog

from specmesh.api.requests import EventSink, Failed
from specmesh.core.drafting.verifier_choice import rank_verifiers
from specmesh.daemons.drafter.draft_session import PendingRequest
from specmesh.daemons.drafter.retry_queue import RetryQueue, same_file, same_model
from specmesh.daemons.drafter.upstream import Upstream
from specmesh.daemons.runtime.request_queue import MAX_QUEUE, QueueLimits
from specmesh.errors import Busy, DaemonUnreachable, NoSuchText, SpecmeshError
from specmesh.wire.messages import Welcome

log = structlog.get_logger("specmesh.drafter")

AHEAD = 32
"""Requests that verifiers are asked for and have not begun. The others wait here: a verifier takes only so many of one
drafter."""


class RequestRouter:
    """The requests of a drafter's clients, from the first asking to their end.

    `upstreams` are the verifiers, in the order of the settings; they are given once they are made. max_queue: most
    requests that wait here until a verifier is asked.
    """

    def __init__(self, max_queue: int = MAX_QUEUE) -> None:
        self.upstreams: Sequence[Upstream] = ()
        self._interrupted = RetryQueue()
        self._queue: list[PendingRequest] = []
        self._room = QueueLimits(max_queue)

    @property
    def interrupted(self) -> int:
        return len(self._interrupted)

    # --- clients

    def ask(self, asked: PendingRequest, now: float) -> None:
        """Have a text begun, or gone on with; who had it here before has it no more."""
        name = asked.request.id
        if name:
            had = [upstream.address for upstream in self.upstreams if upstream.following.moved(name)]
            asked = replace(asked, home=had[0]) if had else asked
        asked = self._interrupted.recalled(asked)
        if not self._queue and self._ahead() < AHEAD:
            self._put(asked, now)
            return
        told = f"{len(self._queue)} requests wait at this drafter: try again, or start it with a larger --max-queue"
        try:
            self._room.check((one.request for one in self._queue), asked.request, now, told)
        except Busy as error:
            asked.client.on_event(Failed(error))
            return
        self._queue.append(asked)
        self._queue.sort(key=lambda one: one.request.priority)

    def cancel_of(self, client: EventSink) -> None:
        self._queue = [asked for asked in self._queue if asked.client is not client]
        self._interrupted.cancel(client)
        for upstream in self.upstreams:
            upstream.following.cancel_of(client)

    def refuse(self, error: SpecmeshError) -> None:
        """No verifier is asked any more for what still waits here."""
        for asked in self._queue:
            asked.client.on_event(Failed(error))
        self._queue.clear()

    def stop(self, error: SpecmeshError) -> None:
        self.refuse(error)
        for asked in self._interrupted.take(lambda _: True):
            asked.client.on_event(Failed(error))
        for upstream in self.upstreams:
            upstream.following.stop(error)

    # --- what comes back from verifiers

    def refused(self, asked: PendingRequest, error: SpecmeshError, now: float, by: str) -> None:
        """One has refused: another may not. What is wrong with a new request itself is wrong elsewhere too, but for a
        text that is too long for one."""
        tried, busy = (*asked.tried, by), isinstance(asked.error, Busy)
        if asked.began is None and not isinstance(error, Busy | NoSuchText | DaemonUnreachable):
            n_ctx = next(one.n_ctx for one in self.upstreams if one.address == by)
            larger = [one.address for one in self.upstreams if one.n_ctx > n_ctx]
            busy = busy and any(address in larger for address in asked.tried)
            tried = (*tried, *(one.address for one in self.upstreams if one.welcome and one.address not in larger))
        self._put(replace(asked, tried=tried, error=asked.error if busy else error), now)

    def lost(self, asked: PendingRequest, error: SpecmeshError, now: float, *, again: bool) -> None:
        """Its verifier has it no more: another goes on at once where one can, else it waits for one."""
        request = asked.request
        waits = bool(request.id) and request.reconnect_timeout > 0
        elsewhere = replace(asked, tried=(), error=None)
        found = [one for one in self._candidates(elsewhere, now) if one.address != asked.home and not again]
        if found:
            log.info("session_goes_elsewhere", request=request.label, verifier=found[0].address)
            until = now + request.reconnect_timeout if waits and asked.until is None else asked.until
            found[0].following.ask(replace(elsewhere, until=until), now)
        elif waits:
            self._wait(asked, now)
        else:
            self._give_up(asked, error)

    def found(self, welcome: Welcome, by: str) -> None:
        """A verifier is there. A text that it began as another model, and that nobody else can go on with, ends."""

        def hopeless(asked: PendingRequest) -> bool:
            began = asked.began
            if began is None or asked.home != by:
                return False
            others = (one.welcome for one in self.upstreams if one.address != by)
            return not same_model(began, welcome) and not any(one and same_model(began, one) for one in others)

        for asked in self._interrupted.take(hopeless):
            other = f"the verifier came back with another model, {welcome.model}: the text ends here"
            asked.client.on_event(Failed(DaemonUnreachable(other)))

    # --- those that wait

    def next_due(self, now: float) -> float | None:
        """When `reopen` has something to do."""
        return self._interrupted.next_due(lambda asked: self._candidates(asked, now))

    def reopen(self, now: float) -> None:
        """Ask for what waits, and again for what was interrupted, where a verifier is there that can have it."""
        while self._queue and self._ahead() < AHEAD:
            self._room.left(now)
            asked = self._queue.pop(0)
            if self._candidates(asked, now):
                self._put(asked, now)
            else:
                self.lost(asked, DaemonUnreachable("the verifier went away"), now, again=False)
        for asked in self._interrupted.due(now, lambda asked: self._candidates(asked, now)):
            self._put(asked, now)

    def expire(self, now: float) -> None:
        for asked in self._interrupted.expire(now):
            seconds = asked.request.reconnect_timeout
            why = next((one.refusal for one in self.upstreams if one.address == asked.home), None)
            went = f"the verifier at {asked.home} went away and was not back within {seconds:g} s"
            self._give_up(asked, DaemonUnreachable(why or went))

    def _ahead(self) -> int:
        return sum(len(one.following.asked) for one in self.upstreams)

    # --- which one

    def _put(self, asked: PendingRequest, now: float) -> None:
        """Ask the best of those that have not refused; where all have, wait or tell the client."""
        found = self._candidates(asked, now)
        if found:
            found[0].following.ask(asked, now)
            return
        error = asked.error or DaemonUnreachable("no verifier is there that could have this text")
        others_only = asked.began is not None and asked.home not in asked.tried  # its own may be back, and take it
        if asked.until is not None and (others_only or isinstance(error, Busy)):
            self._wait(asked, now)
        elif isinstance(error, DaemonUnreachable):
            self._give_up(asked, error)
        else:
            asked.client.on_event(Failed(error))

    def _candidates(self, asked: PendingRequest, now: float) -> list[Upstream]:
        """Those that are there, may have it and have not refused it, the best in front: the one that has it, or had it
        and may have kept it; then those that get on, by when they would have finished."""
        fit = [one for one in self.upstreams if one.address not in asked.tried and self._fits(asked, one)]
        if len(fit) < 2:
            return fit
        order = rank_verifiers([one.outlook(now) for one in fit], asked.request.params.max_tokens)
        return sorted((fit[index] for index in order), key=lambda one: (one.address != asked.home, one.link.stuck))

    def _fits(self, asked: PendingRequest, upstream: Upstream) -> bool:
        """Whether a text can be had there: of the model that was asked for, and that it began with."""
        welcome, began = upstream.welcome, asked.began
        if welcome is None:
            return False
        if began is None:
            return asked.request.target in ("", upstream.target)
        if upstream.address == asked.home:
            return same_model(began, welcome)
        return same_file(began, welcome) and welcome.n_ctx >= began.n_ctx  # a shorter one would end the text early

    def _wait(self, asked: PendingRequest, now: float) -> None:
        self._interrupted.add(replace(asked, tried=(), error=None), now)

    def _give_up(self, asked: PendingRequest, error: SpecmeshError) -> None:
        self._interrupted.remember(asked)
        asked.client.on_event(Failed(error))
