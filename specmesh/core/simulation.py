"""A simulation of the users of one verifier: discrete events, in virtual time.

It runs the cores of the daemons. Only models, network and clocks are imagined: a step takes the
time of the cost table, a draft its interval, a frame half a round trip. A text is a row of zeros,
and a right draft is a zero.

`plan` answers with it what a pair would bring, and tests compare policies by it. What it has is
exact: which session has which drafts at which step, what waits for what, when a gate shuts.
What it has not:

- Steps take the same time each time. A real host has hiccups.
- Drafts are right or wrong by a rule of the position, not of the text.
- The network neither loses nor reorders. tests/properties has a world that does.

All happens in `_events`, a heap of (time, number, callback). The number keeps events of one time in
their order, so a run can be repeated.
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
from specmesh.core.draft_length.policy import Policy, solve
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.drafter.core import DrafterCore
from specmesh.core.drafter.session import DraftLimits
from specmesh.core.drafter.window import Windows
from specmesh.core.kv_slots import KVSlots
from specmesh.core.requests import Request
from specmesh.core.rounds import Round
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.core.verifier import events as vev
from specmesh.core.verifier.core import VerifierCore
from specmesh.core.verifier.target import Target
from specmesh.wire import messages as m

VOCABULARY = 2
SIMULATED_ROWS = 512  # rows of a step
RIGHT = 0  # the target's choice at each position
WRONG = 1  # a draft that is always rejected
ENDLESS = 2**30  # ids of context: more than any text needs
WARM_UP = 0.5  # texts per user that pass before anything is counted
ROWS = np.tile(np.array([1.0, 0.0], np.float32), (MAX_DRAFTS + 1, 1))

Callback = Callable[[float], None]
"""An event that happens, at the time that it takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A verifier, its drafters and the network between them; times in seconds.

    costs: of steps. draft: of one draft. round_trip: between both sides.
    pause: between two steps. solving: of one policy, one at a time.
    drafters: how many; None is one for each user.
    known: costs that the verifier has measured at first; None is all of them.
    burden: so much longer takes a step that begins while a drafter drafts on the same machine.
    """

    costs: StepCosts
    draft: float
    round_trip: float
    pause: float = 0.0
    solving: float = 5e-3
    drafters: int | None = None
    known: StepCosts | None = None
    burden: float = 0.0


@dataclass(frozen=True, slots=True)
class Workload:
    """The request that every user makes again and again.

    prompt, tokens: of the text. draft_n: None adapts.
    """

    prompt: int
    tokens: int
    draft_n: int | None = None


@dataclass(frozen=True, slots=True)
class Forecast:
    """The outcome while each user, on average, had one whole text after a warm-up.

    total: tokens per second of all users. slowest: of the slowest user.
    acceptance: rate of drafts; None without drafts. busy: share of time spent in steps.
    """

    total: float
    slowest: float
    acceptance: float | None
    busy: float


@dataclass(slots=True)
class _Drafter:
    """A drafter's core. busy: a step of its draft model runs."""

    id: vev.DrafterId
    core: DrafterCore
    busy: bool = False


@dataclass(slots=True, kw_only=True)
class _Counts:
    """Counts since `begun`: tokens by user, seconds of steps, drafts."""

    begun: float
    tokens: list[int]
    seconds: float = 0.0
    drafted: int = 0
    accepted: int = 0


