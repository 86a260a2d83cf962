"""A session at a drafter, the events that its own client is sent, and its grammar."""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import structlog

from specmesh.api.requests import Failed, Finished, Started, Tokens
from specmesh.core.draft_session import DrafterSession
from specmesh.core.events import Learned, Predict
from specmesh.core.report import with_drafting
from specmesh.core.sampling.acceptance_strategies import uses_proposals
from specmesh.core.sampling.constraint import SIMPLER, Constraint, DraftConstraint, Grammar
from specmesh.core.sampling.logprobs import Logprob
from specmesh.core.sampling.proposal import ProposalSampler
from specmesh.core.sampling.sampler import Sampler
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.daemons.drafter.retry_queue import PendingRequest
from specmesh.engines.grammar import Grammars
from specmesh.errors import SpecmeshError
from specmesh.wire.messages import Done, Logprobs, Round

log = structlog.get_logger("specmesh.drafter")

MAX_EARLY_LOGPROBS = 4096  # most kept for ids that are not here yet: their TRUTH may have been lost


@dataclass(slots=True)
class _Buffered:
    """Ids at `positions`. round: their ROUND is to come."""

    positions: range
    tokens: Tokens
    round: bool


class EventBuffer:
    """Committed ids in order, until the ROUND and the LOGPROBS that belong to them are here, where asked for."""

    def __init__(self, *, rounds: bool, logprobs: bool) -> None:
        self._rounds, self._asked = rounds, logprobs
        self._waiting: deque[_Buffered] = deque()
        self._begin = self._end = 0  # of the ids that wait, or are next
        self._complete = 0  # before this position no more log-probabilities come
        self._logprobs: dict[int, Logprob] = {}  # by position

    @property
    def first(self) -> int | None:
        return self._begin if self._waiting else None

    def add(self, base: int, ids: tuple[int, ...], accepted: int, *, sync: bool) -> None:
        """Add committed ids. After a SYNC no ROUND comes for earlier ids, and LOGPROBS come anew."""
        if sync:
            self.give_up_rounds()
            self._complete = min(self._complete, base)
        if not self._waiting:
            self._begin = base
            self._logprobs = {position: one for position, one in self._logprobs.items() if position >= base}
        self._end = base + len(ids)
        waiting = _Buffered(range(base, self._end), Tokens(ids, accepted, None), self._rounds and not sync)
        self._waiting.append(waiting)

    def add_round(self, drafts: tuple[int, ...], accepted: int) -> None:
        waiting = next((one for one in self._waiting if one.round), None)
        if waiting is not None:
            waiting.round = False
            waiting.tokens = replace(waiting.tokens, accepted=accepted, drafts=drafts)

    def add_logprobs(self, message: Logprobs) -> None:
        found = _parsed(message)
        self._complete = max(self._complete, message.base + len(found))
        for position, one in enumerate(found, message.base):
            early = position >= self._end
            if position >= self._begin and not (early and len(self._logprobs) >= MAX_EARLY_LOGPROBS):
                self._logprobs[position] = one

    def give_up_rounds(self) -> None:
        for waiting in self._waiting:
            waiting.round = False

    def give_up(self) -> None:
        """Wait for nothing more."""
        self.give_up_rounds()
        self._complete = max(self._complete, self._end)

    def ready(self) -> Iterator[Tokens]:
        """Remove and yield what waits for nothing more, in order."""
        while self._waiting and not self._waiting[0].round:
            positions, tokens = self._waiting[0].positions, self._waiting[0].tokens
            if not self._asked:
                logprobs = tuple[Logprob | None, ...]()
            elif positions.stop > self._complete and not all(position in self._logprobs for position in positions):
                return
            else:
                logprobs = tuple(self._logprobs.pop(position, None) for position in positions)
            self._waiting.popleft()
            self._begin = positions.stop
            yield replace(tokens, logprobs=logprobs)


def _parsed(message: Logprobs) -> Sequence[Logprob]:
    count = len(message.chosen)
    each, odd = divmod(len(message.top_ids), count) if count else (0, 0)
    if odd or len(message.top) != len(message.top_ids):
        return ()
    ids, top = tuple(message.top_ids), tuple(message.top)
    return [
        Logprob(chosen, ids[at * each : (at + 1) * each], top[at * each : (at + 1) * each])
        for at, chosen in enumerate(message.chosen)
    ]


