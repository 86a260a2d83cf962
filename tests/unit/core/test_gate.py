"""Whether drafting pays, by the measured rates of steps with drafts and without; how many drafts do in a step."""

import random
from itertools import accumulate, product
from operator import mul

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmesh.core.draft_length.controller import DraftLengthController
from specmesh.core.draft_length.estimates import Arrivals, RollingAcceptance, StepCosts
from specmesh.core.draft_length.gate import DraftBid, SpeculationGate, allocate_drafts
from specmesh.core.statistics import SessionTimes


def run(gate: SpeculationGate, seconds: float, tokens: float, steps: int, alone: float, sessions: int = 1) -> float:
    """Steps of so many seconds with drafts, of `alone` without; return the share of steps with drafts."""
    luck, drafting = random.Random(2), 0
    for _ in range(steps):
        with_drafts = gate.drafts
        drafting += with_drafts
        stood = sum(luck.random() < (tokens - 1) / 4 for _ in range(4 * sessions)) if with_drafts else 0
        spent = seconds if with_drafts else alone
        gate.stepped(sessions, sessions + stood, spent, asked=with_drafts, had=with_drafts, alone=sessions / alone)
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
    drafting = run(gate, seconds, 2.6, 5000, 1.0, sessions)
    assert drafting * (seconds - 2.6) < 0.02


def test_what_a_drafter_needs_to_begin_is_paid_for():
    """It may read the text on the cores of the verifier's steps: for as long as many of these take."""
    gate, now, before = SpeculationGate(), 0.0, False
    for _ in range(50_000):
        drafts = gate.drafts
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
            stood = sum(luck.random() < (mean - 1) / 4 for _ in range(4)) if gate.drafts else 0
            spent = 1.9 if gate.drafts else 1.0
            gate.stepped(1, 1 + stood, spent, asked=gate.drafts, had=gate.drafts, alone=1.0)
            now, said = now + spent, said + 1 + stood
        assert said > least * now


def test_a_machine_that_stood_still_says_nothing_of_drafts():
    """A step that took a hundred times as long costs no more than the measurement that it may cause."""
    gate = SpeculationGate()
    run(gate, 1.5, 2.5, 600, 1.0)
    for seconds in (10.0, 100.0, 1000.0):
        gate.stepped(1, 2, seconds, asked=gate.drafts, had=gate.drafts, alone=1.0)
        assert run(gate, 1.5, 2.5, 600, 1.0) > 0.9
    fresh = SpeculationGate()
    fresh.stepped(1, 1, 1.0, asked=True, had=True, alone=0.0)  # nothing is known of steps without drafts
    assert run(fresh, 1.5, 2.5, 600, 1.0) > 0.9


def test_a_measurement_beside_a_drafter_that_goes_on_is_not_believed_for_long():
    """The first steps without drafts take eight times as long: the drafter has not heard yet that it shall stop."""
    gate, lost, withheld = SpeculationGate(), 0.0, 0
    for _ in range(6000):
        withheld = 0 if gate.drafts else withheld + 1
        spent = 2.5 if gate.drafts else 8.0 if 0 < withheld < 30 and lost < 400 else 1.0
        lost += spent - (2 if gate.drafts else 1)
        gate.stepped(1, 1 + gate.drafts, spent, asked=gate.drafts, had=gate.drafts, alone=1.0)
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
        spent = 2.5 if gate.drafts else 1.0
        lost += spent - (2 if gate.drafts else 1)
        gate.stepped(1, 1 + gate.drafts, spent, asked=gate.drafts, had=gate.drafts, alone=estimate, shared=host)
    assert lost < most


def test_no_drafts_no_verdict():
    """Where no session asks for drafts nothing is measured, and nothing withheld."""
    gate = SpeculationGate()
    for _ in range(3000):
        gate.stepped(1, 1, 1.0, asked=False, had=False, alone=1.0)
    assert gate.drafts
    assert gate.verdict is None


def test_who_did_not_pay_is_believed_once_it_may_be_tried_again():
    """Late drafts that were right count for nothing before that, and then they can bring drafting back."""
    draft_length = DraftLengthController(None, 8, StepCosts(), SessionTimes(0.0))
    arrivals = Arrivals()
    draft_length.attach(arrivals, RollingAcceptance())
    run(arrivals.gate, 5.0, 1.0, 40, 1.0)
    assert (arrivals.gate.drafts, arrivals.gate.verdict) == (False, False)
    draft_length.judged(right=True)
    assert not draft_length.acceptance.known
    while not arrivals.gate.drafts:
        run(arrivals.gate, 5.0, 1.0, 1, 1.0)
    draft_length.judged(right=True)
    assert draft_length.acceptance.known


def test_beside_a_drafter_of_the_host_a_share_must_pay_for_the_threads_that_it_takes():
    costs = StepCosts()
    for rows, seconds in ((2, 10.0), (4, 12.0), (6, 30.0)):
        costs.record(rows, seconds)
    gate, draft_length = costs.gate(2), DraftLengthController(None, 8, costs, SessionTimes(0.0))
    draft_length.share(2)
    assert (draft_length.draft_n, gate.drafts) == (1, True)
    costs.split(2.0)
    for rows, seconds in ((2, 28.0), (4, 30.0)):
        costs.record(rows, seconds)
    draft_length.share(3)
    draft_length.share(2)
    assert draft_length.draft_n == 0
    assert not costs.gate(4).drafts, "steps without drafts are measured before"


# --- how many drafts pay in a step that sessions share


def bid(*rates, chosen=False):
    return DraftBid(tuple(accumulate(rates, mul)), chosen)


bids = st.lists(st.builds(lambda rates: bid(*rates), st.lists(st.floats(0, 1), max_size=3)), min_size=1, max_size=3)
steps = st.lists(st.floats(0.001, 1), min_size=12, max_size=12)


@given(bids, steps, st.integers(0, 9))
def test_nothing_else_gives_more_tokens_a_second(bids, steps, room):
    def rate(counts):
        gained = sum(sum(one.acceptance[:count]) for one, count in zip(bids, counts, strict=True))
        return (len(bids) + gained) / steps[len(bids) + sum(counts) - 1]

    counts = allocate_drafts(bids, room, lambda rows: steps[rows - 1])
    ways = [way for way in product(*(range(len(one.acceptance) + 1) for one in bids)) if sum(way) <= room]
    assert tuple(counts) in ways
    best, none = max(map(rate, ways)), rate([0] * len(bids))
    assert none < rate(counts) >= best * (1 - 1e-9) if any(counts) else best < 1.015 * none


def test_what_a_client_has_chosen_comes_first():
    assert allocate_drafts([bid(0.1, 0.1, chosen=True), bid(0.9)], 9, lambda rows: float(rows) ** 3) == [2, 0]
    assert allocate_drafts([bid(0.1, 0.1, chosen=True), bid(0.9, chosen=True)], 2, lambda _: 1.0) == [2, 0]
