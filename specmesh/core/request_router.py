"""Which verifier gets a request of the drafter's clients: another one where the first refuses or goes away."""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

from specmesh.core import events as ev
from specmesh.core.admission import MAX_QUEUE, QueueLimits
from specmesh.core.drafting.verifier_choice import rank_verifiers
from specmesh.core.requests import EventSink, PendingRequest, Request, VerifierInfo
from specmesh.core.upstream import Upstream
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import Busy, DaemonUnreachable, NoSuchModel, NoSuchText, SpecmeshError, Starting

CONNECTING = 1.0  # seconds after the start in which a verifier counts as not found yet
RETRY_S = 0.5  # seconds until verifiers that are there, but refused a request, are asked again
MAX_GIVEN_UP = 64  # most requests that are remembered after they were given up
AHEAD = 32  # most requests that verifiers are asked for and have not begun; the others wait here

_FETCHING = "the vocabulary is still being fetched from the verifier: try again in a moment"


class RetryQueue:
    """Requests that wait for a verifier, and by id those given up, which a client may still resume."""

    def __init__(self) -> None:
        self.waiting: list[tuple[float, PendingRequest]] = []
        self._given_up: dict[str, tuple[PendingRequest, array[int], array[int]]] = {}

    def add(self, pending: PendingRequest, now: float) -> None:
        """Wait for a verifier until the client's timeout; one that has waited before pauses first."""
        due = now if pending.until is None else now + RETRY_S
        until = now + pending.request.reconnect_timeout if pending.until is None else pending.until
        self.waiting.append((due, replace(pending, until=until)))

    def take(self, wanted: Callable[[PendingRequest], object], now: float = inf) -> list[PendingRequest]:
        """Remove and return those wanted whose pause is over."""
        taken = [one for one in self.waiting if now >= one[0] and wanted(one[1])]
        self.waiting = [one for one in self.waiting if one not in taken]
        return [pending for _, pending in taken]

    def remember(self, pending: PendingRequest) -> None:
        """Keep a request that is given up, its ids in int32: it may be kept for long."""
        request = pending.request
        if request.id and request.prompt_ids:
            small = replace(pending, request=replace(request, prompt_ids=None, generated=()))
            self._given_up[request.id] = small, array("i", request.prompt_ids), array("i", request.generated)
            if len(self._given_up) > MAX_GIVEN_UP:
                self._given_up.pop(next(iter(self._given_up)))

    def recalled(self, pending: PendingRequest) -> PendingRequest:
        """Return a request that resumes by id with what is remembered of it, if anything."""
        new = pending.request
        found = self._given_up.pop(new.id, None) if new.named_only else None
        if found is None:
            return pending
        before, prompt_ids, generated = found
        request = replace(before.request, prompt_ids=tuple(prompt_ids), generated=tuple(generated), known=new.known)
        request = replace(request, rounds=new.rounds, reconnect_timeout=new.reconnect_timeout)
        return replace(pending, home=before.home, began=before.began, request=request)


