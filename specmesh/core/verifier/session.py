"""One session at the verifier: what is committed, what has been drafted beyond it, and what to run next.

`plan(now)` says what the engine should do next; `prefilled` and `stepped` take what came of it, `heard` what a drafter
says. The output depends on the target's logits, the sampler and the prompt only; a drafter changes how soon it comes.
"""

from collections.abc import Mapping, Sequence
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from specmesh.core import events as ev
from specmesh.core.draft_length.controller import DraftLengthController
from specmesh.core.draft_length.estimates import Arrivals, RollingAcceptance, StepCosts
from specmesh.core.draft_length.gate import DraftBid
from specmesh.core.kv_slots import NO_CONTENTS, KVContents
from specmesh.core.no_drafts import NoDrafts
from specmesh.core.prefix import Prefix, common_length
from specmesh.core.requests import Scored
from specmesh.core.sampling.constraint import Constraint, choose_allowed
from specmesh.core.sampling.logprobs import LogprobRecorder
from specmesh.core.sampling.sampler import Sampler
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.core.statistics.counters import RoundCounts, SessionTimes
from specmesh.core.text.stop import StopScan
from specmesh.core.verifier.accept import (
    Acceptance,
    TokenChoice,
    VerifiedRows,
    accept,
    argmax,
    deterministic,
    strategy_of,
    uses_proposals,
)
from specmesh.core.verifier.sources.remote import DraftBuffer, TruthSender
from specmesh.errors import InvalidTransition, LocalProtocolError, RequestError
from specmesh.wire import messages as m


class SessionState(Enum):
    """Of a session that has a KV slot."""

    PREFILLING = "prefilling"
    GENERATING = "generating"
    ENDED = "ended"


STATES: Mapping[SessionState, tuple[type[ev.Prefill | ev.Verify] | None, set[SessionState]]] = {
    SessionState.PREFILLING: (ev.Prefill, {SessionState.GENERATING, SessionState.ENDED}),
    SessionState.GENERATING: (ev.Verify, {SessionState.ENDED}),
    SessionState.ENDED: (None, set()),
}
"""What a step may do for a session in each state, and what that may become: anything else is refused. It generates once
the whole prompt is in the KV slot; an end token, a stop string, its length, its grammar or client, or an error ends it.
Peers and clients speak at any time."""


