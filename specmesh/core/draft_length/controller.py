"""Adaptive `draft_n`: when a session's next step begins, and with how many drafts.

Two decisions are made for each session, and nothing here can change its text:

- *Step or wait* (`plan`). If drafts are in hand the step takes some of them. If more are on their
  way it may pay to wait for them.
- *How many drafts to ask for* (`draft_n`), sent to the drafter with every TRUTH.

Who decides depends on the session:

- A client's own draft_n is taken in every step, and waited for while the drafter keeps up.
- A session that has the steps to itself follows its policy (policy.py), which is solved from
  measured acceptance, arrivals and step costs. Before there is a policy, a step takes the drafts in
  hand and the drafter is asked for FIRST_DRAFT_N.
- Sessions that share steps never wait, since one would hold up all others. Each asks for a fair
  share of the rows that pay.

A shut gate (gate.py) overrides all but a client's own draft_n: then nothing is asked for, except a
probe now and then.
"""

from collections.abc import Callable, Sequence

from specmesh.core.draft_length.bids import LEAST_GAIN, SHORTEST, DraftBid, allocate_drafts
from specmesh.core.draft_length.drafter_estimates import (
    ArrivalEstimate,
    Arrivals,
    DrafterEstimates,
    RollingAcceptance,
)
from specmesh.core.draft_length.gate import SpeculationGate
from specmesh.core.draft_length.policy import Policy, PolicyInputs, moved
from specmesh.core.draft_length.speculation import (
    PROBE_INTERVAL,
    Speculation,
    Speculations,
)
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.draft_sources import REMOTE
from specmesh.core.statistics.counters import SessionTimes

SESSION_MEMORY = 16.0  # rounds after which a session's round counts half: texts change
FIRST_DRAFT_N = 4  # drafts asked for before anything is known
WAIT_SHARE = 0.01
"""Share of the verification time that waiting for late drafts may cost for nothing. A drafter whose
drafts are timed to cost most fails tests/properties/test_machines.py without that limit: the gate
is too slow to see it.
"""
SOLVE_INTERVAL = 0.1  # seconds between two policies, at least: one costs milliseconds of a core
OFF_SOLVE_INTERVAL = 1.0  # the same while the drafter is off, until a draft shows news
LEAST_EXTRA = 0.02  # tokens that drafts of another source must gain beside a drafter's
FAIR_TOKENS = 8  # ids for which a fair share stays: to find one takes each of 16 sessions 27 us


