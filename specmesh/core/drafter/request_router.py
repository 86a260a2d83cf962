"""Which verifier gets a request of the drafter's clients: another one where the first refuses or goes away."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from specmesh.core.drafter.upstream import Upstream
from specmesh.core.fair_queue import Tenant, parts_of
from specmesh.core.requests import (
    DrafterRequest,
    EventSink,
    Reply,
    Request,
    RequestState,
    is_wrong,
    target_of,
)
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
MAX_OPENING = (
    32  # most requests that a verifier is asked for and has not begun: it drops what comes too fast
)
MAX_OWN_OPENING = 8  # and of one tenant: they wait in a line in which no other overtakes them
NEARLY_AS_FAST = (
    1.1  # slower by less is not slower: the turns of a chat should find their prefix cache again
)


class RequestRouter:
    """The requests of a drafter's clients, in the order of their arrival. upstreams: the verifiers, in the order of the
    settings, have effects of their own. Requests queue at these, up to MAX_OPENING at each; the others are not placed
    yet."""

    def __init__(self, upstreams: Sequence[Upstream], now: float) -> None:
        self.upstreams = upstreams
        self.requests: list[DrafterRequest] = []
        self._replies, self._begun = list[Reply](), now

    def take_effects(self) -> list[Reply]:
        """Return what clients are to hear from here; those of a session hear it from its verifier's."""
        replies, self._replies = self._replies, []
        return replies

    # --- what is served

    @property
    def first(self) -> Upstream:
        """Return the first verifier that is there, or the first of all if none is."""
        there = (one for one in self.upstreams if one.info is not None)
        return next(there, self.upstreams[0])

    @property
    def trouble(self) -> str:
        return "; ".join(one.trouble for one in self.upstreams)

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(
            dict.fromkeys(one.info.model for one in self.upstreams if one.info is not None)
        )

    def serving(self, name: str, now: float) -> tuple[m.Welcome, Vocabulary]:
        """Return a verifier with the model of this name, or any; a lone one answers to any name.
        One that is drafted for comes first. Raises why none is."""
        there = [one for one in self.upstreams if one.info is not None]
        wanted = [
            one
            for one in there
            if len(self.upstreams) == 1 or name in ("", one.info and one.info.model)
        ]
        for one in sorted(wanted, key=lambda one: bool(one.foreign)):
            if one.info is not None and one.vocabulary is not None:
                return one.info, one.vocabulary
        if wanted and all(one.unusable for one in wanted):
            raise DaemonUnreachable("; ".join(one.trouble for one in wanted))
        if wanted:
            raise Starting(
                "the vocabulary is still being fetched from the verifier", "try again in a moment"
            )
        if (
            not there
            and now < self._begun + CONNECTING
            and not all(one.refusal for one in self.upstreams)
        ):
            addresses = ", ".join(one.address for one in self.upstreams)
            raise Starting(f"the drafter is connecting to {addresses}", "try again in a moment")
        if not there:
            raise DaemonUnreachable(self.trouble)
        away = [
            one.trouble for one in self.upstreams if (known := one.known) and known.model == name
        ]
        raise DaemonUnreachable("; ".join(away)) if away else NoSuchModel.of(name)

    # --- requests

    def in_state(self, *states: RequestState) -> list[DrafterRequest]:
        return [one for one in self.requests if one.state in states]

    def ask(self, request: Request, client: EventSink, now: float, tenant: Tenant = ()) -> None:
        """Start a request, or resume it; a client that had it here loses it."""
        new = DrafterRequest(request, client, tenant, request.own_size)
        if self.first.info is None:
            self._replies.append(new.fail(DaemonUnreachable(self.trouble)))
            return
        unplaced = self.in_state(RequestState.UNPLACED)
        room = WaitingRoom()
        for one in unplaced:
            room.enter(one.tenant, one.size)
        full = f"{len(unplaced)} requests wait at this drafter: try again"
        try:
            room.check(tenant, new.size, MAX_QUEUE, full)
        except Busy as error:
            self._replies.append(new.fail(error))
            return
        for had in self.in_state(RequestState.OPEN, RequestState.GIVEN_UP) if request.id else ():
            if had.request.id == request.id:
                self._resume(new, had)
        self.requests.append(new)
        if not unplaced:
            self._place(new, now)

    def cancel_of(self, client: EventSink) -> None:
        for one in self.requests:
            if one.client is not client:
                continue
            if one.state in (RequestState.OPENING, RequestState.OPEN):
                for upstream in self.upstreams:
                    upstream.cancel(one)
            elif one.state is not RequestState.OVER:
                one.move(RequestState.OVER)

    def pause(self, client: EventSink, *, paused: bool) -> None:
        """Let a client's text wait for its reader, or go on: now, and where it is opened anew."""
        for one in self.requests:
            if one.client is client:
                one.paused = paused
                for upstream in self.upstreams:
                    upstream.pause(one)

    def stop(self, error: SpecmeshError) -> None:
        for one in self.requests:
            if one.state not in (RequestState.GIVEN_UP, RequestState.OVER):
                self._replies.append(one.fail(error))

    def look(self, now: float) -> None:
        """Find verifiers for what has none any more, and do what is due."""
        if not self.requests:
            return
        for one in self._in_turn(self.in_state(RequestState.UNPLACED)):
            self._place(one, now)
        for one in self.in_state(RequestState.WAITING):
            self._retry(one, now)
        given_up = self.in_state(RequestState.GIVEN_UP)
        for one in given_up[: max(len(given_up) - MAX_GIVEN_UP, 0)]:
            one.move(RequestState.OVER)
        self.requests = [one for one in self.requests if one.state is not RequestState.OVER]

    def _in_turn(self, unplaced: list[DrafterRequest]) -> list[DrafterRequest]:
        """Return them so that tenants with the fewest requests at verifiers come first, of one
        tenant the oldest."""
        if len(unplaced) < 2:
            return unplaced
        placed = self.in_state(RequestState.OPENING, RequestState.OPEN)
        taken = Counter(part for one in placed for part in parts_of(one.tenant))
        ranked = list[tuple[list[int], int]]()
        for age, one in enumerate(unplaced):
            parts = parts_of(one.tenant)
            ranked.append(([taken[part] for part in parts], age))
            taken.update(parts)
        return [unplaced[age] for _, age in sorted(ranked)]

    def _resume(self, new: DrafterRequest, had: DrafterRequest) -> None:
        """Let a request go on with the text of one that was here, at its verifier if that has it."""
        new.home = had.home
        if had.state is RequestState.OPEN:
            for upstream in self.upstreams:
                upstream.take_over(had)
            return
        if new.request.named_only:
            known, rounds, timeout = (
                new.request.known,
                new.request.rounds,
                new.request.reconnect_timeout,
            )
            new.request = replace(
                had.request, known=known, rounds=rounds, reconnect_timeout=timeout
            )
            new.verifier = had.verifier
        had.move(RequestState.OVER)

    def _place(self, one: DrafterRequest, now: float) -> None:
        """Ask the best verifier that has not refused; where all have, let it wait or fail."""
        if found := self._candidates(one):
            opening = found[0].opening
            own = sum(other.tenant == one.tenant != () for other in opening.values())
            if len(opening) < MAX_OPENING and own < MAX_OWN_OPENING:  # else once it has begun some
                found[0].ask(one)
            return
        error = one.error or DaemonUnreachable("no verifier is there that could have this text")
        # Those that refused were others: its own may come back, and take it.
        others_only = one.began is not None and one.home not in one.tried
        gone = isinstance(error, DaemonUnreachable | RemoteProtocolError)
        if one.until is not None and (others_only or gone or isinstance(error, Busy)):
            one.due = now + RETRY_S if one.tried else now
            one.tried, one.error = (), None
            one.move(RequestState.WAITING)
        elif gone:
            self._give_up(one, error)
        else:
            self._replies.append(one.fail(error))

    def _retry(self, one: DrafterRequest, now: float) -> None:
        """Ask again for a request that waits, or end it after long enough, or where it waits in vain."""
        assert one.until is not None, "what waits has its time"
        if self._hopeless(one):
            error = DaemonUnreachable(
                "the verifier came back with another model: the text ends here"
            )
            self._replies.append(one.fail(error))
        elif now >= one.until:
            why = next(
                (upstream.refusal for upstream in self.upstreams if upstream.address == one.home),
                None,
            )
            seconds = one.request.reconnect_timeout
            went = f"the verifier at {one.home} went away and was not back within {seconds:g} s"
            self._give_up(one, DaemonUnreachable(why or went, address=one.home))
        elif now >= one.due and self._candidates(one):
            self._place(one, now)

    def _candidates(self, one: DrafterRequest) -> list[Upstream]:
        """Return the verifiers that may have a request and have not refused it, the best first: the one that had it,
        those that are drafted for, then by how soon they would tell its next token."""
        fit = [upstream for upstream in self.upstreams if self._fits(one, upstream)]
        if len(fit) < 2:
            return fit
        seconds = {upstream.address: upstream.token_seconds for upstream in fit}
        near = NEARLY_AS_FAST * min(seconds.values())
        rank = {
            address: 0.0 if expected <= near else expected for address, expected in seconds.items()
        }
        return sorted(
            fit,
            key=lambda upstream: (
                upstream.address != one.home,
                bool(upstream.foreign),
                rank[upstream.address],
            ),
        )

    def _fits(self, one: DrafterRequest, upstream: Upstream) -> bool:
        """Return True where the verifier has not refused, and has the model that was asked for, or that the text began
        with."""
        info, began = upstream.info, one.began
        if info is None or upstream.address in one.tried:
            return False
        if began is None:
            return not is_wrong(one.error) and one.request.target in ("", target_of(info))
        if upstream.address == one.home:
            return same_model(began, info)
        return (
            same_file(began, info) and info.n_ctx >= began.n_ctx
        )  # a shorter one would end the text early

    def _hopeless(self, one: DrafterRequest) -> bool:
        """Return True where the verifier that began a text has another model now, and no other has that one."""
        began, there = (
            one.began,
            {other.address: other.info for other in self.upstreams if other.info is not None},
        )
        return (
            began is not None
            and one.home in there
            and not any(same_model(began, info) for info in there.values())
        )

    def _give_up(self, one: DrafterRequest, error: SpecmeshError) -> None:
        resumable = bool(one.request.id and one.request.prompt_ids)
        self._replies.append(
            one.fail(error, RequestState.GIVEN_UP if resumable else RequestState.OVER)
        )


def same_model(before: m.Welcome, now: m.Welcome) -> bool:
    """Return True where a verifier that came back has the model that it had."""
    return (target_of(before), before.n_vocab, before.model_hash) == (
        target_of(now),
        now.n_vocab,
        now.model_hash,
    )


def same_file(one: m.Welcome, other: m.Welcome) -> bool:
    """Return True where both run the same file, as far as the hash shows; equal names prove nothing across machines."""
    known = one.model_hash != "" and one.model_hash == other.model_hash
    return known and (one.vocab_fingerprint, one.n_vocab) == (
        other.vocab_fingerprint,
        other.n_vocab,
    )
