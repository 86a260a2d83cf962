"""One session at the verifier: its text, the drafts beyond it, and its next step.

- `plan` returns its part of the target's next step.
- `prefilled` and `stepped` take the result.
- `take` takes a frame of the session's drafter.

The text depends on the target's logits, the sampler and the prompt only. Drafts change how soon it
comes.

A round, with the committed ids a b c and the drafts d e in hand:

1. `plan` returns Verify(position 2, last c, drafts d e). The target's sequence holds a b: the last
   committed id is always decoded with the next step, which shows what follows it.
2. The step has three rows of logits: after c, after d and after e. `accept` chooses a token on the
   first. If it is d, the second row counts too, and so on. Say the target chooses d, then x.
3. The round commits d x. Of the drafts d was accepted, and x is the recovered token in the place
   of e. All sources of drafts see the round, and keep what still agrees.
4. The sequence holds a b c d e. All but the last committed id may stay: a b c d. Rollback cuts it.
5. TRUTH takes d x to the drafter, the round to the client.
"""

from collections.abc import Mapping, Sequence
from enum import Enum

from specmesh.core import events as ev
from specmesh.core.draft_length.bids import DraftBid
from specmesh.core.draft_length.controller import DraftLengthController
from specmesh.core.draft_length.drafter_estimates import DrafterEstimates
from specmesh.core.draft_length.local_estimates import LocalEstimates
from specmesh.core.draft_length.speculation import Speculations
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.kv_contents import NO_CONTENTS, KVContents
from specmesh.core.kv_slots import NO_SEQ, KVSlot
from specmesh.core.no_drafts import NoDrafts
from specmesh.core.prefix import Prefix
from specmesh.core.requests import Scored, SourceRun, Tokens
from specmesh.core.rounds import Round, SourceDrafts
from specmesh.core.sampling.constraint import Constraint, choose_allowed
from specmesh.core.sampling.logprobs import Logprob, LogprobRecorder
from specmesh.core.sampling.proposal import SampledDraft
from specmesh.core.sampling.sampler import Sampler
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.core.states import state_after
from specmesh.core.statistics.counters import RoundCounts, SessionTimes
from specmesh.core.target_rows import TargetRows, logits_of
from specmesh.core.text.stop import StopScan
from specmesh.core.token_sources import SourceRecorder, runs_of
from specmesh.core.verifier.accept import (
    Acceptance,
    TokenChoice,
    VerifiedRows,
    accept,
    deterministic,
    strategy_of,
    uses_proposals,
)
from specmesh.core.verifier.earlier_outputs import AccountOutputs
from specmesh.core.verifier.predicted_text import PredictedText
from specmesh.core.verifier.prompt_progress import PromptProgress
from specmesh.core.verifier.source_choice import Room, SourceChoice
from specmesh.core.verifier.sources.base import SourceContext
from specmesh.core.verifier.sources.local import LocalSource
from specmesh.core.verifier.sources.session_sources import sources_of
from specmesh.core.verifier.sources.suffix import SuffixSource
from specmesh.core.verifier.truth_sender import TruthSender
from specmesh.errors import LocalProtocolError, RequestError
from specmesh.wire import messages as m


class SessionState(Enum):
    """The state of a session that has a KV slot.

    - PREFILLING: its steps read the prompt, or its ids once more after it was set back.
    - GENERATING: its steps verify.
    - ENDED: it has no more steps.
    """

    PREFILLING = "prefilling"
    GENERATING = "generating"
    ENDED = "ended"


class SessionEvent(Enum):
    """An event that changes the state. Frames and requests may come in any state.

    - PROMPT_READ: all ids but the last are in the KV slot.
    - SET_BACK: the cells of its KV slot were needed by others.
    - OVER: an end token, a stop string, its length, its grammar, its client or an error ends it.
    """

    PROMPT_READ = "prompt read"
    SET_BACK = "set back"
    OVER = "over"


SESSION_STATES: Mapping[SessionState, Mapping[SessionEvent, SessionState]] = {
    SessionState.PREFILLING: {
        SessionEvent.PROMPT_READ: SessionState.GENERATING,
        SessionEvent.SET_BACK: SessionState.PREFILLING,
        SessionEvent.OVER: SessionState.ENDED,
    },
    SessionState.GENERATING: {
        SessionEvent.SET_BACK: SessionState.PREFILLING,
        SessionEvent.OVER: SessionState.ENDED,
    },
    SessionState.ENDED: {},
}
"""The state that follows each event, in each state."""


