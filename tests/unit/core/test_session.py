"""A session at the verifier: its steps by state, and texts that are resumed."""

import random
import tracemalloc
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
from harness.sessions import generate, ids_of, mostly_right
from harness.sessions import session as session_of
from harness.table_source import table_source
from harness.tables import cases
from hypothesis import given
from hypothesis import strategies as st

from fuzz.oracle import row
from specmesh.core import events as ev
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.core.verifier.session import SessionState
from specmesh.errors import LocalProtocolError
from specmesh.wire import messages as m

N_VOCAB = 16
END = 0
PROMPT = (3, 1, 4, 1, 5)
PIECES = [*map(bytes, product(b"abcd", repeat=2))]
PIECES[END] = b""
GREEDY = SamplingParams()
PARAMS = SessionParams(GREEDY, 9)
TARGET = partial(row, end_bias=-3.0)


def session(ids=PROMPT, params=PARAMS, n_ctx=512, width=None):
    limits = TargetLimits(
        n_ctx, N_VOCAB, frozenset({END}), max_drafts=3, pieces=tuple(PIECES), width=width
    )
    return session_of(ids, params, limits, n_prompt=len(PROMPT))


def drafts(seed):
    return mostly_right(TARGET, random.Random(seed))


# --- drafts of another source


def beside_a_table(ids, draft_n=None):
    """Return a session that generates, with a source that proposes these ids."""
    with table_source(lambda _: ids):
        made = session(params=replace(PARAMS, draft_n=draft_n))
    made.prefilled(len(PROMPT) - 1)
    return made


@pytest.mark.parametrize("draft_n", [0, 1, 2, 3])
def test_a_step_has_no_more_drafts_than_the_client_allows(draft_n):
    made = beside_a_table((7, 8, 9), draft_n)
    assert made.verify().drafts == (7, 8, 9)[:draft_n]


def test_drafts_in_hand_beyond_those_that_the_client_allows():
    made = beside_a_table((), 2)
    made.take(m.Draft(1, len(PROMPT), made.prefix.crc, (7, 8, 9)), 0.0)
    assert made.verify().drafts == (7, 8)


def test_drafts_that_may_be_wrong_end_no_wait_for_better_ones():
    made = beside_a_table((7,), 3)
    made.take(m.Draft(1, len(PROMPT), made.prefix.crc, (8,)), 0.0)
    assert isinstance(made.plan(0.0), ev.Wait)


@pytest.mark.parametrize(("lone", "drafts"), [(False, 3), (True, 4)])
def test_a_lone_session_repeats_more_of_its_text(lone, drafts):
    """Four drafts come before a step was timed."""
    limits = TargetLimits(512, N_VOCAB, frozenset({END}), max_drafts=3, max_copied=6)
    prompt = PROMPT * 6
    made = session_of(prompt, PARAMS, limits)
    made.prefilled(len(prompt) - 1)
    assert len(made.plan(0.0, lone=lone).drafts) == drafts


# --- steps by state


def in_state(state):
    made = session()
    if state is not SessionState.PREFILLING:
        made.prefilled(len(PROMPT) - 1)
    if state is SessionState.ENDED:
        made.cancel(m.FinishReason.CANCELLED)
    return made


def prefill(made):
    made.prefilled(1)


def verify(made):
    logits = np.eye(N_VOCAB, dtype=np.float32)[[4]]
    step = ev.Verify(4, 5, ())
    made.stepped(step, logits, 1.0, seconds=0.1)


STEPS = {"Prefill": prefill, "Verify": verify}


@cases(
    "state, step",
    """
    ["generating", "Prefill"]
    ["ended", "Prefill"]
    ["prefilling", "Verify"]
    ["ended", "Verify"]
    """,
)
def test_a_step_that_a_state_lacks_is_refused_and_changes_nothing(state, step):
    made = in_state(SessionState(state))
    before = deepcopy(held(made))
    with pytest.raises(LocalProtocolError, match=f"{step} while {state}"):
        STEPS[step](made)
    assert held(made) == before


def held(made):
    return made.prefix.ids, made.counts, made.finished, made.slot.length