@dataclass(slots=True)
class DraftSession:
    """A session and, where a client here asked for it, its request.

    seq: sequence in the draft model; None before the prompt is here, and while there is no room. guided: drafts under
    the grammar, once it is compiled. ref: of the OPEN that asked for it, or 0. broken: the verifier's ERROR about it.
    undraftable: drafting for it has failed.
    """

    id: int
    machine: DrafterSession
    sampler: Sampler
    n_prompt: int
    end_ids: Collection[int]
    pending: PendingRequest | None
    grammar: Grammar | None = None
    ref: int = 0
    cache_prompt: bool = True
    seq: int | None = None
    bytes_sent: int = 0
    bytes_received: int = 0
    compiling: Future[Constraint] | None = None
    guided: DraftConstraint | None = None
    broken: SpecmeshError | None = None
    undraftable: bool = False
    _buffer: EventBuffer = field(init=False)

    def __post_init__(self) -> None:
        request = self.pending.request if self.pending is not None else None
        self._buffer = EventBuffer(
            rounds=request is not None and request.rounds,
            logprobs=request is not None and request.params.logprobs is not None,
        )

    def sampler_for(self, plan: Predict) -> Sampler | None:
        if not plan.guess:
            return None
        back = self.sampler.looks_back
        sampler = self.sampler.after(self.machine.before(plan, back)) if back else self.sampler
        if self.guided is not None:
            length = self.machine.end(plan) - self.n_prompt
            return self.guided.sampler(sampler, length, lambda count: self.machine.before(plan, count))
        return ProposalSampler(sampler, self.machine.crc_after(plan)) if uses_proposals(sampler.params) else sampler

    def learned(self, news: Learned) -> int:
        """Take in committed ids, the prompt first; return how many generated ones are new to the client."""
        begin = self.machine.n_truth - len(news.ids)
        if begin < self.n_prompt <= self.machine.n_truth:
            self._start()
        known = self.pending.request.known if self.pending is not None else 0
        base = max(begin, self.n_prompt + known)
        ids = news.ids[base - begin :]
        if ids:
            self._buffer.add(base, ids, news.accepted, sync=news.sync)
            self._send_ready()
        return len(ids)

    @property
    def _prompt_ids(self) -> tuple[int, ...]:
        return self.machine.truth[: self.n_prompt]

    def add(self, message: Round | Logprobs) -> None:
        """Add what belongs to committed ids."""
        if isinstance(message, Round):
            self._buffer.add_round(tuple(message.drafts), message.accepted)
        else:
            self._buffer.add_logprobs(message)
        self._send_ready()

    def done(self, message: Done) -> None:
        """Send the end, with the verifier's report and this drafter's own time and bytes."""
        if self.pending is None:
            return
        self._buffer.give_up()
        self._send_ready()
        report = with_drafting(message.report, self.machine.drafted, self.machine.draft_seconds)
        report |= {"bytes_sent": self.bytes_sent, "bytes_received": self.bytes_received}
        self.pending.client.on_event(Finished(message.finish_reason, self._prompt_ids, report))

    def cancelled(self) -> None:
        if self.pending is not None:
            self.pending.client.on_event(Finished("cancelled", self._prompt_ids, {}))

    def failed(self, error: SpecmeshError) -> None:
        if self.pending is not None:
            self.pending.client.on_event(Failed(error))
            self.pending = None

    def interrupted(self) -> PendingRequest | None:
        """Return the request, changed to resume after what the client has been sent; nothing is sent here any more."""
        if self.pending is None:
            return None
        self._buffer.give_up_rounds()
        self._send_ready()
        pending, self.pending = self.pending, None
        request, truth = pending.request, self.machine.truth
        if len(truth) < self.n_prompt:
            return pending
        sent = truth[self.n_prompt : self._buffer.first]  # what lacks its log-probabilities is generated again
        generated = sent if len(sent) > len(request.generated) else request.generated
        known = max(request.known, len(sent))
        return replace(pending, request=replace(request, prompt_ids=self._prompt_ids, generated=generated, known=known))

    def _start(self) -> None:
        if self.pending is None or self.pending.started:
            return
        self.pending = replace(self.pending, started=True)
        params = self.pending.request.params
        self.pending.client.on_event(Started(self.id, self.n_prompt, self._prompt_ids, params))

    def _send_ready(self) -> None:
        for tokens in self._buffer.ready():
            if self.pending is not None:
                ids = tokens.ids  # only the last round can have an end id
                shown = ids[:-1] if ids[-1] in self.end_ids else ids
                accepted = min(tokens.accepted, len(shown))
                self.pending.client.on_event(Tokens(shown, accepted, tokens.drafts, tokens.logprobs[: len(shown)]))


class DraftGrammars:
    """Compiles the sessions' grammars on a thread of its own: drafts need not wait for them."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._grammars: tuple[Vocabulary, Grammars] | None = None

    def update(self, live: DraftSession, vocabulary: Vocabulary | None) -> None:
        """Begin to compile a session's grammar, attach it once compiled, drop it once its work limit is spent."""
        if live.guided is not None and (why := live.guided.exhausted) is not None:
            live.guided = live.grammar = None
            log.warning("grammar_spent", session=live.id, error=why, meaning="its drafts go without", hint=SIMPLER)
        if live.grammar is None or live.guided is not None or vocabulary is None:
            return
        if live.compiling is None:
            live.compiling = self._pool.submit(self._compile, vocabulary, live.grammar)
        elif live.compiling.done():
            try:
                live.guided = DraftConstraint(live.compiling.result(), live.end_ids)
            except Exception as error:  # noqa: BLE001  (whatever it is, drafts go on without)
                live.grammar = None
                log.warning("grammar_unknown", session=live.id, error=str(error), meaning="its drafts go without")

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._grammars is not None:
            self._grammars[1].close()

    def _compile(self, vocabulary: Vocabulary, grammar: Grammar) -> Constraint:
        if self._grammars is None or self._grammars[0] is not vocabulary:
            if self._grammars is not None:
                self._grammars[1].close()
            self._grammars = vocabulary, Grammars(vocabulary)
        return self._grammars[1].compile(grammar)
