"""When a session's next step begins, with how many drafts, and how many its drafter is asked for: adaptive `draft_n`.

A client's own draft_n is taken in every step, waited for as long as the drafter keeps up. Else the policy decides
(policy.py); before there is one, a step takes the drafts in hand. Nothing here can change the text.
"""

from itertools import accumulate
from operator import mul

from specmesh.core.draft_length.estimates import (
    LONGEST_PROBE_INTERVAL,
    PROBE_INTERVAL,
    ArrivalEstimate,
    Arrivals,
    RollingAcceptance,
    StepCosts,
)
from specmesh.core.draft_length.gate import DraftBid, SpeculationGate, allocate_drafts
from specmesh.core.draft_length.policy import Policy, PolicyInputs, moved
from specmesh.core.statistics.counters import SessionTimes

SESSION_MEMORY = (
    16.0  # rounds after which what a session saw of acceptance counts half: texts change
)
FIRST_DRAFT_N = 4  # what a drafter is asked for before anything is known of it
# of the verification time, that may be waited away for nothing when drafts are late. A drafter whose drafts are timed
# to cost most fails tests/properties/test_machines.py without that limit: the gate alone is too slow
WAIT_SHARE = 0.01
# seconds between two policies with a drafter, at least; where it is off, until a draft shows something new: to solve
# takes milliseconds of a core that steps on the CPU want
SOLVE_INTERVAL, OFF_SOLVE_INTERVAL = 0.1, 1.0
SHARE_TOKENS = 8  # for which a share stays, unless drafts were verified: each of 16 sessions takes 27 us to find one