class DraftLengthController:
    """The pace of one session.

    draft_n: drafts that its drafter is asked for.
    probing: they are asked for only to learn whether they would be accepted.
    relieved: another source does better than the drafter could, so it is asked for nothing.
    allows_remote: the client lets drafter daemons draft. If not, one may still pass on its text.
    policy, acceptance, estimate: of this session with its present drafter.

    In all methods `frontier` is the number of committed ids, and `lead` the number of drafts in
    hand beyond it.
    """

    def __init__(
        self,
        *,
        fixed: int | None,
        most: int,
        costs: StepCosts,
        speculations: Speculations,
        times: SessionTimes,
        sources: Sequence[str] | None = None,
    ) -> None:
        """Begin without a drafter.

        fixed: the client's own draft_n; None adapts. most: drafts that a step may have.
        speculations: by source and number of sessions.
        sources: those that the client lets draft; None for all. Without the remote one a drafter
            is asked for nothing, and nothing is learned of it.
        """
        self.policy: Policy | None = None
        self.acceptance = RollingAcceptance()
        self.estimate = ArrivalEstimate(Arrivals())
        self.drafter: DrafterEstimates | None = None
        self.allows_remote = sources is None or REMOTE in sources
        self._sources = sources
        self._fixed = fixed
        self._most = most
        self._costs = costs
        self._speculations = speculations
        self._apart: dict[str, Speculations] = {}  # by source, if not the ones of all sessions
        self._times = times
        self._sessions = 1  # that the next step has, as far as is known
        self._fair_drafts = 0  # drafts of a shared step
        self._fair_until = 0  # frontier up to which the share stays
        self._frontier = 0
        self._accepted = 0
        self._waiting: tuple[float, float] | None = None  # since when, and until when
        self._news = False  # of acceptance, since the policy was last checked
        self._wanted_at = 0  # frontier at which drafts were last asked for
        self._muted = False  # the drafter drafts nothing, by its own account
        self.relieved = False
        self.probing = False
        self.draft_n = self._wanted_drafts()

    def attach(self, drafter: DrafterEstimates) -> None:
        """Take another drafter."""
        self.drafter = drafter
        if not self.allows_remote:
            return
        self.estimate = ArrivalEstimate(drafter.arrivals)
        self.acceptance = RollingAcceptance(SESSION_MEMORY, drafter.acceptance)
        self.policy = drafter.speculation.policy
        # The policy was solved for another session's text. It is better than none, but is to be
        # checked before the first step of this one.
        drafter.speculation.policy_checked_at = float("-inf")
        self._fair_until = 0
        self._ask()

    def detach(self) -> None:
        """Go on without a drafter."""
        self.drafter = None
        self.estimate.drafting = False
        self._muted = False

    def mute(self, *, muted: bool) -> None:
        """Note whether the drafter drafts nothing: then it is asked for nothing."""
        if muted != self._muted:
            self._muted = muted
            self._ask()

    def relieve(self, *, relieved: bool) -> None:
        """Note whether another source does better: then the drafter is asked for nothing.

        It goes on reading, so that it drafts at once when it is needed again. A client's own number
        is asked for all the same, and so is a drafter that nothing is known of.
        """
        if self._fixed is not None or self.policy is None:
            relieved = False
        if relieved != self.relieved:
            self.relieved = relieved
            self._ask()

    def note_sessions(self, sessions: int) -> None:
        """Note how many sessions will have the next steps."""
        if sessions != self._sessions:
            self._sessions = sessions
            self._fair_until = 0
            self._ask()

    # --- which gate governs the session

    def _speculation(self, drafter: DrafterEstimates | None) -> Speculation | None:
        """Return the speculation that governs this session with a drafter.

        It is that of the number of sessions if steps are shared, else that of the drafter. None
        if the client chose draft_n or lets no drafter draft, or if there is no drafter.
        """
        if self._fixed is not None or not self.allows_remote:
            return None
        if self._sessions > 1:
            # A shared step has one duration for the rows of all. No single drafter can be measured
            # by it, so the gate of this number of sessions learns, whichever drafters they have.
            return self._speculations.of(REMOTE, self._sessions)
        return None if drafter is None else drafter.speculation

    @property
    def adapts(self) -> bool:
        """Return True unless the client chose draft_n."""
        return self._fixed is None

    @property
    def lone(self) -> bool:
        """Return True if a drafter's draft_n adapts and the session has the steps to itself."""
        return self._fixed is None and self.allows_remote and self._sessions <= 1

    def refuses(self, drafter: DrafterEstimates | None) -> bool:
        """Return True if drafts of a drafter were found not to pay for this session."""
        speculation = self._speculation(drafter)
        return speculation is not None and speculation.gate.refuses

    @property
    def withheld(self) -> bool:
        """Return True if a gate is shut: drafts do not pay, or steps without are measured."""
        speculation = self._speculation(self.drafter)
        return speculation is not None and not speculation.gate.open

    def withholds(self, source: str) -> bool:
        """Return True if the gate of a source in hand is shut for this number of sessions."""
        if self._fixed is not None:
            return False
        return not self.gate_of(source, self._sessions).open

    def gate_of(self, source: str, sessions: int) -> SpeculationGate:
        """Return the gate that governs a source in hand while so many sessions share the steps."""
        return self._apart.get(source, self._speculations).of(source, sessions).gate

    def judge_apart(self, source: str, speculations: Speculations | None) -> None:
        """Judge a source by gates that only some sessions share; None: by those of all."""
        if speculations is None:
            self._apart.pop(source, None)
        else:
            self._apart[source] = speculations

    def shut_gates(self, shut: Sequence[str], sessions: int) -> list[SpeculationGate]:
        """Return the gates of this session's sources in hand that are shut.

        shut: names of sources whose gate for all sessions is shut. sessions: of the step.
        """
        if not shut and not self._apart:
            return []
        names = {*shut, *self._apart}
        if self._sources is not None:
            names.intersection_update(self._sources)
        gates = [self.gate_of(name, sessions) for name in names]
        return [gate for gate in gates if not gate.open]

    @property
    def off(self) -> bool:
        """Return True if the drafter was found not to pay for this session by itself."""
        unwanted = self.policy is not None and self.policy.wanted == 0
        return self.lone and (self.refuses(self.drafter) or unwanted)

    @property
    def wants_drafts(self) -> bool:
        """Return True if drafts are asked for adaptively, or were until recently."""
        if self._fixed is not None or self.drafter is None or not self.allows_remote:
            return False
        # Rounds between two wishes belong to drafting, too: a policy may want nothing for a while,
        # and the gate compares the mixture.
        return self._frontier - self._wanted_at < PROBE_INTERVAL

    # --- step or wait

    def plan(self, frontier: int, lead: int, limit: int, now: float) -> tuple[int, float | None]:
        """Return the drafts of the next step, at most `limit`, and when to stop waiting for them.

        None instead of a time means to step now.
        """
        self._frontier = frontier
        if self._waiting is not None and now >= self._waiting[1]:
            # They did not come in time: nothing is waited for until the drafter shows life.
            self.estimate.drafting = False
        drafts, until = self._wanted(frontier, lead, limit, now)
        if until is None:
            return drafts, None
        if self._waiting is None:
            # The first deadline of a wait stays. Each draft that comes moves the estimate on, and a
            # deadline that moved with it could be put off again and again.
            self._waiting = (now, until)
        return drafts, self._waiting[1]

    def begin(self, now: float) -> float:
        """Note that a step begins; return the seconds that were waited for it."""
        if self._waiting is None:
            return 0.0
        waited = now - self._waiting[0]
        self._waiting = None
        self._times.wait += waited
        return waited

    def interrupted(self) -> None:
        """Note that the next step has been waited for, but not for drafts."""
        self._waiting = None

    def _wanted(self, frontier: int, lead: int, limit: int, now: float) -> tuple[int, float | None]:
        """Return the same as `plan`, without regard to a wait that has begun."""
        if self._fixed is not None:
            return self._wanted_by_client(frontier, lead, min(self._fixed, limit), now)
        policy = self.policy
        # Before a policy there is no measure of what a wait is worth. And in a shared step one
        # session that waits would hold up all others.
        if policy is None or self._sessions > 1:
            return min(lead, self.draft_n, limit), None
        # Nothing is on its way from a drafter that drafts on an older truth, or that was asked for
        # nothing.
        may_wait = self.estimate.drafting and self.draft_n > 0 and lead < limit
        if not (may_wait and self._waiting_pays()):
            return min(policy.drafts[policy.index_of(lead)], limit), None
        # The drafter has made more by now than has come. So this may be a point of the policy at
        # which nothing is waited for.
        ahead = self.estimate.lead(frontier, lead, now)
        at = policy.index_of(ahead)
        then = policy.then[at]
        # `then` is the lead with which the policy steps. If that is the present one, another draft
        # would bring less than its wait costs.
        if then == at:
            return min(policy.drafts[at], limit), None
        wait = (policy.lead_at(then) - ahead) * policy.inputs.interval
        # A draft may be late, but never by more than a step: in that time the target makes a token
        # for certain.
        slack = min(self.estimate.slack, self._seconds(1))
        return min(policy.drafts[then], limit), now + wait + slack

    def _wanted_by_client(
        self, frontier: int, lead: int, drafts: int, now: float
    ) -> tuple[int, float | None]:
        """Return the client's number of drafts, and until when they are worth waiting for."""
        if lead >= drafts or not self.estimate.drafting:
            return drafts, None
        # All drafts that the client wants, or none: the last one decides how long the step waits.
        until = self.estimate.due(frontier + drafts, now) + self.estimate.slack
        if until <= now:
            return drafts, None
        return drafts, until

    def _waiting_pays(self) -> bool:
        """Return True while accepted drafts have saved the time that waiting has cost so far."""
        # A drafter may be a little late each time. A single wait is bounded, but not their sum, so
        # waits are paid from what accepted drafts have saved. The share of the verification pays
        # for the first ones, before anything was accepted.
        saved = self._accepted * self._seconds(1)
        return self._times.wait <= saved + WAIT_SHARE * self._times.verify

    # --- chains in hand

    def best_drafts(self, acceptance: Sequence[float], least: int = 0) -> tuple[int, float]:
        """Return how many drafts of a chain to take, and the most tokens per second of a step.

        acceptance: probabilities that its first 1, 2, ... drafts are all accepted.
        least: drafts to take anyway.

        As many are taken as pay. All are taken if the client chose their number. If steps are
        shared the scheduler finds how many pay for all sessions together, so it gets all.
        """
        tokens = 1.0 + sum(acceptance[:least])
        if self._seconds(1) <= 0:  # no step was timed yet
            most = len(acceptance) if self._fixed is not None else max(FIRST_DRAFT_N, least)
            return min(most, len(acceptance)), tokens + sum(acceptance[least:most])
        count = least
        rate = tokens / self._step_seconds(least)
        best = LEAST_GAIN * rate
        for drafts in range(least + 1, len(acceptance) + 1):
            tokens += acceptance[drafts - 1]
            with_draft = tokens / self._step_seconds(drafts)
            if with_draft > best:
                best = with_draft
                rate = with_draft
                count = drafts
        if self._fixed is not None or self._sessions > 1:
            count = len(acceptance)
        return count, rate

    def remote_promise(self, lead: int, limit: int) -> float:
        """Return the tokens per second that the drafter promises; 0 if there is none."""
        if self.drafter is None or self.withheld:
            return 0.0
        rate = 0.0
        drafts = min(lead, self._most, limit)
        if drafts:
            _, rate = self.best_drafts(self.acceptance.chain(drafts))
        if self.estimate.drafting and self.draft_n > 0:
            return max(rate, self.remote_rate)
        return rate

    def best_beside(
        self, acceptance: Sequence[float], seconds: Callable[[int], float], now: float
    ) -> int:
        """Return how many drafts of another source to make while the drafter has none here.

        0 if none pay, or if nothing is to come from the drafter.

        acceptance: probabilities that the first 1, 2, ... of them are all accepted.
        seconds: returns those of so many drafts, and of the step that verifies them.
        """
        policy = self.policy
        if policy is None or not self.lone or self.drafter is None or self.withheld:
            return 0
        if not self.estimate.drafting or self.draft_n == 0 or policy.wanted == 0:
            return 0
        lead = self.estimate.lead(self._frontier, 0, now)
        best = LEAST_EXTRA
        taken = 0
        for drafts in range(1, min(len(acceptance), len(policy.inputs.rates) - 1) + 1):
            gain = policy.gain_of(lead, acceptance[:drafts], seconds(drafts))
            if gain > best:
                best = gain
                taken = drafts
            elif drafts > taken + 1:
                break
        return taken

    @property
    def remote_rate(self) -> float:
        """Return the tokens per second of the drafter's policy; 0 if none was solved."""
        if self.drafter is None or self.policy is None or self.policy.wanted == 0:
            return 0.0
        return self.policy.rate

    def _step_seconds(self, drafts: int) -> float:
        """Return the seconds of a step with drafts, the pause before it included."""
        return max(self._seconds(drafts + 1) + self._costs.pause, SHORTEST)

    def _seconds(self, rows: int) -> float:
        """Return the seconds of a step of so many rows at this text's length."""
        return self._costs.seconds(rows, self._frontier)

    @property
    def round_trip(self) -> float:
        """Return the seconds to the drafter and back; 0 while unknown."""
        if self.drafter is None:
            return 0.0
        return self.drafter.arrivals.round_trip

    @property
    def undrafted_s(self) -> float:
        """Return the seconds from one step to the next without drafts; 0 while unknown."""
        return self._costs.undrafted.seconds(1, self._frontier) + self._costs.pause

    # --- the policy

    def unsolved(self, now: float) -> PolicyInputs | None:
        """Return the inputs of a new policy, which is solved on another thread.

        None if the estimates have hardly moved, or if the session follows no policy.
        """
        drafter = self.drafter
        if drafter is None or not self.lone or self.refuses(drafter):
            return None
        # While nothing is drafted and no draft was judged, the inputs hardly move. Solving would
        # take a core from the steps.
        interval = SOLVE_INTERVAL if self._news or not self.off else OFF_SOLVE_INTERVAL
        speculation = drafter.speculation
        if now - speculation.policy_checked_at < interval:
            return None
        inputs = self.inputs_with(self.acceptance.rates(), drafter.arrivals)
        if inputs is None:
            return None
        # The time is the drafter's, not the session's: with many sessions of one drafter, one of
        # them solves for all.
        speculation.policy_checked_at = now
        self._news = False
        if self.policy is not None and not moved(self.policy.inputs, inputs):
            return None
        return inputs

    def inputs_with(
        self, rates: list[float], arrivals: Arrivals, load: int | None = None
    ) -> PolicyInputs | None:
        """Return the inputs of a policy with a drafter like that; None if too little is known.

        load: sessions that it would draft for; None for the present ones.
        """
        if load is None:
            load = arrivals.load
        interval = arrivals.interval_at(load)
        if interval is None or self._seconds(1) <= 0:
            return None
        restart = arrivals.restart
        if restart is None:
            # No restart was timed yet. It is the way there and back, the first draft, and on
            # average half of the draft that was under way when the truth came.
            restart = arrivals.round_trip + 1.5 * interval
        # A row for the last committed id, and 0 to `most` drafts.
        widths = range(1, self._most + 2)
        return PolicyInputs(
            steps=tuple(self._seconds(rows) + self._costs.pause for rows in widths),
            rates=tuple(rates[: self._most + 1]),
            interval=interval,
            restart=max(restart, interval),
            undrafted_s=self.undrafted_s,
        )

    def solved(self, policy: Policy) -> None:
        """Follow a policy, with which other sessions of this drafter begin too."""
        self.policy = policy
        if self.drafter is not None:
            self.drafter.speculation.policy = policy

    # --- what happened

    def judged(self, *, right: bool) -> None:
        """Learn whether one more draft, which no step verified, would have been accepted.

        It may repeat text that is known already. So it is not believed while drafting was found
        not to pay: the gate bounds what another try can cost.
        """
        if self.drafter is not None and not self.drafter.speculation.gate.refuses:
            self.acceptance.record(1, int(right))
            self._news = True

    def stepped(
        self,
        frontier: int,
        *,
        tested: int,
        accepted: int,
        flushed: bool,
        now: float,
        sessions: int = 1,
    ) -> None:
        """Note that a step of so many sessions has moved the frontier.

        flushed: none of the drafter's drafts is left beyond it.
        """
        self._frontier = frontier
        # The fair share rests on both: on acceptance, and on the number of sessions.
        if tested or sessions != self._sessions:
            self._sessions = sessions
            self._fair_until = 0
        if tested:
            self.acceptance.record(tested, accepted)
            self._accepted += accepted
            self._news = True
        if self.drafter is not None and self.allows_remote:
            self.estimate.moved(frontier, self.draft_n, now, flushed=flushed)
            self._ask()

    def _ask(self) -> None:
        """Decide how many drafts are asked for next."""
        self.draft_n = self._wanted_drafts()
        self.probing = False
        if self.drafter is None or not self.allows_remote:
            return
        speculation = self.drafter.speculation
        if self.draft_n:
            self._wanted_at = self._frontier
            # Drafts show by themselves whether they are accepted. Once they are not wanted any more
            # the probes begin with the shortest interval.
            speculation.probe_interval = PROBE_INTERVAL
            return
        # Probes serve a policy that wants nothing. A shut gate measures steps without drafts, which
        # a probe would disturb. A muted drafter would not answer. A client that has chosen 0 wants
        # none.
        if self.withheld or self._muted or self.relieved or self._fixed is not None:
            return
        # Texts change: a list after an essay is easy to draft. Without a few drafts now and then
        # nobody would see it.
        quiet = self._frontier - self._wanted_at
        if quiet >= speculation.probe_interval:
            self.draft_n = FIRST_DRAFT_N
            self.probing = True
            self._wanted_at = self._frontier
            speculation.probed()

    def _wanted_drafts(self) -> int:
        """Return the number of drafts that are wanted of the drafter."""
        if self._muted or self.relieved or not self.allows_remote:
            return 0
        if self._fixed is not None:
            return self._fixed
        if self.withheld:
            return 0
        # Before a step was timed no share can be computed: the session goes on as if it had the
        # steps to itself.
        if self._sessions > 1 and self._seconds(1) > 0:
            if self._frontier >= self._fair_until:
                self._fair_drafts = self._count_fair()
                self._fair_until = self._frontier + FAIR_TOKENS
            return self._fair_drafts
        if self.policy is None:
            return FIRST_DRAFT_N
        return self.policy.wanted

    def _count_fair(self) -> int:
        """Return the drafts that each session should bring if all were like this one."""
        # All sessions are taken to be like this one, so that one bid shows the share of each, and
        # no session has to know the others.
        context_length = self._frontier * self._sessions

        def seconds(rows: int) -> float:
            # Where no session brings a draft, no drafter of this host takes cores from the step.
            costs = self._costs if rows > 1 else self._costs.undrafted
            return costs.seconds(rows * self._sessions, context_length) + self._costs.pause

        bid = DraftBid(self.acceptance.chain(self._most))
        [drafts] = allocate_drafts([bid], self._most, seconds)
        return drafts
