"""One session at the verifier: what is committed, what has been drafted beyond it, and what to run next.

`handle(event, now) -> effects` for everything that happens, `plan(now)` for what the engine should do next. The output
depends on the target's logits, the sampler and the prompt only; events from a drafter change how soon it comes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from specmesh.core import events as ev
from specmesh.core.accept import Verdict, accept
from specmesh.core.acceptance import RollingAcceptance
from specmesh.core.costs import Arrivals, StepCosts
from specmesh.core.draft_length import Choice, choose_draft_n
from specmesh.core.prefix import Prefix, common_length
from specmesh.core.sampling import Sampler, SamplingParams
from specmesh.core.stats import RoundCounts
from specmesh.core.tree import DraftTree

MAX_DRAFTS = 16
"""Most drafts of one step."""

FIRST_DRAFT_N = 4
"""What a drafter is asked for before anything is known of it."""

NACK_INTERVAL = 0.1
"""Seconds between two NACKs, or two answers to NACKs, of one session."""

SYNC_INTERVAL = 0.01
"""Seconds between two SYNCs, at least: each is as long as the prefix, and a peer can ask for them without end."""

WAIT_SHARE = 0.01
"""Share of the verification time that may be waited away for nothing: what a drafter can cost by being late."""


@dataclass(frozen=True, slots=True)
class SessionParams:
    """What a client asked for. draft_n: None adapts, 0 never drafts, N takes N drafts in every step."""

    sampling: SamplingParams
    max_tokens: int
    draft_n: int | None = None


@dataclass(frozen=True, slots=True)
class TargetLimits:
    """What the target allows. max_drafts is 0 for a model that cannot trim."""

    n_ctx: int
    n_vocab: int
    end_ids: frozenset[int]
    max_drafts: int = MAX_DRAFTS


@dataclass(slots=True)
class SessionTimes:
    """When things happened to a session, and seconds spent: in verification steps it took part in, waiting for drafts,
    and between a correction and the first draft on it (`restart`, over `restarts` corrections)."""

    opened: float
    decoding: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    verify: float = 0.0
    wait: float = 0.0
    restart: float = 0.0
    restarts: int = 0


class VerifierSession:
    """The state machine of one session.

    `costs` and `acceptance` are the verifier's, shared by its sessions; `arrivals` belongs to the drafter attached.
    """

    def __init__(
        self,
        prompt_ids: Sequence[int],
        params: SessionParams,
        limits: TargetLimits,
        costs: StepCosts,
        acceptance: RollingAcceptance,
        now: float,
    ) -> None:
        self.prefix = Prefix(prompt_ids)
        self.n_prompt = len(prompt_ids)
        self.params = params
        self.sampler = Sampler(params.sampling)
        self.counts = RoundCounts()
        self.times = SessionTimes(now)
        self.draft_n = FIRST_DRAFT_N if params.draft_n is None else params.draft_n
        self.finished: str | None = None
        self.stale_drafts = 0
        self._limits = limits
        self._costs = costs
        self._acceptance = acceptance
        self._arrivals: Arrivals | None = None
        self._tree = DraftTree(len(self.prefix), self.prefix.crc)
        self._held = 0  # ids in the target's memory
        self._drafting = False  # the drafter has shown that it drafts on our truth
        self._flush: tuple[float, int] | None = None  # when and where the drafter last had to start anew
        self._anchor: tuple[float, int] | None = None  # (time, position): that many ids were, or will be, here
        self._arrived: tuple[float, int] | None = None  # the newest drafts since the last truth: when, up to where
        self._deadline: float | None = None
        self._waiting_since: float | None = None
        self._rounds_off = 0
        self._probing = False
        self._nacked = self._synced = float("-inf")
        self._orphaned: float | None = None  # since when drafts come that hang on nothing here

    # --- what happened

    def handle(self, event: ev.VerifierEvent, now: float) -> list[ev.VerifierEffect]:
        """Take an event in and say what follows. A finished session answers with nothing."""
        if self.finished is not None:
            return []
        match event:
            case ev.Drafted():
                return self._drafted(event, now)
            case ev.Stepped():
                return self._stepped(event, now)
            case ev.Prefilled(count):
                self._held += count
                return []
            case ev.Nacked(base, crc):
                return self._nacked_by_drafter(base, crc, now)
            case ev.Detached():
                self._arrivals, self._drafting = None, False
                return []
            case ev.Cancelled(reason):
                self.finished = reason
                return [ev.Finish(reason)]
            case _:
                assert_never(event)

    def attach(self, arrivals: Arrivals) -> list[ev.VerifierEffect]:
        """Hand the session to a drafter whose timing is learned in `arrivals`; it is told the whole prefix."""
        self._arrivals = arrivals
        self._drafting = False
        self._flush = self._anchor = self._arrived = None
        return [self._sync(0)]

    @property
    def attached(self) -> bool:
        """Whether a drafter drafts for this session."""
        return self._arrivals is not None

    @property
    def lead(self) -> int:
        """Drafts in hand beyond the committed ids."""
        return self._tree.lead()

    # --- what to run next

    def plan(self, now: float) -> ev.Plan:
        """What the engine should do for this session; `Wait` when a draft on its way is worth more than a step now."""
        if self._held < len(self.prefix) - 1:
            return ev.Prefill(self._held, tuple(self.prefix[self._held : len(self.prefix) - 1]))
        wanted, until = self._wanted(now)
        if until is None:
            return self.verify(wanted)
        if self._deadline is None:
            self._deadline, self._waiting_since = until, now
        if now < self._deadline:
            return ev.Wait(self._deadline)
        self._drafting = False  # it did not come in time: nothing is waited for until it shows life again
        return self.verify(wanted)

    def verify(self, wanted: int | None = None) -> ev.Verify:
        """A step with the drafts in hand, at most `wanted` of them."""
        limit = self._max_drafts() if wanted is None else min(wanted, self._max_drafts())
        return ev.Verify(len(self.prefix) - 1, self.prefix.last, self._tree.best_chain(limit))

    def begin(self, now: float) -> None:
        """Note that a verification step with this session begins: waiting is over."""
        if self.times.decoding is None:
            self.times.decoding = now
        if self._waiting_since is not None:
            self.times.wait += now - self._waiting_since
        self._deadline = self._waiting_since = None

    def _wanted(self, now: float) -> tuple[int, float | None]:
        """(drafts for the next step, when to stop waiting for them or None for now)."""
        limit, lead = self._max_drafts(), self.lead
        if self.params.draft_n is not None:
            k = min(self.params.draft_n, limit)
            return k, None if lead >= k or not self._drafting else self._due(k, now) + self._slack()
        if self._probing and lead:
            return 1, None
        choice = self._choose(self._waits(limit, lead, now), limit)
        patience = min(self._slack(), self._costs.seconds(1))
        return choice.k, None if choice.k <= lead else now + choice.wait + patience

    def _choose(self, waits: Sequence[float], limit: int) -> Choice:
        steps = [self._costs.seconds(rows) for rows in range(1, limit + 2)]
        return choose_draft_n(self._acceptance.rates(), steps, waits)

    def _waits(self, limit: int, lead: int, now: float) -> list[float]:
        """Seconds until k drafts are in hand, for each k that can be: an overdue draft is due one interval from now,
        never "soon"."""
        here = [0.0] * (min(lead, limit) + 1)
        interval = self._interval
        if not self._drafting or interval is None or not self._waiting_pays():
            return here
        return here + [max(self._due(k, now) - now, interval) for k in range(len(here), limit + 1)]

    def _waiting_pays(self) -> bool:
        """Whether accepted drafts have saved what waiting has cost so far, whatever the estimates promise."""
        saved = self.counts.accepted * self._costs.seconds(1)
        return self.times.wait <= saved + WAIT_SHARE * self.times.verify

    def _due(self, k: int, now: float) -> float:
        """When the k-th draft beyond the frontier can be here; those up to the anchor come together."""
        time, position = self._anchor if self._anchor is not None else (now, len(self.prefix))
        return time + max(len(self.prefix) + k - position, 0) * (self._interval or 0.0)

    def _slack(self) -> float:
        """How late a draft may be before it is given up, in seconds."""
        return (self._interval or 0.01) + 0.25 * self._round_trip + 2e-4

    @property
    def _interval(self) -> float | None:
        return self._arrivals.interval if self._arrivals is not None else None

    @property
    def _round_trip(self) -> float:
        return self._arrivals.round_trip if self._arrivals is not None else 0.0

    def _room(self) -> int:
        """How many more ids may be committed."""
        return min(self.params.max_tokens - self.counts.generated, self._limits.n_ctx - len(self.prefix))

    def _max_drafts(self) -> int:
        """Most drafts a step may take: one row is the target's own token."""
        return max(min(self._limits.max_drafts, self._room() - 1), 0)

    # --- drafts

    def _drafted(self, event: ev.Drafted, now: float) -> list[ev.VerifierEffect]:
        if self._arrivals is None or not all(0 <= token < self._limits.n_vocab for token in event.ids):
            self.stale_drafts += 1
            return []
        end = event.base + len(event.ids)
        if event.base > len(self.prefix):
            added = self._tree.insert(event.base, event.crc, event.ids, event.branch)
            if added is None:
                return self._orphan(now)
        else:
            added = self._insert_known(event)
            if added is None:
                self.stale_drafts += 1
                # Overtaken by steps that did not wait: it is alive, and a client's own draft_n is worth waiting for.
                self._drafting = self._drafting or self.prefix.holds(event.base, event.crc)
                return []
        self._drafting, self._orphaned = True, None
        self._learn_arrival(end, now)
        return []

    def _insert_known(self, event: ev.Drafted) -> int | None:
        """Insert a path that starts in the committed ids; None where it disagrees with them."""
        if not self.prefix.holds(event.base, event.crc):
            return None
        known = self.prefix[event.base : event.base + len(event.ids)]
        if common_length(event.ids, known) < len(known):
            return None
        return self._tree.insert(len(self.prefix), self.prefix.crc, event.ids[len(known) :], event.branch)

    def _orphan(self, now: float) -> list[ev.VerifierEffect]:
        """A draft built on drafts that are not here: of a rejected chain still in flight, or after a lost frame.

        The first ends within a round trip; where it does not, the drafter is told where to continue.
        """
        self.stale_drafts += 1
        self._orphaned = now if self._orphaned is None else self._orphaned
        quiet = max(NACK_INTERVAL, 2 * self._round_trip)
        if now - max(self._orphaned, self._nacked) < quiet:
            return []
        self._nacked = now
        return [ev.SendNack(len(self.prefix), self.prefix.crc)]

    def _learn_arrival(self, end: int, now: float) -> None:
        if self._arrivals is None:
            return
        if self._flush is not None and end > self._flush[1]:
            sent_at, position = self._flush
            self._arrivals.record_restart(now - sent_at, end - position)
            self.times.restart += now - sent_at
            self.times.restarts += 1
            self._flush = None
        elif self._arrived is not None and self._arrived[1] < end <= len(self.prefix) + self.draft_n:
            time, position = self._arrived
            self._arrivals.record_interval(now - time, end - position)
        if self._arrived is None or end > self._arrived[1]:
            self._arrived = (now, end)
        if self._anchor is None or end > self._anchor[1]:
            self._anchor = (now, end)

    # --- steps

    def _stepped(self, event: ev.Stepped, now: float) -> list[ev.VerifierEffect]:
        base, crc = len(self.prefix), self.prefix.crc
        verdict = accept(
            event.drafts,
            lambda i: self.sampler.choose(event.logits[i], base + i),
            end_ids=self._limits.end_ids,
            room=self._room(),
        )
        self._commit(verdict, event, now)
        effects: list[ev.VerifierEffect] = []
        if self._held > len(self.prefix) - 1:
            self._held = len(self.prefix) - 1
            effects.append(ev.Trim(self._held))
        if verdict.ended or self._room() == 0:
            self.finished = "stop" if verdict.ended else "length"
        if self._arrivals is not None:
            self._set_draft_n()
            effects.insert(0, ev.SendTruth(base, crc, verdict.committed, self.draft_n))
        shown = verdict.committed[:-1] if verdict.ended else verdict.committed
        effects.append(ev.Emit(shown, verdict.accepted, event.drafts, verdict.tested))
        if self.finished is not None:
            effects.append(ev.Finish(self.finished))
        return effects

    def _commit(self, verdict: Verdict, event: ev.Stepped, now: float) -> None:
        self._held = len(self.prefix) + len(event.drafts)
        self.prefix.extend(verdict.committed)
        flushed = self._tree.reroot(verdict.committed, self.prefix.crc) == 0
        self._acceptance.record(verdict.tested, verdict.accepted)
        self.counts.record(len(event.drafts), verdict.tested, verdict.accepted, len(verdict.committed) - verdict.ended)
        self.times.verify += event.seconds
        self.times.last_token = now
        if self.times.first_token is None:
            self.times.first_token = now
        self._probing = self._probing and verdict.tested == 0
        self._expect(flushed, now)

    def _expect(self, flushed: bool, now: float) -> None:
        """Set from where, and from when, drafts can be expected after the truth about to be sent."""
        frontier, interval = len(self.prefix), self._interval or 0.0
        self._arrived = None
        if flushed:
            self._flush = (now, frontier) if self.draft_n else None
            restart = self._arrivals.restart if self._arrivals is not None else None
            seconds, drafts = restart if restart is not None else (self._round_trip, 0)
            self._anchor = (now + seconds, frontier + drafts)
        elif self._anchor is not None and now - self._anchor[0] > 2 * interval:
            # It had stopped at the end of its credit and goes on when it hears this truth.
            self._anchor = (now + self._round_trip, self._anchor[1])

    def _set_draft_n(self) -> None:
        """How many drafts the next step wants, if they come while this one runs. Drafting costs the verifier nothing,
        so it is off only where even drafts in hand would not pay."""
        if self.params.draft_n is not None:
            return
        interval = self._interval
        if interval is None:
            self.draft_n = FIRST_DRAFT_N
            return
        limit = self._limits.max_drafts
        late = [max(k * interval - self._costs.seconds(k + 1), 0.0) for k in range(limit + 1)]
        choice = self._choose(late, limit)
        self.draft_n = choice.k
        self._rounds_off = 0 if choice.k else self._rounds_off + 1
        if self._rounds_off >= self._probe_every():
            self._rounds_off, self._probing, self.draft_n = 0, True, 1

    def _probe_every(self) -> int:
        """Rounds between probes of a drafter that is off, so that probing costs about 1 % of the time."""
        alone = max(self._costs.seconds(1), 1e-9)
        return max(16, int(100 * (self._costs.seconds(2) - alone) / alone))

    # --- resync

    def _nacked_by_drafter(self, base: int, crc: int, now: float) -> list[ev.VerifierEffect]:
        if now - self._synced < min(NACK_INTERVAL, max(SYNC_INTERVAL, self._round_trip)):
            return []
        self._synced = now
        return [self._sync(base if self.prefix.holds(base, crc) else 0)]

    def _sync(self, base: int) -> ev.SendSync:
        return ev.SendSync(base, self.prefix.crc_at(base), tuple(self.prefix[base : len(self.prefix)]), self.draft_n)
