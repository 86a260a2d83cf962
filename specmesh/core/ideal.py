"""What a pair would do if nothing but the models and the distance took time: a discrete-event simulation.

Verifier and drafter behave as the daemons do, the verifier by the same `Pacing`, with step times, draft interval and
round trip exactly known; messages, scheduling, sampling and solving policies take no time. Acceptance is learned as the
daemons learn it, or given: the first is the yardstick for what `specmesh bench sim` measures, the second for learning.
"""

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, inf

from specmesh.core.acceptance import RollingAcceptance
from specmesh.core.arrivals import Arrivals
from specmesh.core.costs import ENOUGH, StepCosts
from specmesh.core.drafter_session import LONGEST_GAP, SHADOW
from specmesh.core.pacing import Pacing
from specmesh.core.policy import Policy, PolicyInputs, solve
from specmesh.core.session_times import SessionTimes
from specmesh.core.telling import TELL_EVERY
from specmesh.core.verifier_session import SESSION_MEMORY

MAX_CREDIT = 32
"""Most drafts a drafter is ahead of the truth it knows."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two models and the distance between them.

    steps: seconds of a verifier step with k = 0, 1, ... drafts. interval: seconds of a draft. round_trip: seconds.
    """

    steps: tuple[float, ...]
    interval: float
    round_trip: float

    def inputs(self, alpha: float) -> PolicyInputs:
        """What a policy is solved from where every draft stands with probability `alpha`."""
        restart = self.round_trip + 1.5 * self.interval
        return PolicyInputs(self.steps, (alpha,) * len(self.steps), self.interval, restart, self.steps[0])


def ideal_seconds(
    pair: Pair,
    luck: Sequence[bool],
    policy: Callable[[int], Policy] | None = None,
    draft_n: int | None = None,
    acceptance: RollingAcceptance | None = None,
) -> float:
    """Seconds to generate len(luck) tokens, where a guess for position p on the true text is right iff luck[p].

    policy(position) gives the policy to decide by there, known by an oracle. Without one draft_n drafts are taken in
    every step, or, without that too, policies are solved from what was learned, in `acceptance` by the texts before.
    """
    simulation = _Simulation(pair, luck, policy, draft_n, acceptance or RollingAcceptance())
    return simulation.run()


def solved(pair: Pair, alpha: float) -> Policy:
    """The policy for a pair whose acceptance is known."""
    return solve(pair.inputs(alpha))


