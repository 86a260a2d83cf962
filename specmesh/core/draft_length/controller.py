"""When a session's next step begins, with how many drafts, and how many its drafter is asked for: adaptive `draft_n`.

A client's own draft_n is taken in every step, waited for as long as the drafter keeps up. Else the policy decides
(policy.py); before there is one, a step takes the drafts in hand. Nothing here can change the text.
"""

from itertools import accumulate
from operator import mul

from specmesh.core.draft_length.estimates import ArrivalEstimate, Arrivals, RollingAcceptance, SilenceTimer
from specmesh.core.draft_length.gate import SharedStep, SpeculationGate, drafts_per_session
from specmesh.core.draft_length.policy import Policy, PolicyInputs, moved
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.statistics import SessionTimes

FIRST_DRAFT_N = 4  # what a drafter is asked for before anything is known of it
WAIT_SHARE = 0.01  # of the verification time, that may be waited away for nothing when drafts are late
# seconds between two policies of a session, at least; up to so many while they stay the same
SOLVE_INTERVAL, LONGEST_INTERVAL = 0.1, 4.0
COMPANY = 0.2  # weight of the newest step in how many sessions share steps, when they become fewer
SAME_RATE = 0.02  # relative difference of the promised rates of two policies that count as the same
FAR = 3.0  # times as far moved, and a new policy is not put off


