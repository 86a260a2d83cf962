"""The text is the target's own, whatever drafters and network do, and drafting resumes after them.

A discrete-event simulation joins a verifier and drafters over a link that drops, delays,
duplicates, reorders and corrupts real frames. The target's logits are a hash of the ids in its
memory, so a wrong position or a missed trim changes the text. The oracle is the target without
drafts, one row per step.
"""

import random
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import count, pairwise

import pytest
from harness.cores import MAX_DRAFTS
from harness.table_source import table_source
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_drafters import Drafter
from simulated_world import (
    EDITS,
    OF_DRAFTERS,
    PROMPT,
    STEP,
    Faults,
    World,
    check,
    drafters,
    predicted_text,
    session_params,
    worlds_of,
)

from specmesh.core.draft_sources import REMOTE
from specmesh.core.drafter.window import slack
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams
from specmesh.wire import messages as m

fault = pytest.mark.fault

DRAFT = bytes([m.Kind.DRAFT])
TRUTH = bytes([m.Kind.TRUTH])
GREEDY = SamplingParams()
worlds = worlds_of(World)
swaps = st.sampled_from([0.05, 0.3, 1.0])


def part(whole):
    """Have a property try a part of the examples only."""
    return settings(max_examples=settings().max_examples // whole)


def params_of(max_tokens, draft_n=None, sampling=GREEDY):
    return SessionParams(sampling, max_tokens, draft_n=draft_n)


def endless(**options):
    return World(n_ctx=4096, end_bias=-100.0, **options)


# --- the text


@part(2)
@given(
    worlds,
    st.lists(st.tuples(session_params, st.lists(drafters, max_size=3)), min_size=1, max_size=3),
)
@fault("E2.20")
@fault("E2.22")
@fault("E4.47")
def test_output_is_the_targets_own(world, sessions):
    world.open_all(sessions)
    check(world.run())


@part(4)
@given(
    worlds,
    session_params,
    st.lists(drafters, max_size=2),
    st.integers(1, 9),
    st.sampled_from([2, 8]),
)
def test_output_with_another_source_is_the_targets_own(world, params, attached, back, length):
    """A table proposes ids of the text again, by itself and with the drafters' own drafts."""

    def repeats(ids):
        return ids[-back:][:length]

    with table_source(repeats):
        world.open(params, attached)
        check(world.run())


@part(2)
@given(worlds, session_params, st.lists(drafters, max_size=2), EDITS, st.booleans())
def test_output_with_a_prediction_is_the_targets_own(world, params, attached, kind, restarts):
    """Alone, beside drafters, and over restarts of the verifier."""
    world.open(params, attached, predicted=predicted_text(kind, params, PROMPT, world))
    if restarts:
        world.clock.at(0.3, world.restart)
    check(world.run())


@pytest.mark.parametrize("restarts", [False, True])
def test_a_right_prediction_saves_steps(restarts):
    world = endless()
    params = params_of(300)
    predicted = predicted_text("right", params, PROMPT, world)
    served = world.open(params, [], predicted=predicted)
    if restarts:
        world.clock.at(0.3, world.restart)
    check(world.run())
    assert served.accepted > 0.6 * len(served.shown)


@part(4)
@given(worlds, session_params, st.lists(drafters, max_size=2), st.integers(1, 40))
def test_output_that_repeats_is_the_targets_own(world, params, attached, period):
    """The prompt has a period, and each text comes three times, drafted from those before it."""
    prompt = (PROMPT * 40)[:period] * 3
    for _ in range(3):
        world.open(params, attached, prompt[: world.n_ctx - 2])
        world.run()
    check(world)


def test_output_is_drafted_from_earlier_ones():
    world = endless()
    for _ in range(2):
        served = world.open(params_of(120), [])
        world.run()
    assert served.accepted > 60


@part(10)
@given(worlds, session_params, drafters, drafters, swaps)
def test_output_with_two_drafters_is_the_targets_own(world, params, first, second, swaps):
    """They change places all the time, in the middle of steps too, and one of them may go."""
    world.open(params, [first])
    world.share(1, second, swaps)
    check(world.run())


@part(4)
@given(
    worlds,
    st.lists(
        st.tuples(session_params, st.lists(drafters, min_size=2, max_size=2)),
        min_size=1,
        max_size=3,
    ),
    st.floats(0.01, 1.0),
)
def test_output_is_the_targets_own_over_restarts(world, sessions, every):
    """Clients of a verifier that is killed again and again resume with the ids they have."""
    world.open_all(sessions)
    for number in range(1, 5):
        world.clock.at(number * every, world.restart)
    check(world.run())


# --- the simulation has faults, and answers to them

FAULTS_SEEN = {"lost", "magic", "checksum"}
ANSWERS_SEEN = {"waits", "syncs", "Draft of a drafter", "Nack of a drafter", "verifier nacks"}


@pytest.fixture(scope="module")
def troubled():
    """Worlds with every fault, in each of which a drafter dies and a hostile one is replaced."""
    found = []
    for seed in range(5):
        world = endless(seed=seed, faults=Faults(0.1, 0.1, 0.2, 0.1), round_trip=0.02)
        dying = Drafter(life=1.5)
        hostile = Drafter(hostile=True, life=1.0)
        world.open_all([(params_of(120), [first, Drafter()]) for first in (dying, hostile)])
        found.append(world.run())
        useless = endless(seed=seed)
        useless.open(params_of(120), [Drafter(accuracy=0.0)])
        found.append(useless.run())
    return found


def test_troubled_worlds_have_the_targets_text(troubled):
    for world in troubled:
        check(world)


def test_simulation_is_not_vacuous(troubled):
    seen = set().union(*(world.seen for world in troubled))
    assert seen >= FAULTS_SEEN | ANSWERS_SEEN


def test_drafts_are_accepted_in_troubled_worlds(troubled):
    accepted = 0
    for world in troubled:
        accepted += sum(served.accepted for served in world.sessions.values())
    assert accepted > 50


# --- the time

ROUND_TRIPS = pytest.mark.parametrize("round_trip", [0.0003, 0.02, 0.08])
ADAPTIVE_AND_FIXED = pytest.mark.parametrize("draft_n", [None, 4])


@ADAPTIVE_AND_FIXED
@ROUND_TRIPS
def test_right_drafter_makes_it_faster(draft_n, round_trip):
    """Over a clean link a drafter that is always right saves a third of the time and more."""
    world = endless(round_trip=round_trip)
    world.open(params_of(400, draft_n), [Drafter(accuracy=1.0)])
    check(world.run())
    assert world.clock.now < 400 * STEP * 2 / 3


TROUBLES = {
    "none": {},
    "drafts lost": {"lose_up": (DRAFT,)},
    "truths lost": {"lose_down": (TRUTH,)},
    "both lost": {"lose_up": (DRAFT,), "lose_down": (TRUTH,)},
    "everything": {"faults": Faults(drop=0.4, double=0.3, late=0.3, damage=0.2)},
}


@cache
def accepted_per_round(trouble, round_trip, accuracy, draft_n):
    """Return the accepted drafts of a round, a second after two seconds of trouble.

    A drafter that is always right has rounds that are all alike: one text is enough.
    """
    begin = 1.0 if trouble == "none" else 4.0
    seeds, max_tokens = ((3,), 700) if accuracy == 1.0 else ((3, 4, 5), 400)
    late = []
    for seed in seeds:
        world = endless(seed=seed, round_trip=round_trip, faulty=(1.0, 3.0), **TROUBLES[trouble])
        served = world.open(params_of(max_tokens, draft_n), [Drafter(accuracy=accuracy)])
        check(world.run())
        late += [accepted for time, _, accepted in served.rounds if time > begin]
    assert len(late) > 15
    return sum(late) / len(late)


@pytest.mark.parametrize(("accuracy", "draft_n"), [(0.8, None), (1.0, None), (1.0, 4)])
@pytest.mark.parametrize("round_trip", [0.0003, 0.08])
@pytest.mark.parametrize("trouble", ["drafts lost", "truths lost", "both lost", "everything"])
def test_acceptance_resumes_after_trouble(trouble, round_trip, accuracy, draft_n):
    """A second after two seconds of trouble drafts are accepted as if there had been none.

    Wrong drafts matter where the number of drafts follows what was accepted.
    """
    undisturbed = accepted_per_round("none", round_trip, accuracy, draft_n)
    after = accepted_per_round(trouble, round_trip, accuracy, draft_n)
    assert after > 0.7 * undisturbed > 0.2


@ADAPTIVE_AND_FIXED
@ROUND_TRIPS
@fault("E2.26")
def test_silence_costs_one_deadline(round_trip, draft_n):
    """A drafter that falls silent is waited for once, until the deadline.

    Copied drafts would make steps that are as long as a wait.
    """
    world = endless(round_trip=round_trip, lose_up=(DRAFT,), faulty=(1.0, float("inf")))
    params = replace(params_of(200, draft_n), draft_sources=(REMOTE,))
    served = world.open(params, [Drafter()])
    check(world.run())
    silent = [time for time, _, _ in served.rounds if time > 1.0 + round_trip]
    assert len(silent) > 30
    waits = [after - before - STEP for before, after in pairwise(silent)]
    longest_step = 0.001 + MAX_DRAFTS * world.row * STEP
    assert len([wait for wait in waits if wait > longest_step]) <= 1
    assert max(waits) < round_trip + 0.2


@ROUND_TRIPS
@pytest.mark.parametrize(
    "drafter",
    [
        pytest.param(Drafter(hostile=True, accuracy=0.0), id="hostile"),
        pytest.param(Drafter(silent=True, accuracy=0.0), id="silent"),
        pytest.param(Drafter(accuracy=0.0), id="wrong"),
    ],
)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@fault("E2.27")
def test_bad_drafter_costs_little(seed, drafter, round_trip):
    """The verifier loses 2 % at most if rows are nearly free."""
    world = endless(seed=seed, round_trip=round_trip, row=0.002)
    served = world.open(params_of(300), [drafter])
    check(world.run())
    assert served.steps <= 300
    assert world.clock.now < 300 * STEP / 0.98
    assert world.waited < 0.02 * world.clock.now


@fault("E2.28")
def test_nack_flood_is_answered_within_limits():
    """A peer that asks for the prefix again and again gets it at most once in 10 ms."""
    world = endless()
    served = world.open(params_of(50), [Drafter(silent=True)])
    for number in range(2000):
        world.clock.at(number * 0.0005, lambda: world.receive(1, m.Nack(1, 0, 7)))
    check(world.run())
    assert served.reason == "length"
    assert 10 < world.seen["syncs"] <= 102


# --- windows

LONG = PROMPT * 200
WINDOWS = pytest.mark.parametrize("window", [16, 64])


def windowed(window, round_trip, draft_n):
    """Return a world with a drafter that reads windows of a text of thousands, and its session."""
    world = endless(round_trip=round_trip)
    drafter = Drafter(window=window, n_ctx=window + slack(window))
    served = world.open(params_of(600, draft_n), [drafter], LONG)
    check(world.run())
    return world, served


@ADAPTIVE_AND_FIXED
@ROUND_TRIPS
@WINDOWS
def test_no_round_waits_for_a_window(window, round_trip, draft_n):
    _, served = windowed(window, round_trip, draft_n)
    counts = served.drafter.core.windows()
    assert counts.takeovers > 600 / window
    assert counts.held_up == 0


@ROUND_TRIPS
@WINDOWS
def test_windows_cost_little_time(window, round_trip):
    """The drafts are as good as of the whole text here: only the reading costs."""
    world, _ = windowed(window, round_trip, 4)
    assert world.clock.now < 1.06 * seconds_of_whole(round_trip)


@cache
def seconds_of_whole(round_trip):
    """Return the time of the same text with a drafter that reads all of it."""
    world = endless(round_trip=round_trip)
    world.open(params_of(600, 4), [Drafter()], LONG)
    return world.run().clock.now


@pytest.mark.parametrize("accuracy", [0.5, 0.9])
@pytest.mark.parametrize("window", [16, 64])
def test_a_recurrent_drafter_that_comes_late_reads_one_window(window, accuracy):
    """It goes on from there through a text of thousands, and reads nothing again."""
    world = endless(round_trip=0.02)
    drafter = Drafter(window=window, n_ctx=window, endless=True, accuracy=accuracy)
    served = world.open(params_of(700, 4), [drafter], LONG)
    check(world.run())
    assert served.accepted > 140
    assert served.drafter.core.began == [len(LONG) - window]


# --- many events


def any_drafter(rng):
    options = {name: rng.choice(values) for name, values in OF_DRAFTERS.items()}
    return Drafter(**options)


def any_world(seed):
    """Return a world with loss, delay, duplication, damage, lying drafters and restarts."""
    rng = random.Random(seed)
    faults = Faults(*(rng.choice([0.0, 0.05, 0.3]) for _ in range(4)))
    round_trip = rng.choice([0.0003, 0.02, 0.1])
    world = endless(seed=seed, faults=faults, round_trip=round_trip, n_batch=rng.choice([9, 24]))
    for number in range(1, 1 + rng.randint(1, 4)):
        sampling = rng.choice([GREEDY, SamplingParams(temperature=1.0, seed=seed)])
        max_tokens = rng.choice([30, 200, 400])
        params = params_of(max_tokens, rng.choice([None, None, 0, 4, 30]), sampling)
        attached = [any_drafter(rng) for _ in range(12)]
        world.open(params, attached, (*PROMPT, number))
    for number in range(1, 1 + rng.randint(0, 4)):
        world.clock.at(rng.uniform(0.1, 3.0) * number, world.restart)
    return world


def test_a_window_that_moves_while_a_piece_of_it_is_read():
    """World 37: the text is corrected before the window's begin while its first piece is read."""
    check(any_world(37).run(limit=1_000_000))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@fault("E2.28")
def test_a_million_events():
    events = 0
    seen = Counter()
    for seed in count():
        world = any_world(seed)
        check(world.run(limit=1_000_000))
        events += world.clock.events
        seen += world.seen
        if events >= 1_000_000:
            break
    print(f"{events} events, {seed + 1} worlds: {dict(seen)}")  # noqa: T201 - a record