class VerifierSession:
    """Session `session` on the wire. `ids` are the prompt's first `n_prompt` (None: all), then the resumed text; a text
    that ended with them is `finished` from the start. `costs` are the verifier's, shared by its sessions. `constraint`
    is the grammar's at the beginning of the text. The target holds the first `held` ids already, never the last
    one."""

    def __init__(
        self,
        session: int,
        ids: Sequence[int],
        params: SessionParams,
        limits: TargetLimits,
        costs: StepCosts,
        now: float,
        n_prompt: int | None = None,
        constraint: Constraint | None = None,
        held: int = 0,
    ) -> None:
        self.id = session
        self.prefix = Prefix(ids)
        self.n_prompt = len(ids) if n_prompt is None else n_prompt
        self.resumed = len(ids) - self.n_prompt
        self.params = params
        self.sampler = Sampler(params.sampling)
        self._stops = StopScan(params.stop, limits.pieces)
        self._scored = params.scored  # from its first row on: nothing is held
        begin = 1 if self._scored else len(self.prefix)
        self.logprobs = None if params.logprobs is None else LogprobRecorder(params.logprobs, begin)
        self.constraint = constraint
        self.may_draft = (
            params.allowed_draft_n != 0 and limits.max_drafts > 0
        )  # its client and the target allow it
        self._stoppable = bool(params.stop) or constraint is not None
        self.counts = RoundCounts(prompt_tokens=self.n_prompt)
        self.times = SessionTimes(now)
        self.finished: m.FinishReason | None = None
        self.followed = (
            False  # somebody at the drafter reads along, and every round is sent at once
        )
        self._limits = limits
        self.draft_length = DraftLengthController(
            params.allowed_draft_n, limits.max_drafts, costs, self.times
        )
        self.truth = TruthSender(session, self.prefix, self.draft_length)
        self.draft_buffer = DraftBuffer(
            session, self.prefix, limits.n_vocab, constraint, self.draft_length, self.counts
        )
        self._strategy = strategy_of(params.sampling)
        self._weighs = self._strategy not in (
            argmax,
            deterministic,
        )  # drafts, where these only compare
        self._held = held  # ids in the target's memory
        self.end = min(
            self.n_prompt + params.max_tokens, limits.n_ctx
        )  # most ids that there may be
        self.cached = min(held, self.n_prompt)
        self.state = SessionState.PREFILLING  # changed by `move` only
        if held >= len(ids) - 1:
            self.move(SessionState.GENERATING)
        at_once = params.max_tokens == 0 and not (
            self._scored and self.state is SessionState.PREFILLING
        )
        if (self.resumed or at_once) and (ended := self._ended_before()) is not None:
            self._finish(ended)

    def _ended_before(self) -> m.FinishReason | None:
        """How a resumed text ended with its last ids, if it did."""
        before = self.prefix[self.n_prompt : len(self.prefix)]
        ends = [token in self._limits.end_ids or self._stops_with(token) for token in before]
        if any(ends):
            return m.FinishReason.STOP
        return m.FinishReason.LENGTH if len(self.prefix) >= self.end else None

    # --- what happened

    def move(self, to: SessionState) -> None:
        """Change its state; raise InvalidTransition, and change nothing, where `STATES` does not have it."""
        if to not in STATES[self.state][1]:
            raise InvalidTransition("session", self.state, to)
        self.state = to

    def _finish(self, reason: m.FinishReason, error: RequestError | None = None) -> ev.Finish:
        self.move(SessionState.ENDED)
        self.finished = reason
        return ev.Finish(reason, error)

    def heard(self, said: m.Draft | m.DraftProbs | m.Nack, now: float) -> list[ev.VerifierEffect]:
        """Take what a drafter says: nothing of it can move the text."""
        if self.finished is not None:
            return []
        if isinstance(said, m.Nack):
            return [*self.truth.nacked(said, now)]
        if self.draft_length.arrivals is not None:
            return self.draft_buffer.take(said, now)
        self.counts.stale_drafts += len(said.ids)
        return []

    def cancel(self, reason: m.FinishReason) -> list[ev.VerifierEffect]:
        return [self._finish(reason)] if self.finished is None else []

    def attach(self, arrivals: Arrivals, acceptance: RollingAcceptance) -> list[m.Sync]:
        """Hand the session to a drafter, which is sent all of it. `acceptance` is where its rounds are recorded. Where
        drafts come with proposals those of the drafter before go: the same drafts may come of other distributions."""
        if uses_proposals(self.params.sampling):
            self.draft_buffer.forget()
        self.draft_length.attach(arrivals, acceptance)
        return self.truth.begin()

    @property
    def generated(self) -> int:
        """Ids of the text, resumed ones included."""
        return self.resumed + self.counts.generated_tokens

    def said(self, known: int = 0) -> tuple[int, ...]:
        """The text's ids but for the first `known`, without an end id."""
        ids = tuple(self.prefix[self.n_prompt + known : len(self.prefix)])
        return ids[:-1] if ids and ids[-1] in self._limits.end_ids else ids

    @property
    def memory(self) -> KVContents:
        """What the target's sequence holds for certain, as far as other sessions may have it."""
        return (
            KVContents(self.prefix[: self._held], self.n_prompt - 1)
            if self.params.cache_prompt
            else NO_CONTENTS
        )

    @property
    def drafting(self) -> bool:
        """Whether drafts are asked for, to be verified."""
        return (
            self.draft_length.arrivals is not None
            and self.draft_length.draft_n > 0
            and not self.draft_length.probing
        )

    @property
    def draft_n(self) -> int:
        """Most drafts of its next step."""
        return 0 if self.draft_length.probing else self.draft_length.draft_n

    @property
    def no_drafts(self) -> NoDrafts | None:
        """Return why nothing is drafted for it by a drafter that could; None if something is, and
        while its prompt is read."""
        if self.state is SessionState.PREFILLING:
            return None
        if self.constraint is not None and self.constraint.exhausted is not None:
            return NoDrafts.GRAMMAR
        if self.draft_n == 0:
            return NoDrafts.GATE
        if not (self.draft_length.estimate.drafting or self.draft_buffer.tokens):
            return NoDrafts.BEHIND
        return None

    @property
    def was_not_drafted(self) -> NoDrafts:
        """Return why none of its drafts was verified, although one drafted for it to the end."""
        forbidden = self.constraint is not None and self.counts.stale_drafts
        return NoDrafts.GRAMMAR if forbidden else NoDrafts.BEHIND

    # --- what to run next

    def plan(self, now: float) -> ev.Plan:
        """What the engine should do next; `Wait` when a draft on its way is worth more than a step now."""
        length = len(self.prefix.ids)
        if self.state is SessionState.PREFILLING:
            return self._missing()
        idle = self.draft_length.arrivals is None or not self.draft_length.draft_n
        if idle and not self.draft_buffer.tokens and self.constraint is None:
            return ev.Verify(length - 1, self.prefix.ids[-1], ())
        wanted, until = self.draft_length.plan(
            length, len(self.draft_buffer.tokens), self._max_drafts(), now
        )
        if (
            until is None
            or self.draft_buffer.cut
            or (self.constraint is not None and self._forced(self.constraint))
        ):
            return self.verify(wanted)
        return ev.Wait(until)

    def _missing(self) -> ev.Prefill:
        """What the target lacks: the prompt and the resumed text, in the same parts as the first time where rows are
        constant."""
        width, prompt, end = self._limits.width, self.n_prompt - 1, len(self.prefix) - 1
        stepwise = self._scored or (width is not None and self._held >= prompt)
        if stepwise:
            end = min(self._held + self._limits.max_drafts + 1, end)
        elif width is not None:
            end = prompt
        return ev.Prefill(self._held, tuple(self.prefix[self._held : end]), stepwise)

    def verify(self, wanted: int | None = None) -> ev.Verify:
        ids = self.prefix.ids
        drafts = tuple(self.draft_buffer.tokens[: self._max_drafts() if wanted is None else wanted])
        if self.constraint is not None:
            forced = self._forced(self.constraint)
            if common_length(drafts, forced) < len(forced):
                drafts = forced
        return ev.Verify(len(ids) - 1, ids[-1], drafts)

    def bid(self, verify: ev.Verify) -> DraftBid:
        """What its drafts offer to a step: those of the grammar's own are accepted for certain."""
        forced = self._count_forced(verify.drafts)
        acceptance = (1.0,) * forced + self.draft_length.chain_acceptance(
            len(verify.drafts) - forced
        )
        return DraftBid(acceptance, chosen=self.params.allowed_draft_n is not None)

    def _forced(self, constraint: Constraint) -> tuple[int, ...]:
        """Drafts of the grammar's own for the next step, which are all accepted."""
        chosen = self.params.allowed_draft_n
        most = self._max_drafts() if chosen is None else min(chosen, self._max_drafts())
        return constraint.forced()[:most] if most else ()

    def _count_forced(self, drafts: Sequence[int]) -> int:
        """How many of a step's drafts are the grammar's own, before anything of the step is accepted."""
        return (
            common_length(drafts, self.constraint.forced())
            if self.constraint is not None and drafts
            else 0
        )

    def begin(self, now: float) -> float:
        """Note that a step with this session begins; return the seconds that were waited for it."""
        if self.times.decoding is None:
            self.times.decoding = now
        return self.draft_length.begin(now)

    def _max_drafts(self) -> int:
        """Most drafts of a step: one row is the target's own."""
        return max(min(self._limits.max_drafts, self.end - len(self.prefix.ids) - 1), 0)

    # --- steps

    def prefilled(self, count: int, logits: ev.Rows = None) -> list[ev.VerifierEffect]:
        """Note that so many more ids are in the target's memory; where the prompt is scored, `logits` after each.
        Raises LocalProtocolError, as `STATES` has it."""
        if STATES[self.state][0] is not ev.Prefill:
            raise LocalProtocolError(f"Prefill while {self.state.value}")
        if self._scored and logits is not None and self.logprobs is not None:
            self.logprobs.take(logits, self.prefix[self._held + 1 : self._held + 1 + count])
        self._held += count
        if self._held < len(self.prefix.ids) - 1:
            return []
        effects = list[ev.VerifierEffect]()
        if self._scored and self.logprobs is not None:
            effects.append(Scored(self.logprobs.between(1, self.n_prompt)))
        if len(self.prefix.ids) < self.end:
            self.move(SessionState.GENERATING)
        else:
            effects.append(self._finish(m.FinishReason.LENGTH))
        return effects

    def stepped(
        self,
        drafts: tuple[int, ...],
        logits: NDArray[np.float32],
        now: float,
        seconds: float,
        sessions: int = 1,
    ) -> list[ev.VerifierEffect]:
        """Take in a step over [last committed id, *drafts], which `sessions` had rows in: a row of logits for each,
        float32 (k + 1, n_vocab). Raises LocalProtocolError, as `STATES` has it."""
        if STATES[self.state][0] is not ev.Verify:
            raise LocalProtocolError(f"Verify while {self.state.value}")
        base = len(self.prefix.ids)
        forced = self._count_forced(drafts) if self.constraint is not None else 0
        try:
            verdict = accept(
                drafts,
                self._choices(drafts, logits),
                end_ids=self._limits.end_ids,
                room=self.end - base,
                stops=self._stops_with if self._stoppable else None,
            )
        except RequestError as error:  # the grammar's, when it is too late to refuse it
            return [self._finish(m.FinishReason.ERROR, error)]
        if self.logprobs is not None:
            self.logprobs.take(logits, verdict.committed)
        self._commit(verdict, drafts, forced, now, seconds, sessions)
        length, effects = len(self.prefix.ids), list[ev.VerifierEffect]()
        if verdict.ended or verdict.stopped or length >= self.end:
            self._finish(
                m.FinishReason.STOP if verdict.ended or verdict.stopped else m.FinishReason.LENGTH
            )
        if self.draft_length.arrivals is not None:
            idle = self.draft_length.draft_n == 0 and not self.followed and self.finished is None
            effects += self.truth.grown(base, verdict.accepted, now, idle=idle)
        if self._held > length - 1:
            self._held = length - 1
            effects.append(ev.Trim(self._held))
        shown = verdict.committed[:-1] if verdict.ended and not self._scored else verdict.committed
        logprobs = (
            self.logprobs.between(base, base + len(shown)) if self.logprobs is not None else ()
        )
        effects.append(ev.Emit(shown, verdict.accepted, drafts, logprobs, forced))
        if self.finished is not None:
            effects.append(ev.Finish(self.finished))
        return effects

    def _stops_with(self, token: int) -> bool:
        """Take in the next id of the text; return whether the text ends there."""
        stopped = self._stops.completes(token)
        if self.constraint is not None:
            self.constraint.accept(token)
            stopped = stopped or self.constraint.complete
        return stopped

    def _choices(self, drafts: tuple[int, ...], logits: NDArray[np.float32]) -> TokenChoice:
        sampler, ids, base = self.sampler, self.prefix.ids, len(self.prefix.ids)
        if (constraint := self.constraint) is not None:
            return lambda i: choose_allowed(
                constraint, sampler.after(ids, drafts[:i]), logits[i], base + i
            )
        offers = self.draft_buffer.offers(drafts) if self._weighs else ()
        rows = VerifiedRows(
            base, self.prefix.crc, logits, offers, lambda i: sampler.after(ids, drafts[:i])
        )
        return self._strategy(rows)

    def _commit(
        self,
        verdict: Acceptance,
        drafts: tuple[int, ...],
        forced: int,
        now: float,
        seconds: float,
        sessions: int,
    ) -> None:
        tested, accepted = verdict.tested, verdict.accepted
        self._held = len(self.prefix.ids) + len(drafts)
        self.prefix.extend(verdict.committed)
        self.draft_buffer.moved(verdict.committed, tested, over=verdict.ended or verdict.stopped)
        generated = len(verdict.committed) - verdict.ended
        self.counts.record(len(drafts), tested, accepted, generated, forced)
        self.times.verify += seconds
        self.times.last_token = now
        if self.times.first_token is None:
            self.times.first_token = now
        self.draft_length.stepped(
            len(self.prefix.ids),
            max(tested - forced, 0),
            max(accepted - forced, 0),
            flushed=not self.draft_buffer.tokens,
            now=now,
            sessions=sessions,
        )