class DraftLengthController:
    """The pace of one session. `draft_n` is what its drafter is asked for.

    fixed: the client's own draft_n, None to adapt; most: drafts a step may have; company: sessions there are with this
    one. `frontier` is the number of committed ids, `lead` how many drafts are in hand beyond it."""

    def __init__(
        self,
        fixed: int | None,
        most: int,
        costs: StepCosts,
        acceptance: RollingAcceptance,
        times: SessionTimes,
        company: int = 1,
    ) -> None:
        self.policy: Policy | None = None
        self.acceptance = acceptance
        self.arrivals: Arrivals | None = None
        self._fixed, self._most = fixed, most
        self._costs, self._times = costs, times
        self._frontier = 0
        self._accepted = 0
        self._company, self._crowd = float(company), company  # sessions that share steps of late; rounded
        self._outlook: ArrivalEstimate | None = None  # of the newest drafter
        self._drafting = False  # the drafter has shown that it drafts on our truth
        self._deadline: float | None = None
        self._waiting_since: float | None = None
        self._rounds_off = 0
        self._probing = False
        self._ended: float | None = None  # when the round before ended, where it and the next may be compared
        self._proven = False
        self.draft_n = self._first()
        self._solved = float("-inf")  # when a policy was last asked for
        self._patience = SOLVE_INTERVAL
        self._silence = SilenceTimer()

    def attach(self, arrivals: Arrivals, acceptance: RollingAcceptance | None = None, *, proven: bool = False) -> None:
        """Take another drafter. acceptance: where its rounds are recorded, None: as before. proven: it has shown that
        it is better, which may have been copied: it is not believed before drafting with it was seen to pay."""
        self.arrivals = arrivals
        self._drafting = False
        self._outlook = ArrivalEstimate(arrivals, self._times)
        self._silence, self._ended = SilenceTimer(), None
        if acceptance is not None:
            self.acceptance, self.policy, self._proven = acceptance, None, proven
            self._rounds_off, self._probing = 0, False
            self._solved, self._patience = float("-inf"), SOLVE_INTERVAL
            self.draft_n = self._first()

    def _first(self) -> int:
        if self._fixed is not None:
            return self._fixed
        return FIRST_DRAFT_N if self._gate is None or self._gate.drafts else 0

    def detach(self) -> None:
        self.arrivals = self._outlook = None
        self._drafting = False

    @property
    def _gate(self) -> SpeculationGate | None:
        """That of as many sessions; of a drafter, where this one has the steps to itself."""
        if self._crowd > 1:
            return self._costs.gate(self._crowd)
        return self.arrivals.gate if self.arrivals is not None else None

    # --- the decision

    def plan(self, frontier: int, lead: int, limit: int, now: float) -> tuple[int, float | None]:
        """(drafts for the next step, at most `limit`; when to stop waiting for them, None to step now)."""
        self._frontier = frontier
        if self._deadline is not None and now >= self._deadline:
            self._drafting = False  # it did not come in time: nothing is waited for until it shows life again
        drafts, until = self._wanted(frontier, lead, limit, now)
        if until is None:
            return drafts, None
        if now >= until:
            self._drafting = False
            return self._wanted(frontier, lead, limit, now)[0], None
        if self._deadline is None:
            self._deadline, self._waiting_since = until, now
        return drafts, self._deadline

    def begin(self, now: float) -> float:
        """Note that a step begins; return the seconds that were waited for it."""
        waited = 0.0 if self._waiting_since is None else now - self._waiting_since
        self._times.wait += waited
        self._deadline = self._waiting_since = None
        return waited

    def _wanted(self, frontier: int, lead: int, limit: int, now: float) -> tuple[int, float | None]:
        outlook = self._outlook
        if self._fixed is not None:
            drafts = min(self._fixed, limit)
            if lead >= drafts or not self._drafting or outlook is None:
                return drafts, None
            return drafts, outlook.due(frontier + drafts, now) + outlook.slack
        if self._probing and lead:
            return min(1, limit), None
        policy = self.policy
        if policy is None or self._crowd > 1:
            return min(lead, FIRST_DRAFT_N if policy is None else self.draft_n, limit), None
        expecting = self._drafting and self.draft_n > 0 and lead < limit
        if not expecting or outlook is None or not self._waiting_pays():
            return min(policy.drafts[policy.index(lead)], limit), None
        real = outlook.lead(frontier, lead, now)
        at = policy.index(real)
        if policy.then[at] == at:
            return min(policy.drafts[at], limit), None
        wait = (policy.lead_at(policy.then[at]) - real) * policy.inputs.interval
        patience = min(outlook.slack, self._seconds(1))
        return min(policy.drafts[policy.then[at]], limit), now + wait + patience

    def _waiting_pays(self) -> bool:
        """Whether accepted drafts have saved what waiting has cost so far, whatever the estimates promise."""
        saved = self._accepted * self._seconds(1)
        return self._times.wait <= saved + WAIT_SHARE * self._times.verify

    @property
    def refused(self) -> bool:
        """Whether as many sessions were measured to do better without drafts."""
        gate = self._gate
        return gate is not None and gate.verdict is False and not gate.drafts

    def _crowded(self, rows: int) -> float:
        """Seconds of a step of so many rows shared with others like this one, and the pause after it."""
        return self._costs.seconds(rows, self._frontier * self._crowd) + self._costs.pause(drafting=True)

    def stands(self, drafts: int) -> tuple[float, ...]:
        """The probability that the first 1, 2, ... of so many drafts all stand."""
        return tuple(accumulate(self.acceptance.rates()[:drafts], mul))

    def _seconds(self, rows: int) -> float:
        return self._costs.seconds(rows, self._frontier)

    @property
    def round_trip(self) -> float:
        """Seconds to the drafter and back, 0 while unknown."""
        return self.arrivals.round_trip if self.arrivals is not None else 0.0

    # --- the policy

    def unsolved(self, now: float) -> PolicyInputs | None:
        """What to solve a new policy from, outside the loop, for `adopt`; None where the estimates have hardly
        moved."""
        if self._fixed is not None or self.arrivals is None or self._crowd > 1 or now - self._solved < SOLVE_INTERVAL:
            return None
        arrivals = self.arrivals
        inputs = self.inputs_with(self.acceptance.rates(), arrivals.interval, arrivals.restart, arrivals.round_trip)
        if inputs is None:
            return None
        least = 1.0 if now - self._solved >= self._patience else FAR
        if self.policy is not None and moved(self.policy.inputs, inputs) <= least:
            return None
        self._solved = now
        return inputs

    def adopt(self, policy: Policy) -> None:
        old, self.policy = self.policy, policy
        same = old is not None and old.wanted == policy.wanted and abs(old.rate - policy.rate) < SAME_RATE * old.rate
        self._patience = min(2 * self._patience, LONGEST_INTERVAL) if same else SOLVE_INTERVAL

    @property
    def alone(self) -> float:
        """Seconds of a step where nothing is drafted, with what lies between two; 0 before the first measurement."""
        return self._seconds(1) + self._costs.pause(drafting=False)

    @property
    def off(self) -> bool:
        """Whether the drafter has been found not to pay for this session by itself."""
        unwanted = self.policy is not None and self.policy.wanted == 0
        return self._fixed is None and self._crowd <= 1 and (self.refused or unwanted)

    def silent(self, now: float) -> bool:
        restart = self.arrivals.restart if self.arrivals is not None else None
        return self._silence.lasts(self.round_trip if restart is None else restart[0], now)

    def inputs_with(
        self, rates: list[float], interval: float | None, restart: tuple[float, int] | None, round_trip: float
    ) -> PolicyInputs | None:
        """What a policy would be solved from with a drafter like that; None where too little is known."""
        if interval is None or self._seconds(1) <= 0:
            return None
        seconds, drafts = restart or (round_trip + 1.5 * interval, 1)
        rates = rates[: self._most + 1]
        rates += rates[-1:] * (self._most + 1 - len(rates))
        pause = self._costs.pause(drafting=True)
        steps = tuple(seconds + pause for seconds in self._costs.hopeful(self._most + 1, self._frontier))
        return PolicyInputs(steps, tuple(rates), interval, max(seconds - (drafts - 1) * interval, interval), self.alone)

    # --- what happened

    def told(self, frontier: int, now: float) -> None:
        if self._outlook is not None:
            self._outlook.told(frontier, now)

    def shadowed(self, end: int, guesses: int, now: float) -> None:
        if self._outlook is not None:
            self._outlook.shadowed(end, guesses, now)

    def alive(self) -> None:
        self._drafting = True
        self._silence.broken()

    def arrived(self, frontier: int, end: int, now: float) -> None:
        self.alive()
        if self._outlook is not None:
            self._outlook.arrived(frontier, self.draft_n, end, now)

    def judged(self, *, right: bool) -> None:
        """Learn whether one more guess, which no step verified, would have stood. It may repeat what the text says
        already: a drafter with which drafting did not pay is not believed."""
        verdict = self.arrivals.gate.verdict if self.arrivals is not None else None
        if verdict or (verdict is None and not self._proven):
            self.acceptance.record(1, int(right))

    def stepped(
        self,
        frontier: int,
        tested: int,
        accepted: int,
        *,
        flushed: bool,
        now: float,
        sessions: int = 1,
        forced: bool = False,
    ) -> None:
        """Note that a step of so many sessions has moved the frontier.

        flushed: none of the drafter's drafts is left beyond it. forced: it had drafts of a grammar's own."""
        self._company = max(self._company + (sessions - self._company) * COMPANY, float(sessions))
        self._crowd = round(self._company)
        self.acceptance.record(tested, accepted)
        self._accepted += accepted
        if self._probing and tested:
            self._probing, self._rounds_off = False, self._probe_every() if accepted else 0
        if self._outlook is not None:
            self._outlook.moved(frontier, self.draft_n, now, flushed=flushed)
        self._silence.round(asked=self.draft_n > 0, now=now)
        if self._fixed is None and self.arrivals is not None:
            self._measure(accepted + 1, now, drafts=tested > 0, counts=self._crowd == 1 and not forced)
            self._set_draft_n()

    def _measure(self, tokens: int, now: float, *, drafts: bool, counts: bool) -> None:
        """Let the drafter's gate learn from a round. Shared steps, probes and those with a grammar's own drafts say
        nothing of it."""
        assert self.arrivals is not None
        counts = counts and self.policy is not None and not self._probing
        if counts and self._ended is not None:
            step = SharedStep(1, tokens, now - self._ended, drafting=self.draft_n > 0, drafts=drafts, left_out=False)
            self.arrivals.gate.stepped(step, self.alone)
        self._ended = now if counts else None

    def _set_draft_n(self) -> None:
        """What the policy steps with at most; where that is nothing, now and then one to probe with."""
        gate = self._gate
        if gate is not None and not gate.drafts:
            self.draft_n = 0
            return
        if self._crowd > 1:
            self.draft_n = drafts_per_session(self.acceptance.rates(), self._crowd, self._most, self._crowded)
        else:
            self.draft_n = FIRST_DRAFT_N if self.policy is None else self.policy.wanted
        self._rounds_off = 0 if self.draft_n else self._rounds_off + 1
        if self._rounds_off >= self._probe_every():
            self._rounds_off, self._probing, self.draft_n = 0, True, 1

    def _probe_every(self) -> int:
        """Rounds between probes of a drafter that is off, so that they cost about 1 %; one that succeeds repeats at
        once."""
        alone = max(self._seconds(1), 1e-9)
        return max(16, int(100 * (self._seconds(2) - alone) / alone))