class _Simulation:
    """Positions count from the first generated token."""

    def __init__(
        self,
        pair: Pair,
        luck: Sequence[bool],
        policy: Callable[[int], Policy] | None,
        draft_n: int | None,
        shared: RollingAcceptance,
    ) -> None:
        self._pair, self._luck, self._policy = pair, luck, policy
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()
        most = len(pair.steps) - 1
        costs, arrivals = StepCosts(), Arrivals()
        for drafts, seconds in enumerate(pair.steps):
            for _ in range(ENOUGH):
                costs.record(drafts + 1, seconds)
        for drafting in (False, True):
            costs.record_pause(0.0, drafting=drafting)
        arrivals.record_round_trip(pair.round_trip)
        arrivals.record_restart(pair.round_trip + 1.5 * pair.interval, 1)
        arrivals.record_interval(pair.interval, 1)
        acceptance = RollingAcceptance(memory=SESSION_MEMORY, parent=shared)
        self._pacing = Pacing(draft_n, most, costs, acceptance, SessionTimes(0.0))
        self._pacing.attach(arrivals)
        self._most = most
        self._truth = 0  # committed
        self._untold = 0  # from where the drafter has not been told yet
        self._shadowed = self._gap = 0
        self._end, self._wrong = 0, inf  # drafts in hand reach up to here; the first wrong one
        self._stepping = False
        self._wake = -1.0  # when the verifier gives a wait up
        self._finished: float | None = None
        self._known = 0  # truth as the drafter knows it
        self._next, self._chain_wrong = 0, inf  # the position it drafts next; its first wrong guess
        self._chain, self._drafting = 0, False
        self._asked = 0
        self._hidden = ceil(pair.round_trip / pair.interval)

    def run(self) -> float:
        self._at(0.0, self._tell)
        self._at(0.0, self._turn)
        while self._finished is None:
            now, _, event = heapq.heappop(self._events)
            event(now)
        return self._finished

    def _at(self, time: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), event))

    # --- verifier

    def _turn(self, now: float) -> None:
        if self._stepping or self._finished is not None:
            return
        if self._policy is not None:
            self._pacing.adopt(self._policy(self._truth))
        elif (inputs := self._pacing.unsolved(now)) is not None:
            self._pacing.adopt(solve(inputs, self._pacing.policy))
        lead = self._end - self._truth
        limit = min(self._most, len(self._luck) - self._truth - 1)
        drafts, until = self._pacing.plan(self._truth, lead, limit, now)
        if until is not None:
            if until != self._wake:
                self._wake = until
                self._at(until, lambda then: self._turn(then) if self._wake == until else None)
            return
        drafts = min(drafts, lead, limit)
        self._pacing.begin(now)
        self._stepping = True
        self._at(now + self._pair.steps[drafts], lambda then: self._stepped(then, drafts))

    def _stepped(self, now: float, drafts: int) -> None:
        self._stepping = False
        accepted = 0
        while accepted < drafts and self._truth + accepted < self._wrong:
            accepted += 1
        self._truth += accepted + 1
        if self._wrong < self._truth or self._end < self._truth:
            self._end, self._wrong = self._truth, inf
        flushed = self._end == self._truth
        self._pacing.stepped(self._truth, min(accepted + 1, drafts), accepted, flushed=flushed, now=now)
        if self._truth >= len(self._luck):
            self._finished = now
            return
        self._tell(now)
        self._turn(now)

    def _arrived(self, now: float, position: int, wrong: float) -> None:
        if position < self._truth:
            if wrong >= self._truth:
                self._pacing.alive()
        elif wrong >= self._truth and position == self._end:
            self._end, self._wrong = position + 1, wrong
            self._pacing.arrived(self._truth, self._end, now)
        self._turn(now)

    def _tell(self, now: float) -> None:
        truth, asked = self._truth, self._pacing.draft_n
        if asked == 0 and truth - self._untold < TELL_EVERY:
            return
        if asked > 1:
            self._gap = 0
        if asked:
            self._shadowed = truth
        elif truth - self._shadowed >= self._gap + SHADOW:
            self._shadow(now, max(self._untold, truth - SHADOW), truth)
            self._shadowed, self._gap = truth, min(2 * self._gap + SHADOW, LONGEST_GAP)
        self._untold = truth
        self._at(now + self._pair.round_trip / 2, lambda then: self._told(then, truth, asked))

    def _shadow(self, now: float, first: int, end: int) -> None:
        """What the drafter would have said from `first` to `end` comes back."""
        due = now + self._pair.round_trip + (end - first) * self._pair.interval
        self._at(due, lambda _: self._judged(self._luck[first:end]))

    def _judged(self, guesses: Sequence[bool]) -> None:
        for right in guesses:
            self._pacing.judged(right=right)

    # --- drafter

    def _told(self, now: float, truth: int, asked: int) -> None:
        self._known, self._asked = truth, asked
        if self._chain_wrong < truth or self._next < truth:
            self._next, self._chain_wrong = truth, inf
            self._chain += 1
        self._draft(now)

    def _draft(self, now: float) -> None:
        credit = min(2 * self._asked + 1 + self._hidden, MAX_CREDIT) if self._asked else 0
        if not self._drafting and self._next - self._known < credit:
            self._drafting, chain = True, self._chain
            self._at(now + self._pair.interval, lambda then: self._drafted(then, chain))

    def _drafted(self, now: float, chain: int) -> None:
        self._drafting = False
        if chain == self._chain:
            position = self._next
            if self._chain_wrong == inf and not (position < len(self._luck) and self._luck[position]):
                self._chain_wrong = position
            wrong, self._next = self._chain_wrong, position + 1
            self._at(now + self._pair.round_trip / 2, lambda then: self._arrived(then, position, wrong))
        self._draft(now)
