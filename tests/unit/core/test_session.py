"""A session at the verifier: its steps by state, and texts that are resumed."""

import random
from copy import deepcopy
from functools import partial

import numpy as np
import pytest
from harness.sessions import generate, ids_of, mostly_right
from harness.sessions import session as session_of
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
PIECES = tuple(
    b"" if token == END else b"%c%c" % (97 + token % 4, 97 + token // 4) for token in range(N_VOCAB)
)
GREEDY = SamplingParams()
PARAMS = SessionParams(GREEDY, 9)
TARGET = partial(row, end_bias=-3.0)


def session(ids=PROMPT, params=PARAMS, n_ctx=512, width=None):
    limits = TargetLimits(
        n_ctx, N_VOCAB, frozenset({END}), max_drafts=3, pieces=PIECES, width=width
    )
    return session_of(ids, params, limits, n_prompt=len(PROMPT))


def drafts(seed):
    return mostly_right(TARGET, random.Random(seed))


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
    made.stepped(ev.Verify(4, 5, ()), logits, 1.0, seconds=0.1)


UNLISTED = pytest.mark.parametrize(
    ("state", "step", "refusal"),
    [
        (SessionState.GENERATING, prefill, "Prefill while generating"),
        (SessionState.ENDED, prefill, "Prefill while ended"),
        (SessionState.PREFILLING, verify, "Verify while prefilling"),
        (SessionState.ENDED, verify, "Verify while ended"),
    ],
)


@pytest.mark.parametrize("state", SessionState)
def test_a_session_reaches_each_state(state):
    assert in_state(state).state is state


@UNLISTED
def test_a_step_that_a_state_lacks_is_refused(state, step, refusal):
    with pytest.raises(LocalProtocolError, match=refusal):
        step(in_state(state))


@UNLISTED
def test_a_refused_step_changes_nothing(state, step, refusal):
    made = in_state(state)
    before = deepcopy((made.prefix.ids, made.counts, made.finished, made.slot.length))
    with pytest.raises(LocalProtocolError):
        step(made)
    assert (made.prefix.ids, made.counts, made.finished, made.slot.length) == before


@pytest.mark.parametrize("frame", [m.Draft(1, 0, 0, (1,)), m.Nack(1, 0, 0)])
def test_an_ended_session_answers_no_frame(frame):
    assert in_state(SessionState.ENDED).take(frame, 1.0) == []


def test_a_session_ends_once():
    assert in_state(SessionState.ENDED).cancel(m.FinishReason.CANCELLED) == []


# --- texts that are resumed

params = st.builds(
    SessionParams,
    st.builds(SamplingParams, temperature=st.sampled_from([0.0, 0.8]), seed=st.integers(0, 99)),
    st.integers(1, 40),
    draft_n=st.sampled_from([None, 0, 3]),
    stop=st.sampled_from([(), ("ab",), ("bc", "da"), ("cabd",), ("aaa", "bbb")]),
)
anywhere = given(
    params=params,
    n_ctx=st.sampled_from([24, 512]),
    seed=st.integers(0, 99),
    share=st.floats(0, 1),
)


def resumed(params, n_ctx, seed, share):
    """A whole text's session, one that resumes it after a share of its ids, and its rounds."""
    whole = session(PROMPT, params, n_ctx)
    generate(whole, TARGET, drafts(seed))
    ids = tuple(whole.prefix[len(PROMPT) :])
    begun = ids[: round(share * len(ids))]
    again = session((*PROMPT, *begun), params, n_ctx)
    return whole, again, generate(again, TARGET, drafts(seed + 1))


@anywhere
@pytest.mark.fault("E3.34")
def test_a_resumed_text_is_the_same_text(params, n_ctx, seed, share):
    whole, again, _ = resumed(params, n_ctx, seed, share)
    assert again.text_ids() == whole.text_ids()


@anywhere
def test_a_resumed_text_ends_for_the_same_reason(params, n_ctx, seed, share):
    whole, again, _ = resumed(params, n_ctx, seed, share)
    assert again.finished == whole.finished


@anywhere
def test_a_client_gets_the_rest_of_a_resumed_text(params, n_ctx, seed, share):
    whole, again, rounds = resumed(params, n_ctx, seed, share)
    assert ids_of(rounds) == whole.text_ids(again.resumed)


@pytest.mark.parametrize("count", [0, 1, 5, 9])
def test_a_resumed_text_is_not_its_prompt(count):
    made = session((*PROMPT, *range(1, 1 + count)), SessionParams(GREEDY, 50))
    assert (made.n_prompt, made.resumed) == (len(PROMPT), count)


def test_a_resumed_text_with_ids_after_its_end_has_ended():
    assert session((*PROMPT, 3, END, 4)).finished == m.FinishReason.STOP


# --- the parts in which a prompt and a resumed text are read


def parts(count, width):
    """The size of each part, and whether it is read like a step, with `count` ids of a text."""
    made = session((*PROMPT, *range(1, 1 + count)), SessionParams(GREEDY, 50), width=width)
    found = []
    while isinstance(plan := made.plan(0.0), ev.Prefill):
        found.append((len(plan.ids), plan.stepwise))
        made.prefilled(len(plan.ids))
    return found


@pytest.mark.parametrize("count", [0, 1, 4, 9])
def test_all_is_read_at_once(count):
    assert parts(count, None) == [(len(PROMPT) + count - 1, False)]


@pytest.mark.parametrize(("count", "steps"), [(0, []), (1, [1]), (4, [4]), (9, [4, 4, 1])], ids=str)
def test_with_a_constant_width_each_part_is_read_as_the_first_time(count, steps):
    assert parts(count, 4) == [(len(PROMPT) - 1, False), *[(ids, True) for ids in steps]]


@pytest.mark.parametrize("width", [None, 4])
def test_each_part_has_the_ids_of_its_place(width):
    ids = (*PROMPT, *range(1, 10))
    made = session(ids, SessionParams(GREEDY, 50), width=width)
    while isinstance(plan := made.plan(0.0), ev.Prefill):
        assert plan.ids == ids[plan.position : plan.position + len(plan.ids)]
        made.prefilled(len(plan.ids))
