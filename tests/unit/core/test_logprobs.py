"""Log-probabilities of what was said."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from specmesh.core import events as ev
from specmesh.core.draft_length.acceptance import RollingAcceptance
from specmesh.core.draft_length.arrival_estimates import Arrivals
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.prefix import Prefix
from specmesh.core.sampling.logprobs import LEAST, MOST, Logprob, Logprobs, check_logprobs, logprobs_of
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session import VerifierSession
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.errors import RequestError

PROFILE = settings(derandomize=True, deadline=None, max_examples=100)
ROWS = arrays(np.float32, st.integers(1, 300), elements=st.floats(-50, 50, width=32))
N_VOCAB, END, PROMPT = 12, 0, (3, 1, 4)


@PROFILE
@given(ROWS, st.integers(0, MOST), st.data())
def test_they_are_those_of_the_softmax(row, top, data):
    """As by the definition, in double precision; the likeliest first, of equals the lower id."""
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
    """What an engine should not say gives finite numbers, of which JSON has a word for each."""
    told = logprobs_of(np.array(row, np.float32), 0, 3)
    assert np.isfinite((told.chosen, *told.top)).all()
    assert len(told.ids) == len(told.top) == 3
    assert min(told.chosen, *told.top) >= LEAST


def test_what_is_certain_is_zero():
    """And not minus zero, which looks odd."""
    assert str(logprobs_of(np.array([90, 0], np.float32), 0, 0).chosen) == "0.0"


def test_how_many_there_may_be():
    """Up to 20."""
    assert [check_logprobs(top) for top in (0, MOST)] == [0, MOST]
    for top in (-1, MOST + 1):
        with pytest.raises(RequestError, match="logprobs"):
            check_logprobs(top)


def test_positions_before_the_first_have_none():
    """Ids that a text was gone on from."""
    found = Logprobs(1, 5)
    found.take(np.zeros((3, 2), np.float32), (0, 1))
    half = Logprob(-0.693147, (0,), (-0.693147,))
    assert found.between(3, 7) == (None, None, half, half)
    assert found.between(6, 7) == (half,)
    assert found.between(3, 5) == (None, None)


def test_nothing_is_kept_unless_asked_for():
    """Rows are not even looked at."""
    found = Logprobs(None, 5)
    found.take(None, (0, 1))
    assert (bool(found), found.between(3, 7)) == (False, ())


def target(crc):
    """The target's row after a prefix: its own, reproducible."""
    return np.random.default_rng(crc).normal(size=N_VOCAB).astype(np.float32) * 2


def said(params, luck=None, ids=PROMPT):
    """Ids and log-probabilities of a session, drafted for where there is luck."""
    limits = TargetLimits(512, N_VOCAB, frozenset({END}), pieces=[bytes([97 + n]) for n in range(N_VOCAB)])
    made = VerifierSession(ids, params, limits, StepCosts(), RollingAcceptance(), 0.0, len(PROMPT))
    if luck is not None:
        made.attach(Arrivals())
    told, found, drafted = [], [], 0
    while made.finished is None:
        known, drafts = Prefix(made.prefix[0:]), []
        for _ in range(4 if luck is not None else 0):
            right = made.sampler.after((*made.prefix[0:], *drafts)).choose(target(known.crc), len(known))
            drafts.append(right if luck.random() < 0.8 else luck.randrange(1, N_VOCAB))
            known.extend(drafts[-1:])
        made.handle(ev.Drafted(len(made.prefix), made.prefix.crc, tuple(drafts)), 0.0)
        plan = made.plan(1e9)
        if isinstance(plan, ev.Prefill):
            made.handle(ev.Prefilled(len(plan.ids)), 0.0)
            continue
        made.begin(0.0)
        known, rows = Prefix(made.prefix[0:-1]), []
        for token in (plan.last, *plan.drafts):
            known.extend([token])
            rows.append(target(known.crc))
        for effect in made.handle(ev.Stepped(plan.drafts, np.stack(rows), 0.01), 0.0):
            if isinstance(effect, ev.Emit):
                assert len(effect.logprobs) == len(effect.ids)
                told.extend(effect.ids)
                found.extend(effect.logprobs)
                drafted += effect.accepted
    return told, found, drafted


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


def test_a_text_that_is_gone_on_with_has_those_of_what_follows():
    """The same as they would have been."""
    params = SessionParams(SamplingParams(0.9, seed=2), 40, None, (), 3)
    alone, found, _ = said(params)
    assert said(params, random.Random(1), (*PROMPT, *alone[:7]))[:2] == (alone[7:], found[7:])