class DraftLengthController:
    """The pace of one session. `draft_n` is what its drafter is asked for; probing: only to learn whether it is right.
    fixed: the client's own draft_n, None to adapt; most: drafts a step may have. `frontier` is the number of committed
    ids, `lead` how many drafts are in hand beyond it."""

    def __init__(self, fixed: int | None, most: int, costs: StepCosts, times: SessionTimes) -> None:
        self.policy: Policy | None = None
        self.acceptance = RollingAcceptance()
        self.arrivals: Arrivals | None = None
        self._fixed, self._most = fixed, most
        self._costs, self._times = costs, times
        self._sharing = 1  # sessions that the next step has, as far as is known
        self._share, self._share_until = (
            0,
            0,
        )  # drafts of a shared step, and the frontier up to which that stays
        self._frontier = 0
        self._accepted = 0
        self.estimate = ArrivalEstimate(Arrivals())  # of the newest drafter
        self._waiting: tuple[float, float] | None = None  # since when, and until when
        self._news = False  # of acceptance, since it was last looked whether estimates have moved
        self._asked_at = 0  # the frontier when the drafter was last asked for drafts
        self._muted = False  # the drafter has said that it drafts nothing
        self.probing = False
        self.draft_n = self._wanted_drafts()

    def attach(self, arrivals: Arrivals, acceptance: RollingAcceptance) -> None:
        """Take another drafter. acceptance: of all its sessions."""
        self.arrivals, self.estimate = arrivals, ArrivalEstimate(arrivals)
        self.acceptance = RollingAcceptance(SESSION_MEMORY, acceptance)
        self.policy, arrivals.looked = arrivals.policy, float("-inf")
        self._share_until = 0
        self._ask()

    def detach(self) -> None:
        self.arrivals, self.estimate.drafting = None, False
        self._muted = False

    def mute(self, *, muted: bool) -> None:
        """Note that the drafter drafts nothing, so it is asked for nothing; or that it does."""
        if muted != self._muted:
            self._muted = muted
            self._ask()

    def share(self, sessions: int) -> None:
        """Note that so many sessions will have the next steps."""
        if sessions != self._sharing:
            self._sharing, self._share_until = sessions, 0
            self._ask()

    def _gate(self, arrivals: Arrivals | None) -> SpeculationGate | None:
        """That of as many sessions, or of a drafter where this one has the steps to itself; none for a client's own
        draft_n."""
        if self._fixed is not None:
            return None
        if self._sharing > 1:
            return self._costs.gate(self._sharing)
        return arrivals.gate if arrivals is not None else None

    @property
    def adapts(self) -> bool:
        """Whether no client has chosen draft_n."""
        return self._fixed is None

    @property
    def lone(self) -> bool:
        """Whether draft_n adapts, and the steps are this session's alone."""
        return self._fixed is None and self._sharing <= 1

    def refuses(self, arrivals: Arrivals | None) -> bool:
        """Whether drafts of such a drafter were found not to pay."""
        gate = self._gate(arrivals)
        return gate is not None and gate.refuses

    # --- the decision

    def plan(self, frontier: int, lead: int, limit: int, now: float) -> tuple[int, float | None]:
        """(drafts for the next step, at most `limit`; when to stop waiting for them, None to step now)."""
        self._frontier = frontier
        if self._waiting is not None and now >= self._waiting[1]:
            self.estimate.drafting = (
                False  # it did not come in time: nothing is waited for until it shows life again
            )
        drafts, until = self._wanted(frontier, lead, limit, now)
        if until is None:
            return drafts, None
        if self._waiting is None:
            self._waiting = now, until
        return drafts, self._waiting[1]

    def begin(self, now: float) -> float:
        """Note that a step begins; return the seconds that were waited for it."""
        waited = 0.0 if self._waiting is None else now - self._waiting[0]
        self._times.wait += waited
        self._waiting = None
        return waited

    def interrupted(self) -> None:
        """Note that the next step has been waited for, but not for drafts."""
        self._waiting = None

    def _wanted(self, frontier: int, lead: int, limit: int, now: float) -> tuple[int, float | None]:
        """As `plan`, without regard to how long this step has been waited for. Only a lone session's policy waits: of
        several each would hold up all the others."""
        estimate, policy = self.estimate, self.policy
        if self._fixed is not None:
            drafts = min(self._fixed, limit)
            if lead >= drafts or not estimate.drafting:
                return drafts, None
            until = estimate.due(frontier + drafts, now) + estimate.slack
            return drafts, until if until > now else None
        if policy is None or self._sharing > 1:
            return min(lead, self.draft_n, limit), None
        at = policy.index(lead)
        if not (estimate.drafting and self.draft_n > 0 and lead < limit and self._waiting_pays()):
            return min(policy.drafts[at], limit), None
        # By now the drafter has made more than has come: that may be a point of the policy at which none is waited for.
        real = estimate.lead(frontier, lead, now)
        at = policy.index(real)
        then = policy.then[at]
        if then == at:
            return min(policy.drafts[at], limit), None
        wait = (policy.lead_at(then) - real) * policy.inputs.interval
        return min(policy.drafts[then], limit), now + wait + min(estimate.slack, self._seconds(1))

    def _waiting_pays(self) -> bool:
        """Whether accepted drafts have saved what waiting has cost so far, whatever the estimates promise."""
        saved = self._accepted * self._seconds(1)
        return self._times.wait <= saved + WAIT_SHARE * self._times.verify

    @property
    def withheld(self) -> bool:
        """Whether a gate keeps drafts away: for good reason, or to measure steps without."""
        gate = self._gate(self.arrivals)
        return gate is not None and not gate.open

    @property
    def asking(self) -> bool:
        """Whether the drafter is asked for drafts, or was not long ago, if only to learn whether it is right: by what
        adapts, not by a client."""
        return (
            self._fixed is None
            and self.arrivals is not None
            and self._frontier - self._asked_at < PROBE_INTERVAL
        )

    def chain_acceptance(self, drafts: int) -> tuple[float, ...]:
        """The probability that the first 1, 2, ... of so many drafts are all accepted."""
        return tuple(accumulate(self.acceptance.rates(drafts), mul)) if drafts else ()

    def _seconds(self, rows: int) -> float:
        return self._costs.seconds(rows, self._frontier)

    @property
    def round_trip(self) -> float:
        """Seconds to the drafter and back, 0 while unknown."""
        return self.arrivals.round_trip if self.arrivals is not None else 0.0

    # --- the policy

    def unsolved(self, now: float) -> PolicyInputs | None:
        """What to solve a new policy from, outside the loop, for `policy`; None where the estimates have hardly
        moved, or none is used."""
        arrivals = self.arrivals
        if (
            arrivals is None
            or self._fixed is not None
            or self._sharing > 1
            or self.refuses(arrivals)
        ):
            return None
        interval = SOLVE_INTERVAL if self._news or not self.off else OFF_SOLVE_INTERVAL
        if now - arrivals.looked < interval:
            return None
        inputs = self.inputs_with(
            self.acceptance.rates(), arrivals.interval, arrivals.restart, arrivals.round_trip
        )
        if inputs is None:
            return None
        arrivals.looked, self._news = now, False
        return inputs if self.policy is None or moved(self.policy.inputs, inputs) else None

    @property
    def alone(self) -> float:
        """Seconds of a step where nothing is drafted, with what lies between two; 0 before the first measurement."""
        return self._costs.alone.seconds(1, self._frontier) + self._costs.pause

    @property
    def off(self) -> bool:
        """Whether the drafter has been found not to pay for this session by itself."""
        unwanted = self.policy is not None and self.policy.wanted == 0
        return self.lone and (self.refuses(self.arrivals) or unwanted)

    def inputs_with(
        self, rates: list[float], interval: float | None, restart: float | None, round_trip: float
    ) -> PolicyInputs | None:
        """What a policy would be solved from with a drafter like that; None where too little is known."""
        if interval is None or self._seconds(1) <= 0:
            return None
        restart = round_trip + 1.5 * interval if restart is None else restart
        steps = tuple(self._seconds(rows) + self._costs.pause for rows in range(1, self._most + 2))
        return PolicyInputs(
            steps, tuple(rates[: self._most + 1]), interval, max(restart, interval), self.alone
        )

    # --- what happened

    def solved(self, policy: Policy) -> None:
        self.policy = policy
        if self.arrivals is not None:
            self.arrivals.policy = policy

    def judged(self, *, right: bool) -> None:
        """Learn whether one more draft, which no step verified, would have been accepted. It may repeat what the text
        says already: where drafting did not pay it is not believed before the gate lets it be tried again, which bounds
        what that can cost."""
        gate = self.arrivals.gate if self.arrivals is not None else None
        if gate is not None and not gate.refuses:
            self.acceptance.record(1, int(right))
            self._news = True

    def stepped(
        self,
        frontier: int,
        tested: int,
        accepted: int,
        *,
        flushed: bool,
        now: float,
        sessions: int = 1,
    ) -> None:
        """Note that a step of so many sessions has moved the frontier. flushed: none of the drafter's drafts is left
        beyond it."""
        self._frontier = frontier
        if tested or sessions != self._sharing:
            self._sharing, self._share_until = sessions, 0
        if tested:
            self.acceptance.record(tested, accepted)
            self._accepted, self._news = self._accepted + accepted, True
        if self.arrivals is not None:
            self.estimate.moved(frontier, self.draft_n, now, flushed=flushed)
            self._ask()

    def _ask(self) -> None:
        """Decide what the drafter is asked for next."""
        self.draft_n, self.probing = self._wanted_drafts(), False
        if self.arrivals is None:
            return
        if self.draft_n:
            self._asked_at, self.arrivals.probe_interval = self._frontier, PROBE_INTERVAL
        elif (
            self._frontier - self._asked_at >= self.arrivals.probe_interval
            and not self.withheld
            and not self._muted
            and self._fixed is None
        ):
            self.draft_n, self.probing, self._asked_at = FIRST_DRAFT_N, True, self._frontier
            self.arrivals.probe_interval = min(
                2 * self.arrivals.probe_interval, LONGEST_PROBE_INTERVAL
            )

    def _wanted_drafts(self) -> int:
        """What to ask for: a client's own number; nothing behind a closed gate; a share where steps are shared, for
        which no policy is solved; else the policy's, and a first number while that is being solved."""
        if self._muted:
            return 0
        if self._fixed is not None:
            return self._fixed
        if self.withheld:
            return 0
        if self._sharing > 1 and self._seconds(1) > 0:
            if self._frontier >= self._share_until:
                self._share, self._share_until = self._fair_share(), self._frontier + SHARE_TOKENS
            return self._share
        return FIRST_DRAFT_N if self.policy is None else self.policy.wanted

    def _fair_share(self) -> int:
        """Drafts that each of the sessions should bring if all were like this one."""
        context = self._frontier * self._sharing

        def seconds(rows: int) -> float:
            costs = self._costs if rows > 1 else self._costs.alone
            return costs.seconds(rows * self._sharing, context) + self._costs.pause

        return allocate_drafts([DraftBid(self.chain_acceptance(self._most))], self._most, seconds)[
            0
        ]
