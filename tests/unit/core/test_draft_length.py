"""The step policy: against a simulation of the process it solves, in corners where the answer is known, and against
events in virtual time; the step costs that it is given; whether drafting pays, and how many drafts do in a step."""

import random
from dataclasses import replace
from itertools import accumulate, pairwise, product
from operator import mul

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmesh.core.draft_length.controller import DraftLengthController
from specmesh.core.draft_length.estimates import Arrivals, RollingAcceptance, StepCosts
from specmesh.core.draft_length.gate import DraftBid, SpeculationGate, allocate_drafts
from specmesh.core.draft_length.policy import PolicyInputs, solve
from specmesh.core.simulation import Deployment, Simulation, Workload
from specmesh.core.statistics.counters import SessionTimes

MOST, AHEAD = 16, 48  # drafts of a step, and that a drafter is ahead at most
Q8_0 = (1.0, 2.5, 3.4, 4.2, 4.9, 5.3, 4.4, 3.5, *(3.6 + 0.2 * k for k in range(9)))
"""Relative costs of 1, 2, ... rows with a cliff: seven rows cost more than eight."""


def inputs(
    alpha, step=0.0342, row=0.001, interval=0.0052, round_trip=0.005, steps=None, alone=None
):
    steps = tuple(step + row * k for k in range(MOST + 1)) if steps is None else steps
    return PolicyInputs(
        steps, (alpha,) * (MOST + 1), interval, round_trip + 1.5 * interval, alone or steps[0]
    )


def rate_of(made, alpha, round_trip, decide):
    """Tokens per second of the process itself, in which decide(lead) gives (drafts, lead to wait for or None)."""
    chance, now, said, behind, held = random.Random(5), 0.0, 0, round_trip, 0
    while said < 6000:
        lead = min((now - behind) / made.interval - held, AHEAD)
        drafts, until = decide(lead)
        if until is not None:
            now += max(until - lead, 1e-6) * made.interval
            continue
        now += made.steps[drafts]
        accepted = 0
        while accepted < drafts and chance.random() < alpha:
            accepted += 1
        said += accepted + 1
        if accepted == drafts and chance.random() < alpha:
            held += drafts + 1
            behind = max(behind, now - (AHEAD + held) * made.interval)
        else:
            behind, held = now + round_trip + chance.random() * made.interval, 0
    return said / now


@pytest.mark.parametrize("round_trip", [0.0003, 0.005, 0.02, 0.08])
@pytest.mark.parametrize(
    ("step", "row", "interval"), [(0.0342, 0.001, 0.0052), (0.052, 0.0016, 0.0033)]
)
@pytest.mark.parametrize("alpha", [0.5, 0.75, 0.9])
def test_as_good_as_any_simple_rule(alpha, step, row, interval, round_trip):
    made = inputs(alpha, step, row, interval, round_trip)
    policy = solve(made)

    def decide(lead):
        at = policy.index(lead)
        then = policy.then[at]
        return policy.drafts[then], None if then == at else policy.lead_at(then)

    reached = rate_of(made, alpha, round_trip, decide)
    assert reached == pytest.approx(policy.rate, rel=0.06)
    rules = [
        lambda lead, size=size: (size, None if lead >= size else float(size))
        for size in (1, 2, 3, 4, 6, 8)
    ]
    assert reached > 0.97 * max(rate_of(made, alpha, round_trip, rule) for rule in rules)
    assert reached > 0.99 / made.steps[0]


def test_cliffs():
    """A width that costs more than a wider one is never used: nothing until seven drafts are here, then eight rows."""
    policy = solve(inputs(0.9, interval=0.02, steps=tuple(0.04 * cost for cost in Q8_0)))
    assert not {policy.drafts[then] for then in policy.then} & {1, 2, 3, 4, 5, 6}
    assert policy.wanted >= 7


