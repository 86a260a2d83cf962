"""Log-probabilities: those of the target's softmax, whatever was drafted."""

import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from harness.sessions import generate, ids_of, mostly_right, session
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fuzz.oracle import row
from specmesh.core.prefix import Prefix
from specmesh.core.sampling.logprobs import LEAST, MAX_ALTERNATIVES, logprobs_of
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams, TargetLimits

# --- of a row

rows = arrays(np.float32, st.integers(1, 300), elements=st.floats(-50, 50, width=32))
tokens = st.integers(0, 2**31)
tops = st.integers(0, MAX_ALTERNATIVES)
NO_NUMBERS = pytest.mark.parametrize(
    "logits",
    [[np.nan, 1.0, 2.0], [-np.inf, -np.inf, -np.inf], [np.inf, 0.0, 0.0], [-3e38, 0.0, 3e38]],
)


def softmax(logits):
    logits = logits.astype(np.float64)
    return logits - np.logaddexp.reduce(logits)


@given(rows, tokens, tops)
def test_the_chosen_one_is_of_the_softmax(logits, token, top):
    token %= len(logits)
    expected = max(softmax(logits)[token], LEAST)
    assert logprobs_of(logits, token, top).chosen == pytest.approx(expected, abs=1e-6)


@given(rows, tops)
def test_the_likeliest_come_first(logits, top):
    likeliest = np.argsort(-logits, kind="stable")[:top]
    assert logprobs_of(logits, 0, top).ids == tuple(likeliest)


@given(rows, tops)
def test_the_likeliest_are_of_the_softmax(logits, top):
    found = logprobs_of(logits, 0, top)
    assert found.top == pytest.approx(softmax(logits)[list(found.ids)], abs=1e-6)


@NO_NUMBERS
def test_logits_that_are_no_numbers_have_numbers(logits):
    found = logprobs_of(np.array(logits, np.float32), 0, 3)
    assert np.isfinite((found.chosen, *found.top)).all()


@NO_NUMBERS
def test_no_number_is_less_than_the_least(logits):
    found = logprobs_of(np.array(logits, np.float32), 0, 3)
    assert min(found.chosen, *found.top) >= LEAST


@NO_NUMBERS
def test_logits_that_are_no_numbers_have_alternatives(logits):
    found = logprobs_of(np.array(logits, np.float32), 0, 3)
    assert len(found.ids) == len(found.top) == 3


# --- of a session

N_VOCAB = 16
END = 0
PROMPT = (3, 1, 4, 1, 5)
PIECES = tuple(
    b"" if token == END else b"%c%c" % (97 + token % 4, 97 + token // 4) for token in range(N_VOCAB)
)
TARGET = partial(row, end_bias=-3.0)
GREEDY = SamplingParams()
SAMPLED = SamplingParams(
    temperature=0.9, top_k=3, top_p=0.9, seed=7, logit_bias=((2, -3.0), (END, 2.5))
)
SAMPLINGS = pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
STOPS = pytest.mark.parametrize("stop", [(), ("ab",)], ids=["to its end", "to a stop string"])


def rounds_of(params, prompt=PROMPT, width=None, scores=None, *, drafted=True):
    limits = TargetLimits(512, N_VOCAB, frozenset({END}), max_drafts=3, pieces=PIECES, width=width)
    made = session(prompt, params, limits, n_prompt=len(prompt), attached=drafted)
    drafts = mostly_right(TARGET, random.Random(3)) if drafted else None
    return generate(made, TARGET, drafts, scores)


def of_rounds(rounds):
    return [logprob for done in rounds for logprob in done.text.logprobs]


def expected(prompt, ids):
    """Those of the rows that chose these ids."""
    prefix = Prefix(prompt)
    found = []
    for token in ids:
        found.append(logprobs_of(TARGET(prefix.crc), token, 2))
        prefix.extend([token])
    return found


@SAMPLINGS
@STOPS
def test_each_token_has_the_row_that_chose_it(sampling, stop):
    """As the model gave it, whatever sampling makes of it."""
    rounds = rounds_of(
        SessionParams(sampling, 60, draft_n=None, stop=stop, logprobs=2), drafted=False
    )
    assert of_rounds(rounds) == expected(PROMPT, ids_of(rounds))


@SAMPLINGS
@STOPS
def test_drafts_change_nothing_about_them(sampling, stop):
    params = SessionParams(sampling, 60, draft_n=None, stop=stop, logprobs=2)
    rounds = rounds_of(params)
    assert of_rounds(rounds) == of_rounds(rounds_of(params, drafted=False))


@SAMPLINGS
@STOPS
def test_some_of_these_drafts_are_accepted(sampling, stop):
    rounds = rounds_of(SessionParams(sampling, 60, draft_n=None, stop=stop, logprobs=2))
    assert any(done.accepted for done in rounds)


# --- of an echoed prompt

WIDTHS = pytest.mark.parametrize("width", [None, 4], ids=["any width", "constant width"])
COUNTS = pytest.mark.parametrize("count", [0, 1, 60])
LENGTHS = pytest.mark.parametrize("length", [1, 2, 4, 70])


def echoed(length, count, width, *, echo=True):
    """The prompt, the log-probabilities of its ids, and the rounds."""
    prompt = [1 + at % (N_VOCAB - 1) for at in range(length)]
    params = SessionParams(GREEDY, count, draft_n=None, stop=(), logprobs=2)
    scores = []
    rounds = rounds_of(replace(params, echo=echo), prompt, width, scores)
    return prompt, scores, rounds


@WIDTHS
@COUNTS
@LENGTHS
def test_each_id_of_a_prompt_but_the_first_has_the_row_before_it(length, count, width):
    prompt, scores, _ = echoed(length, count, width)
    assert scores == expected(prompt[:1], prompt[1:])


@WIDTHS
@COUNTS
@LENGTHS
def test_a_prompt_that_is_not_echoed_has_none(length, count, width):
    _, scores, _ = echoed(length, count, width, echo=False)
    assert scores == []


@WIDTHS
@COUNTS
@LENGTHS
def test_an_echo_does_not_change_the_text(length, count, width):
    """Its end id is shown, too."""
    text = ids_of(echoed(length, count, width, echo=False)[2])
    end = (END,) if len(text) < count else ()
    assert ids_of(echoed(length, count, width)[2]) == (*text, *end)


@WIDTHS
@COUNTS
@LENGTHS
def test_each_id_after_an_echoed_prompt_has_its_own(length, count, width):
    prompt, _, rounds = echoed(length, count, width)
    assert of_rounds(rounds) == expected(prompt, ids_of(rounds))
