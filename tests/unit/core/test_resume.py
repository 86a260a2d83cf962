"""A text that is gone on with, after any of its ids, is the text that it would have been."""

import random
from functools import partial

import pytest
from harness.sessions import generate, ids_of, mostly_right
from harness.sessions import session as session_of
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.oracle import row
from specmesh.core import events as ev
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams, TargetLimits

FEW = settings(max_examples=settings().max_examples // 10)
N_VOCAB, END = 16, 0
PIECES = tuple(b"" if token == END else b"%c%c" % (97 + token % 4, 97 + token // 4) for token in range(N_VOCAB))
PROMPT = (3, 1, 4, 1, 5)
GREEDY = SamplingParams()
TARGET = partial(row, end_bias=-3.0)


def session(ids, params, n_ctx=512, width=None):
    limits = TargetLimits(n_ctx, N_VOCAB, frozenset({END}), 3, PIECES, width)
    return session_of(ids, params, limits, n_prompt=len(PROMPT))


def finish(made, seed):
    return ids_of(generate(made, TARGET, mostly_right(TARGET, random.Random(seed))))


params = st.builds(
    SessionParams,
    st.builds(SamplingParams, st.sampled_from([0.0, 0.8]), st.just(0), st.just(1.0), st.integers(0, 99)),
    st.integers(1, 40),
    st.sampled_from([None, 0, 3]),
    st.sampled_from([(), ("ab",), ("bc", "da"), ("cabd",), ("aaa", "bbb")]),
)


@FEW
@given(params=params, n_ctx=st.sampled_from([24, 512]), seed=st.integers(0, 99))
@pytest.mark.fault("E3.34")
def test_resumed_anywhere_it_is_the_same_text(params, n_ctx, seed):
    whole = session(PROMPT, params, n_ctx)
    told = finish(whole, seed)
    ids = tuple(whole.prefix[len(PROMPT) :])
    for at in range(len(ids) + 1):
        again = session((*PROMPT, *ids[:at]), params, n_ctx)
        rest = finish(again, seed + at)
        assert (again.said(), again.finished) == (told, whole.finished)
        assert rest == told[at:]
        assert (again.n_prompt, again.resumed) == (len(PROMPT), at)
        assert again.said(at) == rest


@pytest.mark.parametrize("said", [0, 1, 4, 9])
def test_with_a_constant_width_each_part_is_read_as_it_was_first(said):
    ids, params = (*PROMPT, *range(1, 1 + said)), SessionParams(GREEDY, 50)

    def read(width):
        made, parts = session(ids, params, width=width), []
        while isinstance(plan := made.plan(0.0), ev.Prefill):
            assert ids[plan.position : plan.position + len(plan.ids)] == plan.ids
            parts.append((len(plan.ids), plan.stepwise))
            made.prefilled(len(plan.ids))
        return parts

    assert read(None) == [(len(ids) - 1, False)]
    whole, rest = divmod(said, 4)
    assert read(4) == [(len(PROMPT) - 1, False), *[(4, True)] * whole, *[(rest, True)] * bool(rest)]