@pytest.mark.fault("E4.39")
def test_off_where_drafting_does_not_pay():
    assert solve(inputs(0.05)).wanted == 0
    assert solve(inputs(0.9, step=0.0069, row=0.0069)).wanted == 0
    assert solve(inputs(0.75, step=0.0069, row=0.00015, round_trip=0.08)).wanted == 0
    good = inputs(0.5, round_trip=0.02)
    assert solve(good).wanted > 0
    assert solve(inputs(0.5, round_trip=0.02, alone=0.8 * good.steps[0])).wanted == 0


@pytest.mark.fault("E4.40")
def test_on_and_off_do_not_alternate():
    made = inputs(0.4, round_trip=0.08)
    there = inputs(0.4, round_trip=0.08, alone=1.02 / solve(made).rate)
    on, off = solve(made), solve(inputs(0.05))
    assert (on.wanted > 0, off.wanted) == (True, 0)
    assert solve(there, on).wanted > 0
    assert solve(there, off).wanted == 0


@settings(max_examples=settings().max_examples // 4)
@given(
    alpha=st.floats(0.01, 0.99),
    costs=st.lists(st.floats(1e-4, 1.0), min_size=2, max_size=17),
    interval=st.floats(1e-5, 2.0),
    round_trip=st.floats(0.0, 5.0),
)
def test_any_inputs(alpha, costs, interval, round_trip):
    """Whatever is measured: a policy in bounds, whose waits end with an arrival, never slower than the target alone."""
    policy = solve(
        PolicyInputs(tuple(costs), (alpha,) * len(costs), interval, round_trip + interval, costs[0])
    )
    assert policy.rate >= 0.999 / costs[0]
    for at, then in enumerate(policy.then):
        assert 0 <= policy.drafts[at] <= max(policy.lead_at(at), 0)
        assert then >= at
        assert then == at or policy.lead_at(then) == pytest.approx(round(policy.lead_at(then)))
    for lower, upper in pairwise((-1e9, -3.3, 0.0, 0.99, 1.0, 17.2, 1e9)):
        assert policy.index(lower) <= policy.index(upper)


# --- many users in virtual time, by events


def measured(table):
    costs = StepCosts()
    for rows, value in table.items():
        costs.record(rows, value)
    return costs


SITE = Deployment(
    measured({rows: 0.029 + 0.001 * rows for rows in range(1, 34)}), draft=0.005, round_trip=0.004
)


@pytest.mark.parametrize(("alpha", "round_trip"), [(0.75, 0.0003), (0.9, 0.08)])
def test_the_promise_is_kept(alpha: float, round_trip: float):
    """Events, not averages, and still the rate that the policy promises; hardly below any fixed number of drafts; and
    acceptance that has to be learned costs little."""
    site = replace(SITE, draft=0.0052, round_trip=round_trip, solving=0.0)
    steps = tuple(SITE.costs.seconds(drafts + 1) for drafts in range(17))
    policy = solve(
        PolicyInputs(
            steps, (alpha,) * len(steps), site.draft, round_trip + 1.5 * site.draft, steps[0]
        )
    )

    def rate(known: bool, draft_n: int | None = None) -> float:
        chance = random.Random(3)
        luck = [chance.random() < alpha for _ in range(1100)]
        texts = Workload(1, 1000, draft_n)
        return (
            Simulation(site, texts, 1, luck.__getitem__, (lambda _: policy) if known else None)
            .run()
            .total
        )

    adaptive = rate(True)
    assert adaptive == pytest.approx(policy.rate, rel=0.08)
    assert adaptive > 0.97 * max(rate(False, fixed) for fixed in (2, 4, 8))
    assert rate(False) > 0.94 * adaptive


# --- measured costs of a step


@given(
    st.dictionaries(st.integers(1, 40), st.floats(0, 10), min_size=1, max_size=8),
    st.integers(1, 60),
)
def test_interpolation_stays_between_its_neighbours(table, rows):
    costs = measured(table)
    below = [width for width in table if width <= rows]
    above = [width for width in table if width >= rows]
    value = costs.seconds(rows)
    if rows in table:
        assert value == table[rows]
    elif below and above:
        low, high = sorted((table[max(below)], table[min(above)]))
        assert low - 1e-9 <= value <= high + 1e-9
    else:
        assert value >= table[max(below) if below else min(above)] - 1e-9
    assert costs.tables() == {0: dict(sorted(table.items()))}


def test_median_ignores_outliers_and_the_distant_past():
    costs = StepCosts()
    for value in (1.0, 1.0, 50.0, 1.0, 1.0) * 200:
        costs.record(2, value)
        assert costs.seconds(2) == 1.0
    for _ in range(100):
        costs.record(2, 2.0)
    assert costs.seconds(2) == 2.0


def test_long_contexts_have_costs_of_their_own():
    costs = measured({1: 10.0, 4: 13.0, 8: 20.0})
    assert costs.seconds(4, 5000) == 13.0
    costs.record(1, 12.0, context=5000)
    assert [costs.seconds(rows, 5000) for rows in (1, 4, 8)] == [12.0, 15.0, 22.0]
    costs.record(4, 17.0, context=4096)
    assert [costs.seconds(rows, 8191) for rows in (1, 4, 8)] == [12.0, 17.0, 23.0]
    assert [costs.seconds(rows, 1023) for rows in (1, 4, 8)] == [10.0, 13.0, 20.0]
    assert costs.seconds(8, 100_000) == 23.0
    assert costs.seconds(8, 2000) == 20.0
    assert costs.tables() == {0: {1: 10.0, 4: 13.0, 8: 20.0}, 4096: {1: 12.0, 4: 17.0}}


def test_a_line_goes_on_from_half_as_many_rows():
    assert measured({1: 1.0, 16: 8.0, 25: 12.0, 32: 12.0}).seconds(64) == 20.0


def test_steps_beside_a_drafter_are_as_much_slower_as_those_that_were_measured():
    """The first measurement counts half, and none more than threads explain."""
    costs = measured({1: 10.0, 4: 16.0})
    costs.split(2.0)
    costs.record(1, 14.0)
    assert [costs.seconds(rows) for rows in (1, 4)] == [12.0, 16.0 * 1.2]
    for _ in range(9):
        costs.record(1, 100.0)
    costs.alone.record(4, 18.0)
    assert [costs.seconds(rows) for rows in (1, 4)] == [100.0, 2 * 17.0]
    assert costs.alone.tables() == {0: {1: 10.0, 4: 17.0}}
    costs.split(1.5)
    assert [costs.seconds(rows) for rows in (1, 4)] == [100.0, 1.5 * 17.0]
    costs.join()
    assert [costs.seconds(rows) for rows in (1, 4)] == [10.0, 17.0]


# --- whether drafting pays, by the measured rates of steps with drafts and without


def run(
    gate: SpeculationGate,
    seconds: float,
    tokens: float,
    steps: int,
    alone: float,
    sessions: int = 1,
) -> float:
    """Steps of so many seconds with drafts, of `alone` without; return the share of steps with drafts."""
    luck, drafting = random.Random(2), 0
    for _ in range(steps):
        with_drafts = gate.open
        drafting += with_drafts
        stood = (
            sum(luck.random() < (tokens - 1) / 4 for _ in range(4 * sessions)) if with_drafts else 0
        )
        spent = seconds if with_drafts else alone
        gate.stepped(
            sessions,
            sessions + stood,
            spent,
            asked=with_drafts,
            had=with_drafts,
            alone=sessions / alone,
        )
    return drafting / steps


@pytest.mark.parametrize("sessions", [1, 2, 16])
@pytest.mark.parametrize(
    ("seconds", "least", "most"),
    [(1.0, 0.99, 1.0), (1.1, 0.9, 1.0), (1.8, 0.8, 1.0), (3.5, 0.0, 0.4), (9.0, 0.0, 0.15)],
)
def test_what_is_faster_goes_on(sessions: int, seconds: float, least: float, most: float):
    """Two tokens a step and session: they pay below twice the seconds."""
    gate = SpeculationGate()
    assert least <= run(gate, seconds, 2.0, 3000, 1.0, sessions) <= most
    assert gate.verdict == (seconds < 2)


@pytest.mark.parametrize("sessions", [1, 4, 16])
@pytest.mark.parametrize("seconds", [2.8, 4.0, 20.0])
def test_what_it_may_lose_is_a_share_of_the_time(sessions: int, seconds: float):
    """However many sessions share a step, and however much slower it is."""
    gate = SpeculationGate()
    run(gate, seconds, 2.6, 200, 1.0, sessions)
    assert run(gate, seconds, 2.6, 5000, 1.0, sessions) * (seconds - 2.6) < 0.02


def test_what_a_drafter_needs_to_begin_is_paid_for():
    """It may read the text on the cores of the verifier's steps: for as long as many of these take."""
    gate, now, before = SpeculationGate(), 0.0, False
    for _ in range(50_000):
        drafts = gate.open
        spent, before = 60.0 if drafts and not before else 1.0, drafts
        gate.stepped(1, 1, spent, asked=drafts, had=drafts, alone=1.0)
        now += spent
    assert now < 50_000 * 1.012


def test_texts_for_which_drafts_pay_and_others_in_turn():
    """What drafting loses with some texts is bounded by what it has gained, and by a share of what comes without it."""
    for tokens, least in (((3.0, 1.0), 1.1), ((1.8, 1.2), 0.985), ((1.0, 1.0), 0.985)):
        gate, now, said = SpeculationGate(), 0.0, 0
        luck = random.Random(3)
        for step in range(20_000):
            mean = tokens[step // 100 % 2]
            stood = sum(luck.random() < (mean - 1) / 4 for _ in range(4)) if gate.open else 0
            spent = 1.9 if gate.open else 1.0
            gate.stepped(1, 1 + stood, spent, asked=gate.open, had=gate.open, alone=1.0)
            now, said = now + spent, said + 1 + stood
        assert said > least * now


def test_a_machine_that_stood_still_says_nothing_of_drafts():
    """A step that took a hundred times as long costs no more than the measurement that it may cause."""
    gate = SpeculationGate()
    run(gate, 1.5, 2.5, 600, 1.0)
    for seconds in (10.0, 100.0, 1000.0):
        gate.stepped(1, 2, seconds, asked=gate.open, had=gate.open, alone=1.0)
        assert run(gate, 1.5, 2.5, 600, 1.0) > 0.9
    fresh = SpeculationGate()
    fresh.stepped(
        1, 1, 1.0, asked=True, had=True, alone=0.0
    )  # nothing is known of steps without drafts
    assert run(fresh, 1.5, 2.5, 600, 1.0) > 0.9


def test_a_measurement_beside_a_drafter_that_goes_on_is_not_believed_for_long():
    """The first steps without drafts take eight times as long: the drafter has not heard yet that it shall stop."""
    gate, lost, withheld = SpeculationGate(), 0.0, 0
    for _ in range(6000):
        withheld = 0 if gate.open else withheld + 1
        spent = 2.5 if gate.open else 8.0 if 0 < withheld < 30 and lost < 400 else 1.0
        lost += spent - (2 if gate.open else 1)
        gate.stepped(1, 1 + gate.open, spent, asked=gate.open, had=gate.open, alone=1.0)
    assert gate.verdict is False
    assert lost < 700


@pytest.mark.parametrize(
    ("host", "estimate", "most"),
    [(False, 0.0, 20), (False, 0.1, 270), (False, 0.6, 270), (False, 1.0, 20)]
    + [(True, estimate, 20) for estimate in (0.0, 0.1, 0.6, 1.0)],
)
def test_a_first_estimate_that_is_too_low_promises_nothing(host: bool, estimate: float, most: int):
    """Drafting brings 0.8 of what there is without, and more than was expected of that. host: the drafter is on the
    same one, where it is not expected but measured."""
    gate, lost = SpeculationGate(), 0.0
    for _ in range(1000):
        spent = 2.5 if gate.open else 1.0
        lost += spent - (2 if gate.open else 1)
        gate.stepped(
            1, 1 + gate.open, spent, asked=gate.open, had=gate.open, alone=estimate, shared=host
        )
    assert lost < most


def test_no_drafts_no_verdict():
    """Where no session asks for drafts nothing is measured, and nothing withheld."""
    gate = SpeculationGate()
    for _ in range(3000):
        gate.stepped(1, 1, 1.0, asked=False, had=False, alone=1.0)
    assert gate.open
    assert gate.verdict is None


def test_who_did_not_pay_is_believed_once_it_may_be_tried_again():
    """Late drafts that were right count for nothing before that, and then they can bring drafting back."""
    draft_length = DraftLengthController(None, 8, StepCosts(), SessionTimes(0.0))
    arrivals = Arrivals()
    draft_length.attach(arrivals, RollingAcceptance())
    run(arrivals.gate, 5.0, 1.0, 40, 1.0)
    assert (arrivals.gate.open, arrivals.gate.verdict) == (False, False)
    draft_length.judged(right=True)
    assert not draft_length.acceptance.known
    while not arrivals.gate.open:
        run(arrivals.gate, 5.0, 1.0, 1, 1.0)
    draft_length.judged(right=True)
    assert draft_length.acceptance.known


def test_beside_a_drafter_of_the_host_a_share_must_pay_for_the_threads_that_it_takes():
    costs = StepCosts()
    for rows, seconds in ((2, 10.0), (4, 12.0), (6, 30.0)):
        costs.record(rows, seconds)
    draft_length = DraftLengthController(None, 8, costs, SessionTimes(0.0))
    draft_length.share(2)
    assert draft_length.draft_n == 1
    costs.split(2.0)
    for rows, seconds in ((2, 28.0), (4, 30.0)):
        costs.record(rows, seconds)
    draft_length.share(3)
    draft_length.share(2)
    assert draft_length.draft_n == 0


def test_a_share_is_by_the_drafter_that_a_session_has():
    costs, wrong = measured({2: 10.0, 16: 24.0}), RollingAcceptance()
    draft_length = DraftLengthController(None, 8, costs, SessionTimes(0.0))
    draft_length.share(2)
    assert draft_length.draft_n > 0
    for _ in range(200):
        wrong.record(1, 0)
    draft_length.attach(Arrivals(), wrong)
    assert draft_length.draft_n == 0


# --- how many drafts pay in a step that sessions share


def bid(*rates, chosen=False):
    return DraftBid(tuple(accumulate(rates, mul)), chosen)


bids = st.lists(
    st.builds(lambda rates: bid(*rates), st.lists(st.floats(0, 1), max_size=3)),
    min_size=1,
    max_size=3,
)
steps = st.lists(st.floats(0.001, 1), min_size=12, max_size=12)


@given(bids, steps, st.integers(0, 9))
def test_nothing_else_gives_more_tokens_a_second(bids, steps, room):
    def rate(counts):
        gained = sum(sum(one.acceptance[:count]) for one, count in zip(bids, counts, strict=True))
        return (len(bids) + gained) / steps[len(bids) + sum(counts) - 1]

    counts = allocate_drafts(bids, room, lambda rows: steps[rows - 1])
    ways = [
        way
        for way in product(*(range(len(one.acceptance) + 1) for one in bids))
        if sum(way) <= room
    ]
    assert tuple(counts) in ways
    best, none = max(map(rate, ways)), rate([0] * len(bids))
    assert none < rate(counts) >= best * (1 - 1e-9) if any(counts) else best < 1.015 * none


def test_what_a_client_has_chosen_comes_first():
    assert allocate_drafts(
        [bid(0.1, 0.1, chosen=True), bid(0.9)], 9, lambda rows: float(rows) ** 3
    ) == [2, 0]
    assert allocate_drafts(
        [bid(0.1, 0.1, chosen=True), bid(0.9, chosen=True)], 2, lambda _: 1.0
    ) == [2, 0]