class RequestRouter:
    """The requests of a drafter's clients, from their arrival to their end.

    upstreams: the verifiers, in the order of the settings. max_queue: most requests that wait here until a verifier is
    asked.
    """

    def __init__(
        self, upstreams: Sequence[Upstream], note: Callable[[ev.Noted], None], now: float, max_queue: int = MAX_QUEUE
    ) -> None:
        self.upstreams = upstreams
        self._note, self._begun = note, now
        self.retries = RetryQueue()
        self.queue: list[PendingRequest] = []
        self._room = QueueLimits(max_queue)
        self._most_ahead = AHEAD  # fewer while verifiers take no more
        self._full: float = inf  # with so many of ours, all begun, they did not: ask again once one of these has ended
        self._arrived = 0

    # --- what is served

    @property
    def first(self) -> Upstream:
        """The first verifier that is there, else the first that was not given up."""
        there = (one for one in self.upstreams if one.info is not None)
        return next(there, None) or next(one for one in self.upstreams if one.given_up is None)

    @property
    def trouble(self) -> str:
        return "; ".join(one.trouble for one in self.upstreams)

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.info.model for one in self.upstreams if one.info is not None))

    @property
    def ready(self) -> list[tuple[VerifierInfo, Vocabulary]]:
        """Verifiers that are there, and whose vocabulary is known."""
        return [
            (one.info, one.vocabulary) for one in self.upstreams if one.info is not None and one.vocabulary is not None
        ]

    def not_ready(self, now: float) -> SpecmeshError | None:
        if self.first.info is None:
            refused = all(one.refusal for one in self.upstreams)
            if not refused and now < self._begun + CONNECTING:
                addresses = ", ".join(one.address for one in self.upstreams)
                return Starting(f"the drafter is connecting to {addresses}: try again in a moment")
            return DaemonUnreachable(self.trouble)
        return None if self.ready else Starting(_FETCHING)

    def serving(self, name: str) -> tuple[VerifierInfo, Vocabulary]:
        """Return a verifier with the model of this name, or any; a lone one answers to any name. Raises why none is."""
        ready = self.ready
        if not ready:
            raise DaemonUnreachable(self.trouble)
        for info, vocabulary in ready:
            if len(self.upstreams) == 1 or name in ("", info.model):
                return info, vocabulary
        if name in self.models:
            raise Starting(_FETCHING)
        away = [one.trouble for one in self.upstreams if (known := one.sessions.known) and known.model == name]
        raise DaemonUnreachable("; ".join(away)) if away else NoSuchModel(name)

    # --- requests

    def ask(self, request: Request, client: EventSink, now: float) -> None:
        """Start a request, or resume it; a client that had it here loses it."""
        if self.first.info is None:
            PendingRequest(request, client).fail(DaemonUnreachable(self.trouble))
            return
        self._arrived += 1
        pending = PendingRequest(request, client, self._arrived)
        if request.id:
            had = [one.address for one in self.upstreams if one.sessions.take_over(request.id, now)]
            pending = replace(pending, home=had[0]) if had else pending
        pending = self.retries.recalled(pending)
        if not self.queue:
            self._most_ahead, self._full = AHEAD, inf
        if not self.queue and self._ahead() < self._most_ahead:
            self._put(pending, now)
        else:
            self._enqueue(pending, now)

    def cancel_of(self, client: EventSink, now: float) -> None:
        self.queue = [pending for pending in self.queue if pending.client is not client]
        self.retries.take(lambda pending: pending.client is client)
        for upstream in self.upstreams:
            upstream.sessions.cancel_of(client, now)

    def refuse(self, error: SpecmeshError) -> None:
        for pending in self.queue:
            pending.fail(error)
        self.queue.clear()

    def stop(self, error: SpecmeshError) -> None:
        self.refuse(error)
        for pending in self.retries.take(lambda _: True):
            pending.fail(error)

    def look(self, now: float) -> None:
        """Take back what is no verifier's any more, and do what is due."""
        for upstream in self.upstreams:
            while upstream.sessions.returned:
                one = upstream.sessions.returned.popleft()
                if one.refused:
                    self._refused(one.pending, one.error, now, upstream)
                else:
                    self._lost(one.pending, one.error, now, again=one.again)
        if self.retries.waiting:
            self._expire(now)
        if self.queue or self.retries.waiting:
            self._reopen(now)

    def _refused(self, pending: PendingRequest, error: SpecmeshError, now: float, by: Upstream) -> None:
        """Try another verifier. An invalid request is invalid everywhere, but for a prompt too long for this one."""
        tried, busy = (*pending.tried, by.address), isinstance(pending.error, Busy)
        if pending.began is None and not isinstance(error, Busy | NoSuchText | DaemonUnreachable):
            larger = [one.address for one in self.upstreams if one.n_ctx > by.n_ctx]
            busy = busy and any(address in larger for address in pending.tried)
            tried = (*tried, *(one.address for one in self.upstreams if one.info and one.address not in larger))
        self._put(replace(pending, tried=tried, error=pending.error if busy else error), now)

    def _lost(self, pending: PendingRequest, error: SpecmeshError, now: float, *, again: bool) -> None:
        """Resume at another verifier where one can, else wait for one."""
        request = pending.request
        waits = bool(request.id) and request.reconnect_timeout > 0
        elsewhere = replace(pending, tried=(), error=None)
        found = [one for one in self._candidates(elsewhere, now) if one.address != pending.home and not again]
        if found:
            where: dict[str, object] = {"request": request.label, "verifier": found[0].address}
            self._note(ev.Noted("session_goes_elsewhere", where))
            until = now + request.reconnect_timeout if waits and pending.until is None else pending.until
            self._ask(found[0], replace(elsewhere, until=until), now)
        elif waits:
            self.retries.add(elsewhere, now)
        else:
            self._give_up(pending, error)

    def _reopen(self, now: float) -> None:
        while self.queue and self._ahead() < self._most_ahead and self._own() < self._full:
            self._full = inf
            self._room.left(now)
            pending = self.queue.pop(0)
            if self._candidates(pending, now):
                self._put(pending, now)
            else:
                self._lost(pending, DaemonUnreachable("the verifier went away"), now, again=False)
        for pending in self.retries.take(lambda pending: self._candidates(pending, now), now):
            self._put(pending, now)

    def _expire(self, now: float) -> None:
        """End what has waited long enough, or in vain: its verifier came back with another model."""
        for pending in self.retries.take(self._hopeless):
            other = "the verifier came back with another model: the text ends here"
            pending.fail(DaemonUnreachable(other))
        for pending in self.retries.take(lambda one: one.until is not None and now >= one.until):
            seconds = pending.request.reconnect_timeout
            why = next((one.refusal for one in self.upstreams if one.address == pending.home), None)
            went = f"the verifier at {pending.home} went away and was not back within {seconds:g} s"
            self._give_up(pending, DaemonUnreachable(why or went))

    def _ahead(self) -> int:
        return sum(len(one.sessions.asked) + len(one.sessions.returned) for one in self.upstreams)

    def _own(self) -> int:
        return sum(one.sessions.own for one in self.upstreams)

    def _enqueue(self, pending: PendingRequest, now: float) -> None:
        full = f"{len(self.queue)} requests wait at this drafter: try again, or start it with a larger --max-queue"
        try:
            self._room.check([one.request.size for one in self.queue], pending.request.size, now, full)
        except Busy as error:
            pending.fail(error)
            return
        self.queue.append(pending)
        self.queue.sort(key=lambda one: (one.request.priority, one.number))

    def _put(self, pending: PendingRequest, now: float) -> None:
        """Ask the best verifier that has not refused; where all have, wait or fail."""
        found = self._candidates(pending, now)
        if found:
            self._ask(found[0], pending, now)
            return
        error = pending.error or DaemonUnreachable("no verifier is there that could have this text")
        # Those that refused were others: its own may come back, and take it.
        others_only = pending.began is not None and pending.home not in pending.tried
        fresh = replace(pending, tried=(), error=None)
        if pending.until is not None and (others_only or isinstance(error, Busy)):
            self.retries.add(fresh, now)
        elif isinstance(error, Busy) and self._own() and (self._ahead() or self.queue):
            # Others of this drafter's fill it: after one of them.
            self._most_ahead = max(self._ahead(), 1)
            self._full = inf if self._ahead() else self._own()
            self._enqueue(fresh, now)
        elif isinstance(error, DaemonUnreachable):
            self._give_up(pending, error)
        else:
            pending.fail(error)

    def _ask(self, upstream: Upstream, pending: PendingRequest, now: float) -> None:
        if (error := upstream.sessions.ask(pending)) is not None:
            self._refused(pending, error, now, upstream)

    def _candidates(self, pending: PendingRequest, now: float) -> list[Upstream]:
        """Return the verifiers that may have a request and have not refused it, the best first: the one that had it,
        then those that are not stuck, by when they would have finished."""
        fit = [one for one in self.upstreams if one.address not in pending.tried and self._fits(pending, one)]
        if len(fit) < 2:
            return fit
        order = rank_verifiers([one.outlook(now) for one in fit], pending.request.params.max_tokens)
        return sorted((fit[index] for index in order), key=lambda one: (one.address != pending.home, one.stuck))

    def _fits(self, pending: PendingRequest, upstream: Upstream) -> bool:
        """Return True where the verifier has the model that was asked for, or that the text began with."""
        info, began = upstream.info, pending.began
        if info is None:
            return False
        if began is None:
            return pending.request.target in ("", info.target)
        if upstream.address == pending.home:
            return began.same_model(info)
        return began.same_file(info) and info.n_ctx >= began.n_ctx  # a shorter one would end the text early

    def _hopeless(self, pending: PendingRequest) -> bool:
        """Return True where the verifier that began a text has another model now, and no other has that one."""
        began, there = pending.began, {one.address: one.info for one in self.upstreams if one.info is not None}
        return began is not None and pending.home in there and not any(map(began.same_model, there.values()))

    def _give_up(self, pending: PendingRequest, error: SpecmeshError) -> None:
        self.retries.remember(pending)
        pending.fail(error)