class Simulation:
    """Users who ask one verifier at the same time."""

    def __init__(
        self,
        site: Deployment,
        texts: Workload,
        users: int,
        right: Callable[[int], bool],
        policy: Callable[[int], Policy] | None = None,
    ) -> None:
        """Simulate so many users.

        right: returns True if the draft for a position, prompt included, is right.
        policy: returns the policy at a position, as an oracle. None: sessions learn the acceptance
            and have their own policies solved.
        """
        self._site = site
        self._texts = texts
        self._users = users
        self._right = right
        self._policy = policy
        self._events: list[tuple[float, int, Callback]] = []  # a heap
        self._order = itertools.count()
        most_drafts = MAX_DRAFTS
        if policy is not None:
            # An oracle's policy knows the costs of so many drafts. A step must not have more.
            most_drafts = len(policy(texts.prompt).inputs.steps) - 1
        limits = TargetLimits(
            ENDLESS,
            VOCABULARY,
            frozenset(),
            max_drafts=most_drafts,
            drafts_repeats=False,  # its texts do nothing but repeat themselves
        )
        self._verifier = VerifierCore(self._target(limits))
        self._drafters: dict[vev.DrafterId, _Drafter] = {}
        for number in range(site.drafters or users):
            self._join(b"%d" % number)
        self._stepping = False
        self._wake: float | None = None  # when a wait ends
        self._solver_free = 0.0
        self._counts = _Counts(begun=0.0, tokens=[0] * users)
        self._warm = False

    def _target(self, limits: TargetLimits) -> Target:
        """Return the verifier's target."""
        return Target(
            limits=limits,
            costs=deepcopy(self._site.known or self._site.costs),
            slots=KVSlots(self._users, "whole", 0),
            n_batch=SIMULATED_ROWS,
            max_sessions=self._users,
        )

    def run(self) -> Forecast:
        """Go from event to event. The warm-up, in which estimates are learned, is not counted."""
        for user in range(self._users):
            self._ask(user, 0.0)
        all_texts = self._texts.tokens * self._users
        begun = self._run_until(WARM_UP * all_texts)
        self._counts = _Counts(begun=begun, tokens=[0] * self._users)
        self._warm = True
        counts = self._counts
        seconds = self._run_until(all_texts) - begun
        return Forecast(
            total=sum(counts.tokens) / seconds,
            slowest=min(counts.tokens) / seconds,
            acceptance=counts.accepted / counts.drafted if counts.drafted else None,
            busy=counts.seconds / seconds,
        )

    def _run_until(self, tokens: float) -> float:
        """Let events happen until all users have so many tokens; return the time."""
        now = 0.0
        while sum(self._counts.tokens) < tokens:
            now, _, event = heapq.heappop(self._events)
            event(now)
        return now

    def _at(self, time: float, event: Callback) -> None:
        """Let something happen at a time."""
        heapq.heappush(self._events, (time, next(self._order), event))

    # --- users

    def _ask(self, user: int, now: float) -> None:
        """Let a user ask for the next text."""
        tokens = self._texts.tokens
        if not self._warm and now <= 0:
            # The first texts differ in length, or all users would always be at the same position.
            tokens = 1 + tokens * (user + 1) // (self._users + 1)
        params = SessionParams(
            SamplingParams(), tokens, draft_n=self._texts.draft_n, cache_prompt=False
        )
        client = next(self._order) * self._users + user  # the first to ask is served first
        ids = (RIGHT,) * self._texts.prompt
        opening = vev.Opening(
            client=client,
            request=Request(None, ids, params),
            ids=ids,
            n_prompt=self._texts.prompt,
        )
        self._handle(opening, now)

    # --- the verifier

    def _handle(self, event: vev.Happened, now: float) -> None:
        """Hand an event to the verifier's core, as its daemon would."""
        self._carry_out(self._verifier.handle(event, now), now)
        self._turn(now)

    def _turn(self, now: float) -> None:
        """Begin the next step, or come back when the core has waited enough."""
        if self._stepping:
            return
        if self._policy is not None:
            for session in self._verifier.sessions():
                session.draft_length.policy = self._policy(len(session.prefix))
        # As in the daemon's loop: the core decides whether a step begins or a draft is waited for.
        step = self._verifier.next_step(now)
        if isinstance(step, ev.Wait):
            if step.until not in (inf, self._wake):
                self._wake = step.until
                self._at(step.until, self._woken)
            return
        self._stepping = True
        self._wake = None
        self._begin(step, now)

    def _begin(self, step: ev.Step | ev.DraftStep, now: float) -> None:
        """Let a step take its time."""
        assert isinstance(step, ev.Step), "nothing drafts in the verifier's process"
        context_length = sum(span.position for span in step.spans)
        seconds = self._site.costs.seconds(step.rows, context_length)
        if any(drafter.busy for drafter in self._drafters.values()):
            seconds += self._site.burden
        self._at(now + seconds, partial(self._stepped, step, seconds))

    def _woken(self, now: float) -> None:
        """End a wait, unless a newer one counts."""
        # A step may have begun meanwhile, and its own end comes later.
        if self._wake == now:
            self._turn(now)

    def _stepped(self, step: ev.Step, seconds: float, now: float) -> None:
        """End a step of the target, and begin the next one after a pause."""
        self._counts.seconds += seconds
        rows = [ROWS[: len(span.ids)] if span.logits else None for span in step.spans]
        self._carry_out(self._verifier.finish(step, rows, now - seconds, now), now)
        # The time between two steps belongs to the daemon: it samples, sends frames and serves
        # clients.
        self._at(now + self._site.pause, self._next_turn)

    def _next_turn(self, now: float) -> None:
        self._stepping = False
        self._turn(now)

    def _carry_out(self, effects: list[vev.Effect], now: float) -> None:
        """Send frames, count tokens, solve policies; a user whose text has ended asks again."""
        for effect in effects:
            match effect:
                case vev.ToDrafter(drafter, frame):
                    arrived = partial(self._arrived, self._drafters[drafter], frame)
                    self._at(now + self._site.round_trip / 2, arrived)
                case vev.ToClient(int(client), Round() as done):
                    counts = self._counts
                    counts.tokens[client % self._users] += len(done.text.ids)
                    counts.drafted += len(done.drafts)
                    counts.accepted += done.accepted
                case vev.Solve() if self._policy is None:
                    # The daemon has one thread for policies, so they are solved one after the
                    # other.
                    self._solver_free = max(self._solver_free, now) + self._site.solving
                    self._at(self._solver_free, partial(self._solved, effect))
                case vev.ToClient(int(client), vev.SessionEnded()):
                    self._ask(client % self._users, now)
                case vev.ToClient() | vev.RequestRefused() | vev.Forgotten():
                    pass
                case vev.Solve() | vev.Ran() | vev.Noted() | vev.CoreReport():
                    pass
                case _:
                    assert_never(effect)

    def _solved(self, wanted: vev.Solve, now: float) -> None:
        policy = solve(wanted.inputs, wanted.old)
        self._handle(vev.Solved(wanted.session, wanted.drafter, policy), now)

    # --- drafters

    def _join(self, identity: vev.DrafterId) -> None:
        """Attach a drafter."""
        round_trip = self._site.round_trip
        slots = KVSlots(self._users, "whole", 0)
        core = DrafterCore(DraftLimits(Windows(n_ctx=ENDLESS), SIMULATED_ROWS), slots)
        # A real pair learns the round trip from PINGs. Here both know it before the first text.
        core.handle(ev.UpstreamChanged(0, round_trip, speaks=True), 0.0)
        self._verifier.handle(vev.DrafterJoined(identity, ENDLESS), 0.0)
        self._verifier.handle(vev.RoundTrip(identity, round_trip), 0.0)
        self._drafters[identity] = _Drafter(identity, core)

    def _arrived(self, drafter: _Drafter, frame: vev.DrafterFrame, now: float) -> None:
        """Hand a frame to a drafter's core, as its daemon would."""
        event: ev.CoreEvent
        match frame:
            case m.Opened(session, _, n_prompt):
                event = ev.OpenSession(
                    key=ev.SessionKey(0, session),
                    session=session,
                    n_vocab=VOCABULARY,
                    n_prompt=n_prompt,
                    params=SamplingParams(),
                )
            case m.Done(session):
                event = ev.CloseSession(ev.SessionKey(0, session))
            case m.Truth() | m.Sync() | m.Nack():
                event = ev.FrameReceived(ev.SessionKey(0, frame.session), frame)
            case m.Logprobs():
                return
            case _:
                assert_never(frame)
        self._send(drafter, drafter.core.handle(event, now), now)
        self._draft(drafter, now)

    def _draft(self, drafter: _Drafter, now: float) -> None:
        """Let a drafter do its next step; steps without drafts take no time."""
        if drafter.busy:
            return
        while True:
            step = drafter.core.next_step(now)
            if not isinstance(step, ev.DraftStep):
                return
            if any(row.sampler is not None for row in step.rows):
                break
            # A row that reads takes no time: prompts are short, and the time of reading is not the
            # question.
            self._finish(drafter, step, now, now)
        drafter.busy = True
        # The rows of a step run side by side, so the longest one decides.
        seconds = self._site.draft * max(row.draft_n for row in step.rows)
        self._at(now + seconds, partial(self._drafted, drafter, step, now))

    def _drafted(self, drafter: _Drafter, step: ev.DraftStep, started: float, now: float) -> None:
        drafter.busy = False
        self._finish(drafter, step, started, now)
        self._draft(drafter, now)

    def _finish(self, drafter: _Drafter, step: ev.DraftStep, started: float, now: float) -> None:
        """End a drafter's step, and send its drafts."""
        # The imagined engine can go back anywhere.
        held = {cut.seq: cut.length for cut in step.cuts}
        tokens = [self._drafts(row) for row in step.rows]
        result = ev.DraftedRows(held, tokens)
        self._send(drafter, drafter.core.finish(step, result, started, now), now)

    def _drafts(self, row: ev.DraftRow) -> list[int]:
        """Return the drafts of a row."""
        if row.sampler is None:
            return []
        end = row.text_position + len(row.ids)
        positions = range(end, end + row.draft_n)
        return [RIGHT if self._right(position) else WRONG for position in positions]

    def _send(self, drafter: _Drafter, effects: list[ev.CoreEffect], now: float) -> None:
        """Let a drafter's frames arrive half a round trip later."""
        for effect in effects:
            match effect:
                case (_, m.Draft() | m.DraftProbs() | m.Nack() as frame):
                    event = vev.FromDrafter(drafter.id, frame)
                    self._at(now + self._site.round_trip / 2, partial(self._handle, event))
                # No grammar, no log-probabilities: the other wishes of a drafter's core are not
                # imagined.
                case (_, _) | ev.WorkReport():
                    pass
                case _:
                    assert_never(effect)