class VerifierSession:
    """A session, `id` on the wire.

    prefix: its ids, the prompt first, then the text.
    n_prompt: ids of the prompt. resumed: ids of the text that were there at the beginning.
    end: most ids that there may be.
    cached: ids of the prompt that the KV slot held at the beginning.
    finished: why it has ended; None while it goes on. A resumed text may have ended before.
    slot: its sequence in the target's memory, until it has ended. An empty one of no sequence while
        it is set back.
    followed: a client at the drafter reads along, so every round is sent at once.
    logprobs, token_sources, progress: None unless the client wants them.
    annotated: it wants one of the first two.
    local: its source of drafts made in this process; None without such a drafter.
    """

    def __init__(
        self,
        *,
        id: int,  # noqa: A002 - the session's own
        ids: Sequence[int],
        params: SessionParams,
        limits: TargetLimits,
        costs: StepCosts,
        speculations: Speculations,
        now: float,
        n_prompt: int | None = None,
        constraint: Constraint | None = None,
        slot: KVSlot | None = None,
        predicted: PredictedText | None = None,
        earlier: AccountOutputs | None = None,
        local: LocalEstimates | None = None,
    ) -> None:
        """Begin with `ids`: the prompt's first `n_prompt` (None: all), then a resumed text.

        costs, speculations: the verifier's, shared by all its sessions.
        constraint: the grammar's at the beginning of the text.
        slot: its sequence, and the ids that it holds already; never the last one. None: an empty
            sequence 0.
        predicted: the client's prediction of the text.
        earlier: outputs of its account, for drafts.
        local: what was measured of a drafter in this process; None without one.
        """
        n_prompt = len(ids) if n_prompt is None else n_prompt
        slot = KVSlot(seq=0) if slot is None else slot
        self.id = id
        self.prefix = Prefix(ids)
        self.n_prompt = n_prompt
        self.resumed = len(ids) - n_prompt
        self.params = params
        self.constraint = constraint
        self.sampler = Sampler(params.sampling)
        self.counts = RoundCounts(prompt_tokens=n_prompt)
        self.times = SessionTimes(opened=now)
        self.end = min(n_prompt + params.max_tokens, limits.n_ctx)
        self.slot = slot
        self.cached = min(slot.length, n_prompt)
        self.finished: m.FinishReason | None = None
        self.followed = False
        self._most_drafts = _most_drafts(params, limits)
        self.may_draft = self._most_drafts > 0
        self.state = SessionState.PREFILLING  # changed by `advance` only
        self._limits = limits
        self._scored = params.scored  # log-probabilities of the prompt are wanted
        self._scoring = params.scored  # they have not been reported yet
        self._stops = StopScan(params.stop, limits.pieces)
        # Most texts have neither, and are spared a call for each token.
        self._stoppable = bool(params.stop) or constraint is not None
        self._strategy = strategy_of(params.sampling)
        self.logprobs = self._recorder()
        self.token_sources = SourceRecorder(len(ids)) if params.sources else None
        self.annotated = params.annotated
        self.progress: PromptProgress | None = None
        if params.progress:
            self.progress = PromptProgress(len(ids), slot.length, now)
        self.draft_length = DraftLengthController(
            fixed=params.allowed_draft_n,
            most=limits.max_drafts,
            costs=costs,
            speculations=speculations,
            times=self.times,
            sources=params.draft_sources,
        )
        self.truth = TruthSender(id, self.prefix, self.draft_length)
        source_context = SourceContext(
            session=id,
            prefix=self.prefix,
            params=params,
            limits=limits,
            constraint=constraint,
            draft_length=self.draft_length,
            counts=self.counts,
            predicted=predicted,
            earlier=earlier,
            local=local,
        )
        self._sources = sources_of(source_context)
        self.choice = SourceChoice(self._sources, self.draft_length)
        self.remote = self.choice.remote
        self.local = next((each for each in self._sources if isinstance(each, LocalSource)), None)
        self._enter_first_state()

    def _recorder(self) -> LogprobRecorder | None:
        """Return a recorder of log-probabilities that has none yet, if they are wanted."""
        if self.params.logprobs is None:
            return None
        # The first id follows nothing, so it has no probability.
        begin = 1 if self._scored else len(self.prefix.ids)
        return LogprobRecorder(self.params.logprobs, begin)

    def _enter_first_state(self) -> None:
        """Enter the first state; a resumed text may have ended with its last ids."""
        # The last id is not awaited: it is decoded with the first step that verifies.
        if self.slot.length >= len(self.prefix) - 1:
            self.advance(SessionEvent.PROMPT_READ)
            self._scoring = False  # of a single id, which follows nothing
        prompt_only = self.params.max_tokens == 0 and not self._scoring
        if self.resumed or prompt_only:
            reason = self._ended_before()
            if reason is not None:
                self._finish(reason)

    def _ended_before(self) -> m.FinishReason | None:
        """Return why a resumed text has ended with its last ids, if it has."""
        stopped = False
        # All ids pass, also behind a stop: grammar and stop strings have a state, and the text may
        # go on.
        for token in self.prefix[self.n_prompt :]:
            if token in self._limits.end_ids or self._stops_with(token):
                stopped = True
        if stopped:
            return m.FinishReason.STOP
        if len(self.prefix) >= self.end:
            return m.FinishReason.LENGTH
        return None

    # --- events

    def advance(self, event: SessionEvent) -> None:
        """Change the state. Raise InvalidTransition if it has no such event."""
        self.state = state_after(SESSION_STATES, "session", self.state, event)

    def _finish(self, reason: m.FinishReason, error: RequestError | None = None) -> ev.Finish:
        """End the text; return the effect that tells the lifecycle so."""
        self.advance(SessionEvent.OVER)
        self.finished = reason
        return ev.Finish(reason, error)

    def take(self, frame: m.Draft | m.DraftProbs | m.Nack, now: float) -> Sequence[m.Nack | m.Sync]:
        """Take a frame of the session's drafter; return the frames that answer it."""
        if self.finished is not None:
            return []
        if isinstance(frame, m.Nack):
            return self.truth.nacked(frame, now)
        if self.draft_length.drafter is None or not self.draft_length.allows_remote:
            # They were on their way when the drafter was taken from the session, or nobody has
            # asked for them.
            self.counts.stale_drafts += len(frame.ids)
            return []
        return self.remote.take(frame, now)

    def follow(self, *, by_drafter: bool) -> None:
        """Note whether a client at the drafter reads along."""
        self.followed = by_drafter

    def forget_earlier(self) -> None:
        """Take no more drafts from earlier outputs: a client of another account has it now."""
        for source in self._sources:
            if isinstance(source, SuffixSource):
                source.forget_earlier()
                self.draft_length.judge_apart(source.name, None)

    def cancel(self, reason: m.FinishReason) -> list[ev.VerifierEffect]:
        """End the text here."""
        if self.finished is not None:
            return []
        return [self._finish(reason)]

    def attach(self, drafter: DrafterEstimates) -> list[m.Sync]:
        """Begin with another drafter; return the frames that give it the prefix.

        If drafts come with proposals, those of the drafter before are dropped: equal drafts may
        come from other distributions.
        """
        if uses_proposals(self.params.sampling):
            self.remote.forget()
        self.draft_length.attach(drafter)
        return self.truth.begin()

    # --- its place in the target's memory

    @property
    def is_set_back(self) -> bool:
        """Return True if it has no sequence, as others needed the cells."""
        return self.slot.seq == NO_SEQ

    def set_back(self) -> None:
        """Leave its sequence. What it has shown stays, and the drafts in hand."""
        if self._scoring:
            self.logprobs = self._recorder()  # the prompt is read, and scored, once more
        elif self.state is SessionState.GENERATING:
            self.progress = None  # its prompt was read
        self.advance(SessionEvent.SET_BACK)
        self.slot = KVSlot(seq=NO_SEQ)

    def go_on(self, slot: KVSlot) -> list[ev.VerifierEffect]:
        """Read its ids once more, into another sequence, but for those that this holds already."""
        self.slot = slot
        self.draft_length.interrupted()
        if slot.length < len(self.prefix.ids) - 1:
            return []
        if len(self.prefix.ids) >= self.end:
            return [self._finish(m.FinishReason.LENGTH)]
        self.advance(SessionEvent.PROMPT_READ)
        return []

    # --- its text and its drafts

    @property
    def generated(self) -> int:
        """Return the number of ids of the text, resumed ones included."""
        return self.resumed + self.counts.generated_tokens

    def text_ids(self, known: int = 0) -> tuple[int, ...]:
        """Return the ids of the text but for the first `known`, without an end id."""
        ids = tuple(self.prefix[self.n_prompt + known :])
        if ids and ids[-1] in self._limits.end_ids:
            return ids[:-1]
        return ids

    @property
    def memory(self) -> KVContents:
        """Return the ids that its sequence holds for certain, as far as others may use them."""
        if not self.params.cache_prompt:
            return NO_CONTENTS
        return KVContents(self.prefix.ids[: self.slot.length], self.n_prompt - 1)

    @property
    def drafting(self) -> bool:
        """Return True if drafts are asked for in order to be verified."""
        draft_length = self.draft_length
        if draft_length.drafter is None or draft_length.probing:
            return False
        return draft_length.draft_n > 0

    @property
    def draft_n(self) -> int:
        """Return the most drafts of the next step."""
        if self.draft_length.probing:
            return 0
        return self.draft_length.draft_n

    @property
    def no_drafts(self) -> NoDrafts | None:
        """Return why nothing is drafted for it by a drafter that could.

        None if something is drafted, by another source too, and while its prompt is read.
        """
        if self.state is SessionState.PREFILLING:
            return None
        if self.constraint is not None and self.constraint.exhausted is not None:
            return NoDrafts.GRAMMAR
        if self.draft_length.relieved:
            return None
        if self.draft_n == 0:
            return NoDrafts.GATE
        if not self.draft_length.estimate.drafting and not self.remote.tokens:
            return NoDrafts.BEHIND
        return None

    @property
    def was_not_drafted(self) -> NoDrafts:
        """Return why no draft was verified, although a drafter drafted for it to the end."""
        if self.constraint is not None and self.counts.stale_drafts:
            return NoDrafts.GRAMMAR
        return NoDrafts.BEHIND

    # --- the next step

    def plan(self, now: float, *, lone: bool = False) -> ev.Plan:
        """Return its part of the next step; Wait if a draft is worth more than a step now.

        lone: no other session may have rows in that step.
        """
        if self.state is SessionState.PREFILLING:
            return self._missing()
        ids = self.prefix.ids
        if self.choice.idle:
            return ev.Verify(len(ids) - 1, ids[-1], ())
        room = self.max_drafts()
        copied = room
        if lone and self.params.allowed_draft_n is None:
            copied = max(min(self._limits.max_copied, self.end - len(ids) - 1), room)
        chain = self.choice.next_chain(Room(room, copied), now)
        if isinstance(chain, ev.Wait):
            return chain
        return ev.Verify(len(ids) - 1, ids[-1], chain.drafts, chain.parts)

    def verify(self) -> ev.Verify:
        """Return a step that begins at once, with the drafts in hand."""
        room = self.max_drafts()
        chain = self.choice.chain_in_hand(Room(room, room))
        ids = self.prefix.ids
        return ev.Verify(len(ids) - 1, ids[-1], chain.drafts, chain.parts)

    def _missing(self) -> ev.Prefill:
        """Return the ids that the target lacks: of the prompt and of a resumed text.

        If steps have a constant width, all ids are read in the same parts as the first time: the
        prompt in parts of its own, ids that steps of that width have generated by such steps again.
        In other parts their cells would have other bits, and a near tie after them could fall
        differently.
        """
        width = self._limits.width
        prompt = self.n_prompt - 1
        begin = self.slot.length
        end = len(self.prefix) - 1
        stepwise = self._scoring or (width is not None and begin >= prompt)
        if stepwise:
            # Logits of each row are needed, and the engine has memory for those of a step that
            # verifies.
            end = min(begin + self._limits.max_drafts + 1, end)
        elif width is not None:
            end = prompt
        end = self.slot.part_end(end)
        most_rows = None
        if self.progress is not None and width is None:
            most_rows = self.progress.most_rows
        ids = self.prefix.ids
        last = None
        is_whole = end == len(ids) - 1
        if is_whole and len(ids) < self.end and self._joins_first(stepwise=stepwise):
            last = ids[-1]
        return ev.Prefill(begin, ids[begin:end], stepwise, most_rows, last)

    def _joins_first(self, *, stepwise: bool) -> bool:
        """Return True if the step that reads the last ids of the prompt may bring the first token.

        Not if the state after them is to be saved before, and not where a step has a width or a
        number of drafts of its own.
        """
        if stepwise or self._limits.width is not None or self.params.draft_n:
            return False
        return len(self.prefix) - 1 not in self.slot.stops

    def bid(self, verify: ev.Verify) -> DraftBid:
        """Return what a session offers to a shared step: its drafts, by expected acceptance."""
        acceptance = self.choice.acceptance(verify.sources)
        return DraftBid(tuple(acceptance), chosen=self.params.allowed_draft_n is not None)

    def begin(self, now: float) -> float:
        """Note that a step with this session begins; return the seconds that were waited for it."""
        if self.times.decoding is None:
            self.times.decoding = now
        return self.draft_length.begin(now)

    def max_drafts(self) -> int:
        """Return the most drafts of a step, of all sources: one row is the target's own."""
        room = self.end - len(self.prefix.ids) - 1
        return max(min(self._most_drafts, room), 0)

    # --- steps

    def prefilled(self, count: int, logits: ev.Rows = None) -> list[ev.VerifierEffect]:
        """Note that `count` more ids are in the target's memory.

        logits: those after each id, if the prompt is scored. Raise LocalProtocolError in a state
        that has no prefill.
        """
        if self.state is not SessionState.PREFILLING:
            raise LocalProtocolError(f"Prefill while {self.state.value}")
        slot = self.slot
        slot.peak = 0
        recorder = self.logprobs if self._scoring else None
        if recorder is not None and logits is not None:
            ids = self.prefix[slot.length + 1 : slot.length + 1 + count]
            recorder.take(logits_of(logits), ids)
        slot.length += count
        if slot.length < len(self.prefix.ids) - 1:
            return []
        effects: list[ev.VerifierEffect] = []
        if recorder is not None:
            self._scoring = False
            effects.append(Scored(recorder.between(1, self.n_prompt)))
        if len(self.prefix.ids) < self.end:
            # Only a scored prompt may have no text behind it.
            self.advance(SessionEvent.PROMPT_READ)
        else:
            effects.append(self._finish(m.FinishReason.LENGTH))
        return effects

    def stepped(
        self, verify: ev.Verify, rows: TargetRows, now: float, *,
        seconds: float, sessions: int = 1,
    ) -> list[ev.VerifierEffect]:  # fmt: skip
        """Take in a step over [last committed id, *drafts].

        rows: k + 1, one after each id. seconds: that the step took.
        sessions: how many had rows in it. Raise LocalProtocolError in a state without steps.
        """
        if self.state is not SessionState.GENERATING:
            raise LocalProtocolError(f"Verify while {self.state.value}")
        stops = self._stops_with if self._stoppable else None
        try:
            verdict = accept(
                verify.drafts,
                self._choices(verify, rows),
                end_ids=self._limits.end_ids,
                room=self.end - len(self.prefix.ids),
                stops=stops,
            )
        except RequestError as error:
            # The grammar's: it allows nothing here, or has used its time up. Clients have parts of
            # the text already, so it is too late to refuse the request.
            return [self._finish(m.FinishReason.ERROR, error)]
        done = self._round(verify, verdict, rows, now, sessions)
        self._commit(done, len(verify.drafts), seconds)
        return self._effects(done)

    def _round(
        self,
        verify: ev.Verify,
        verdict: Acceptance,
        rows: TargetRows,
        now: float,
        sessions: int,
    ) -> Round:
        """Return the round of a step; record its log-probabilities and sources, if wanted."""
        base = len(self.prefix.ids)
        ids = verdict.committed
        generated = len(ids)
        if verdict.ended:
            # An end id is committed, but it is no token of the text.
            generated -= 1
        # An end id is shown after an echoed prompt only.
        shown = ids if self._scored else ids[:generated]
        by_source: tuple[SourceDrafts, ...] = ()
        if verify.drafts:
            by_source = verdict.by_source(verify.sources, len(verify.drafts))
        logprobs: tuple[Logprob | None, ...] = ()
        if self.logprobs is not None:
            self.logprobs.take(logits_of(rows), ids)
            logprobs = self.logprobs.between(base, base + len(shown))
        sources: tuple[SourceRun, ...] = ()
        if self.token_sources is not None:
            self.token_sources.take(by_source, len(ids))
            sources = runs_of(self.token_sources.between(base, base + len(shown)))
        return Round(
            session=self.id,
            base=base,
            ids=ids,
            accepted=verdict.accepted,
            text=Tokens(shown, min(verdict.accepted, len(shown)), logprobs, sources),
            drafts=verify.drafts,
            tested=verdict.tested,
            by_source=by_source,
            over=verdict.ended or verdict.stopped,
            first=self.times.first_token is None,
            generated=generated,
            at=now,
            sessions=sessions,
        )

    def _commit(self, done: Round, drafted: int, seconds: float) -> None:
        """Let the text grow by a round; counts, times and sources learn from it."""
        # The step has decoded rejected drafts, too. `_effects` cuts them off.
        self.slot.length = len(self.prefix.ids) + drafted
        self.slot.peak = 0
        self.prefix.extend(done.ids)
        self.counts.record(done)
        self.times.verify += seconds
        self.times.last_token = done.at
        if self.times.first_token is None:
            self.times.first_token = done.at
        # Sources come last: each compares its drafts with the text as it has become.
        self.choice.committed(done)

    def _effects(self, done: Round) -> list[ev.VerifierEffect]:
        """Return the effects of a round that was committed."""
        length = len(self.prefix.ids)
        finish: ev.Finish | None = None
        if done.over:
            finish = self._finish(m.FinishReason.STOP)
        elif length >= self.end:
            finish = self._finish(m.FinishReason.LENGTH)
        effects: list[ev.VerifierEffect] = []
        # TRUTH goes first: the next drafts are a round trip away.
        if self.draft_length.drafter is not None:
            idle = finish is None and self.draft_length.draft_n == 0 and not self.followed
            effects += self.truth.grown(done.base, done.accepted, done.at, idle=idle)
        slot = self.slot
        # Rejected drafts are in the sequence, and so may be the last id, as an accepted draft.
        if slot.length > length - 1:
            slot.length = length - 1
            effects.append(ev.Rollback(slot.length))
        effects.append(done)
        if finish is not None:
            effects.append(finish)
        return effects

    def _stops_with(self, token: int) -> bool:
        """Take in the next id of the text; return True if the text ends there."""
        stopped = self._stops.completes(token)
        if self.constraint is not None:
            self.constraint.accept(token)
            stopped = stopped or self.constraint.complete
        return stopped

    def _choices(self, verify: ev.Verify, rows: TargetRows) -> TokenChoice:
        """Return the function that chooses the token of each row.

        It is called row by row, and only as far as drafts are accepted. So a grammar, which has a
        state, has taken exactly the ids before the row.
        """
        sampler = self.sampler
        drafts = verify.drafts
        ids = self.prefix.ids
        base = len(ids)
        constraint = self.constraint
        if constraint is None and sampler.argmax:  # rows after a rejected draft are never looked at
            return lambda i: int(rows[i].argmax())
        logits = logits_of(rows)
        if constraint is not None:
            return lambda i: choose_allowed(
                constraint, sampler.after(ids, drafts[:i]), logits[i], base + i
            )

        def sampler_at(i: int) -> Sampler:
            return sampler.after(ids, drafts[:i]) if sampler.looks_back else sampler

        offers: tuple[SampledDraft, ...] = ()
        if self._strategy is not deterministic:  # all others weigh a draft's proposal
            offers = self.remote.offers(drafts, verify.sources)
        verified = VerifiedRows(
            base=base,
            prefix=self.prefix,
            logits=logits,
            offers=offers,
            sampler=sampler_at,
        )
        return self._strategy(verified)


def _most_drafts(params: SessionParams, limits: TargetLimits) -> int:
    """Return the most drafts of a step, by the target and the client."""
    if params.allowed_draft_n is None:
        return limits.max_drafts
    return min(limits.max_drafts, params.allowed_draft_n)