@pytest.mark.parametrize("frame", [m.Draft(1, 0, 0, (1,)), m.Nack(1, 0, 0)])
def test_an_ended_session_answers_no_frame_and_ends_once(frame):
    ended = in_state(SessionState.ENDED)
    assert ended.take(frame, 1.0) == ended.cancel(m.FinishReason.CANCELLED) == []


# --- texts that are resumed

seeds = st.integers(0, 99)
temperatures = st.sampled_from([0.0, 0.8])
samplings = st.builds(SamplingParams, temperature=temperatures, seed=seeds)
draft_lengths = st.sampled_from([None, 0, 3])
stops = st.sampled_from([(), ("ab",), ("bc", "da"), ("cabd",), ("aaa", "bbb")])
params = st.builds(SessionParams, samplings, st.integers(1, 40), draft_n=draft_lengths, stop=stops)
contexts = st.sampled_from([24, 512])


@given(params=params, n_ctx=contexts, seed=seeds, share=st.floats(0, 1))
@pytest.mark.fault("E3.34")
def test_a_resumed_text_is_the_same_text(params, n_ctx, seed, share):
    """It ends for the same reason, and its client gets the rest."""
    whole = session(PROMPT, params, n_ctx)
    generate(whole, TARGET, drafts(seed))
    ids = tuple(whole.prefix[len(PROMPT) :])
    begun = ids[: round(share * len(ids))]
    again = session((*PROMPT, *begun), params, n_ctx)
    rounds = generate(again, TARGET, drafts(seed + 1))
    assert (again.text_ids(), again.finished) == (whole.text_ids(), whole.finished)
    assert ids_of(rounds) == whole.text_ids(again.resumed)


def with_text(count, width=None):
    """Return a session that resumes a text of so many ids, from 1 on."""
    ids = (*PROMPT, *range(1, 1 + count))
    return session(ids, SessionParams(GREEDY, 50), width=width)


def test_a_resumed_text_with_ids_after_its_end_has_ended():
    made = session((*PROMPT, 3, END, 4))
    assert made.finished == m.FinishReason.STOP


# --- the parts in which a prompt and a resumed text are read


def parts(made):
    """Yield each part as it is planned, and read it."""
    while isinstance(plan := made.plan(0.0), ev.Prefill):
        yield plan
        made.prefilled(len(plan.ids))


@pytest.mark.parametrize("count", [0, 1, 4, 9])
def test_all_is_read_at_once(count):
    made = with_text(count)
    assert (made.n_prompt, made.resumed) == (len(PROMPT), count)
    [part] = parts(made)
    assert len(part.ids) == len(PROMPT) + count - 1
    assert not part.stepwise


@cases("count, sizes", "[0, []] [1, [1]] [4, [4]] [9, [4, 4, 1]]")
def test_with_a_constant_width_each_part_is_read_as_the_first_time(count, sizes):
    """The prompt at once, and the text like steps."""
    prompt, *steps = parts(with_text(count, width=4))
    assert len(prompt.ids) == len(PROMPT) - 1
    assert not prompt.stepwise
    assert [len(step.ids) for step in steps] == sizes
    assert all(step.stepwise for step in steps)


@pytest.mark.parametrize("width", [None, 4])
def test_each_part_has_the_ids_of_its_place(width):
    made = with_text(9, width)
    for part in parts(made):
        end = part.position + len(part.ids)
        assert list(part.ids) == list(made.prefix[part.position : end])


# --- the cost of a long text

LONG = 100_000


def peak(call):
    """Return the most bytes that a call takes, with its result."""
    tracemalloc.start()
    result = call()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert result is not None
    return most


def test_a_step_of_a_long_prompt_copies_plain_memory():
    """It comes between the steps of other sessions."""
    limits = TargetLimits(2 * LONG, 2 * LONG, frozenset({END}), max_drafts=3)
    made = session_of(range(300, 300 + LONG), PARAMS, limits)
    assert peak(lambda: made.plan(0.0)) < 5 * LONG


def test_the_end_of_a_long_text_copies_plain_memory():
    limits = TargetLimits(2 * LONG, 2 * LONG, frozenset({END}), max_drafts=3)
    made = session_of(range(300, 300 + LONG), PARAMS, limits)
    made.slot.length = LONG
    assert peak(lambda: made.memory) < 5 * LONG
