"""What users of one verifier would get: a discrete-event simulation, in virtual time, of what the daemons run.

Only models, network and clocks are imagined: a step takes what the cost table says, a draft its interval, a frame half
a round trip. A text is a row of zeros, and a right draft is a zero.
"""

import heapq
import itertools
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import assert_never

import numpy as np

from specmesh.core import events as ev
from specmesh.core.draft_length import MAX_DRAFTS
from specmesh.core.draft_length.estimates import StepCosts
from specmesh.core.draft_length.policy import Policy, solve
from specmesh.core.drafter.core import DrafterCore
from specmesh.core.drafter.session import DraftLimits
from specmesh.core.kv_slots import KVSlots
from specmesh.core.requests import Request
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.core.verifier import events as vev
from specmesh.core.verifier.core import VerifierCore
from specmesh.wire import messages as m

VOCABULARY = 2
STEP_ROWS = 512  # rows of a step
RIGHT, WRONG = 0, 1  # what the target says at each position, and what it never does
ENDLESS = 2**30  # ids of context: more than any text needs
WARM_UP = 0.5  # texts per user that pass before anything is counted
ROWS = np.tile(np.array([1.0, 0.0], np.float32), (MAX_DRAFTS + 1, 1))


@dataclass(frozen=True, slots=True)
class Deployment:
    """A verifier, its drafters and the network between them; times in seconds."""

    costs: StepCosts  # of steps
    draft: float  # one draft token
    round_trip: float
    pause: float = 0.0  # between two steps
    solving: float = 5e-3  # one policy, one at a time
    drafters: int | None = None  # None: one for each user
    known: StepCosts | None = None  # what the verifier has measured of `costs` at first; None: all
    burden: float = (
        0.0  # a step that begins while a drafter drafts takes so much longer: they share a machine
    )


