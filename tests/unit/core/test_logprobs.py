"""Log-probabilities of what was said."""

import random
from dataclasses import replace

import numpy as np
import pytest
from harness.sessions import generate, ids_of, mostly_right, session
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from specmesh.core.prefix import Prefix
from specmesh.core.sampling.logprobs import LEAST, MAX_ALTERNATIVES, Logprob, logprobs_of
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams, TargetLimits

ROWS = arrays(np.float32, st.integers(1, 300), elements=st.floats(-50, 50, width=32))
N_VOCAB, END, PROMPT = 12, 0, (3, 1, 4)


@given(ROWS, st.integers(0, MAX_ALTERNATIVES), st.data())
def test_they_are_those_of_the_softmax(row, top, data):
    token = data.draw(st.integers(0, len(row) - 1))
    exact = row.astype(np.float64) - np.logaddexp.reduce(row.astype(np.float64))
    told = logprobs_of(row, token, top)
    assert told.chosen == pytest.approx(max(exact[token], LEAST), abs=1e-6)
    assert told.ids == tuple(np.argsort(-row, kind="stable")[:top])
    assert told.top == pytest.approx(exact[list(told.ids)], abs=1e-6)


@pytest.mark.parametrize(
    "row", [[np.nan, 1.0, 2.0], [-np.inf, -np.inf, -np.inf], [np.inf, 0.0, 0.0], [-3e38, 0.0, 3e38]]
)
def test_rows_that_are_none(row):
    told = logprobs_of(np.array(row, np.float32), 0, 3)
    assert np.isfinite((told.chosen, *told.top)).all()
    assert len(told.ids) == len(told.top) == 3
    assert min(told.chosen, *told.top) >= LEAST


def target(crc):
    return np.random.default_rng(crc).normal(size=N_VOCAB).astype(np.float32) * 2


def said(params, luck=None, ids=PROMPT):
    """Ids and log-probabilities of a session, drafted for where there is luck."""
    limits = TargetLimits(512, N_VOCAB, frozenset({END}), pieces=[bytes([97 + n]) for n in range(N_VOCAB)])
    drafts = None if luck is None else mostly_right(target, luck, n_vocab=N_VOCAB)
    rounds = generate(session(ids, params, limits, n_prompt=len(PROMPT), attached=luck is not None), target, drafts)
    assert all(len(one.logprobs) == len(one.ids) for one in rounds)
    found = [one for round_ in rounds for one in round_.logprobs]
    return list(ids_of(rounds)), found, sum(one.accepted for one in rounds)


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(0.9, 3, 0.9, 5, logit_bias=((2, -3.0),))])
@pytest.mark.parametrize("stop", [(), ("dc",)])
def test_drafts_change_nothing_about_them(sampling, stop):
    """Accepted drafts, corrections and bonus tokens, up to an end id or a stop string: each has the row that chose it,
    as the model gave it, whatever sampling makes of it."""
    params = SessionParams(sampling, 60, None, stop, 2)
    alone, found, _ = said(params)
    known = Prefix(PROMPT)
    for token, one in zip(alone, found, strict=True):
        assert one == logprobs_of(target(known.crc), token, 2)
        known.extend([token])
    drafted, with_drafts, accepted = said(params, random.Random(3))
    assert (drafted, with_drafts) == (alone, found)
    assert accepted > 0 or len(alone) < 3


@pytest.mark.parametrize("width", [None, 3], ids=["any width", "constant width"])
@pytest.mark.parametrize("count", [0, 1, 60])
@pytest.mark.parametrize("length", [1, 2, 3, 70])
def test_an_echoed_prompt(length: int, count: int, width: int | None):
    """Each id but the first has the row before it, whatever parts the prompt comes in; the text is the same as ever,
    and its end id is told, too."""
    prompt = [1 + at % (N_VOCAB - 1) for at in range(length)]
    limits = TargetLimits(512, N_VOCAB, frozenset({END}), 2 if width else 8, [b"a"] * N_VOCAB, width)
    params = SessionParams(SamplingParams(), count, None, (), 2)
    rounds, scores = {}, list[Logprob | None]()
    for echo in (False, True):
        made = session(prompt, replace(params, echo=echo), limits)
        rounds[echo] = generate(made, target, mostly_right(target, random.Random(3), n_vocab=N_VOCAB), scores)
    crcs = [Prefix(prompt[:at]).crc for at in range(1, length)]
    assert scores == [logprobs_of(target(crc), token, 2) for crc, token in zip(crcs, prompt[1:], strict=True)]
    said, alone = ids_of(rounds[True]), ids_of(rounds[False])
    assert said in (alone, (*alone, END))
    assert (len(said) > len(alone)) == (len(alone) < count)
    assert [one.ids[0] for round_ in rounds[True] for one in round_.logprobs if one] == list(said)