@dataclass(frozen=True, slots=True)
class Workload:
    """What every user asks for, again and again: tokens of prompt and text. draft_n: None adapts."""

    prompt: int
    tokens: int
    draft_n: int | None = None


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the users got while each, on average, had one whole text, after a warm-up."""

    total: float  # tokens per second of all users
    slowest: float  # of the slowest user
    acceptance: float | None  # None without drafts
    busy: float  # share of time spent in steps


@dataclass(slots=True)
class _Drafter:
    id: vev.DrafterId
    core: DrafterCore
    busy: bool = False


@dataclass(slots=True)
class _Counts:
    begun: float
    tokens: list[int]
    seconds: float = 0.0
    drafted: int = 0
    accepted: int = 0


class Simulation:
    """`users` at once. right(position) says whether a draft for that position, prompt included, is right.
    policy(position): the policy to decide by there, from an oracle; None: sessions learn acceptance and solve
    theirs."""

    def __init__(
        self,
        site: Deployment,
        texts: Workload,
        users: int,
        right: Callable[[int], bool],
        policy: Callable[[int], Policy] | None = None,
    ) -> None:
        self._site, self._texts, self._users = site, texts, users
        self._right, self._policy = right, policy
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()
        most = MAX_DRAFTS if policy is None else len(policy(texts.prompt).inputs.steps) - 1
        limits = TargetLimits(ENDLESS, VOCABULARY, frozenset(), most)
        costs, slots = deepcopy(site.known or site.costs), KVSlots(users, "whole", 0)
        self._verifier = VerifierCore(limits, costs, slots, STEP_ROWS, max_sessions=users)
        self._drafters = {
            name: self._join(name) for name in (b"%d" % n for n in range(site.drafters or users))
        }
        self._stepping = False
        self._wake: float | None = None
        self._solver_free = 0.0
        self._counts = _Counts(0.0, [0] * users)
        self._warm = False

    def run(self) -> Forecast:
        """Go from event to event. What comes before all is warm, as estimates, is not counted."""
        for user in range(self._users):
            self._ask(user, 0.0)
        now, each = 0.0, self._texts.tokens * self._users
        while sum(self._counts.tokens) < each * (1.0 if self._warm else WARM_UP):
            now, _, event = heapq.heappop(self._events)
            event(now)
            if not self._warm and sum(self._counts.tokens) >= WARM_UP * each:
                self._counts, self._warm = _Counts(now, [0] * self._users), True
        counts = self._counts
        seconds = now - counts.begun
        return Forecast(
            total=sum(counts.tokens) / seconds,
            slowest=min(counts.tokens) / seconds,
            acceptance=counts.accepted / counts.drafted if counts.drafted else None,
            busy=counts.seconds / seconds,
        )

    def _at(self, time: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), event))

    # --- users

    def _ask(self, user: int, now: float) -> None:
        texts = self._texts
        # The first texts differ in length, or all users would be at the same position of theirs for ever.
        tokens = (
            texts.tokens
            if self._warm or now > 0
            else 1 + texts.tokens * (user + 1) // (self._users + 1)
        )
        params = SessionParams(SamplingParams(), tokens, texts.draft_n, cache_prompt=False)
        client = next(self._order) * self._users + user  # who asked first is served first
        ids = (RIGHT,) * texts.prompt
        self._tell(vev.Opening(client, Request(None, ids, params), ids, texts.prompt), now)

    # --- verifier

    def _tell(self, event: vev.Happened, now: float) -> None:
        self._carry_out(self._verifier.handle(event, now), now)
        self._turn(now)

    def _turn(self, now: float) -> None:
        """Begin the next step, or come back when the core has waited enough: the newest such time counts."""
        if self._stepping:
            return
        if self._policy is not None:
            for live in self._verifier.sessions.values():
                live.session.draft_length.policy = self._policy(len(live.session.prefix))
        step = self._verifier.next_step(now)
        if isinstance(step, ev.Wait):
            if step.until not in (inf, self._wake):
                self._wake = step.until
                self._at(step.until, lambda then: self._turn(then) if self._wake == then else None)
            return
        self._stepping, self._wake = True, None
        seconds = self._site.costs.seconds(step.rows, sum(span.position for span in step.spans))
        seconds += (
            self._site.burden if any(drafter.busy for drafter in self._drafters.values()) else 0.0
        )
        self._at(now + seconds, partial(self._stepped, step, seconds))

    def _stepped(self, step: ev.Step, seconds: float, now: float) -> None:
        self._counts.seconds += seconds
        rows = [ROWS[: len(span.ids)] if span.logits else None for span in step.spans]
        self._carry_out(self._verifier.finish(step, rows, now - seconds, now), now)
        self._at(now + self._site.pause, self._next_turn)

    def _next_turn(self, now: float) -> None:
        self._stepping = False
        self._turn(now)

    def _carry_out(self, effects: list[vev.Effect], now: float) -> None:
        for effect in effects:
            match effect:
                case vev.ToDrafter(drafter, said):
                    arrived = partial(self._arrived, self._drafters[drafter], said)
                    self._at(now + self._site.round_trip / 2, arrived)
                case vev.Committed(client=int(client), emit=emit):
                    counts = self._counts
                    counts.tokens[client % self._users] += len(emit.ids)
                    counts.drafted += len(emit.drafts)
                    counts.accepted += emit.accepted
                case vev.Solve() if self._policy is None:
                    self._solver_free = max(self._solver_free, now) + self._site.solving
                    self._at(self._solver_free, partial(self._solved, effect))
                case vev.SessionEnded(
                    client=int(client)
                ):  # the user asks for the next text at once
                    self._ask(client % self._users, now)
                case (
                    vev.Committed()
                    | vev.Solve()
                    | vev.SessionEnded()
                    | vev.Began()
                    | vev.ToClient()
                ):
                    pass
                case (
                    vev.RequestRefused()
                    | vev.Forgotten()
                    | vev.Ran()
                    | vev.Noted()
                    | vev.CoreReport()
                ):
                    pass
                case _:
                    assert_never(effect)

    def _solved(self, wanted: vev.Solve, now: float) -> None:
        self._tell(vev.Solved(wanted.session, solve(wanted.inputs, wanted.old)), now)

    # --- drafters

    def _join(self, identity: vev.DrafterId) -> _Drafter:
        drafter = _Drafter(
            identity, DrafterCore(DraftLimits(ENDLESS, STEP_ROWS), KVSlots(self._users, "whole", 0))
        )
        drafter.core.handle(ev.UpstreamChanged(0, self._site.round_trip, speaks=True), 0.0)
        self._verifier.handle(vev.DrafterJoined(identity, ENDLESS), 0.0)
        self._verifier.handle(vev.RoundTrip(identity, self._site.round_trip), 0.0)
        return drafter

    def _arrived(self, drafter: _Drafter, said: vev.Said, now: float) -> None:
        """Tell a drafter's core, as its daemon would."""
        event: ev.CoreEvent
        match said:
            case m.Opened(session, _, n_prompt):
                event = ev.DraftFor(session, 0, session, VOCABULARY, n_prompt, SamplingParams())
            case m.Done(session):
                event = ev.Dropped(session)
            case m.Truth() | m.Sync() | m.Nack():
                event = ev.Heard(said.session, said)
            case m.Logprobs():
                return
            case _:
                assert_never(said)
        self._send(drafter, drafter.core.handle(event, now), now)
        self._draft(drafter, now)

    def _draft(self, drafter: _Drafter, now: float) -> None:
        if drafter.busy:
            return
        while isinstance(step := drafter.core.next_step(now), ev.DraftStep):
            if any(row.sampler is not None for row in step.rows):
                drafter.busy, seconds = (
                    True,
                    self._site.draft * max(row.draft_n for row in step.rows),
                )
                self._at(now + seconds, partial(self._drafted, drafter, step, now))
                return
            self._send(drafter, self._drafted_rows(drafter, step, now, now), now)

    def _drafted(self, drafter: _Drafter, step: ev.DraftStep, started: float, now: float) -> None:
        drafter.busy = False
        self._send(drafter, self._drafted_rows(drafter, step, started, now), now)
        self._draft(drafter, now)

    def _drafted_rows(
        self, drafter: _Drafter, step: ev.DraftStep, started: float, now: float
    ) -> list[ev.CoreEffect]:
        """The effects of a step, which is free but for its drafts."""
        held = {cut.seq: cut.length for cut in step.cuts}
        tokens = list[list[int]]()
        for row in step.rows:
            end = row.position + len(row.ids)
            positions = range(end, end + row.draft_n) if row.sampler is not None else ()
            tokens.append([RIGHT if self._right(position) else WRONG for position in positions])
        return drafter.core.finish(step, ev.DraftedRows(held, tokens), started, now)

    def _send(self, drafter: _Drafter, effects: list[ev.CoreEffect], now: float) -> None:
        for effect in effects:
            match effect:
                case (_, m.Draft() | m.DraftProbs() | m.Nack() as sent):
                    event = vev.FromDrafter(drafter.id, sent)
                    self._at(now + self._site.round_trip / 2, partial(self._tell, event))
                case (_, _) | ev.Worked():
                    pass
                case _:
                    assert_never(effect)
