"""Log-probabilities: those of the target's softmax, whatever was drafted."""

import random
from functools import partial
from itertools import product

import numpy as np
import pytest
from harness.sessions import generate, ids_of, mostly_right, session
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fuzz.oracle import row
from specmesh.core.kv_slots import KVSlot
from specmesh.core.prefix import Prefix
from specmesh.core.sampling.logprobs import LEAST, MAX_ALTERNATIVES, logprobs_of
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams, TargetLimits

# --- of a row

rows = arrays(np.float32, st.integers(1, 300), elements=st.floats(-50, 50, width=32))
tokens = st.integers(0, 2**31)
tops = st.integers(0, MAX_ALTERNATIVES)


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
    found = logprobs_of(logits, 0, top)
    assert found.ids == tuple(likeliest)
    assert found.top == pytest.approx(softmax(logits)[likeliest], abs=1e-6)


@pytest.mark.parametrize(
    "logits",
    [[np.nan, 1.0, 2.0], [-np.inf, -np.inf, -np.inf], [np.inf, 0.0, 0.0], [-3e38, 0.0, 3e38]],
)
def test_logits_that_are_no_numbers_have_numbers(logits):
    found = logprobs_of(np.array(logits, np.float32), 0, 3)
    assert len(found.ids) == len(found.top) == 3
    for number in (found.chosen, *found.top):
        assert LEAST <= number <= 0


# --- of a session

N_VOCAB = 16
END = 0
PROMPT = (3, 1, 4, 1, 5)
PIECES = (b"", b"ba", b"ca", b"da", *map(bytes, product(b"bcd", b"abcd")))
TARGET = partial(row, end_bias=-3.0)
GREEDY = SamplingParams()
SAMPLED = SamplingParams(
    temperature=0.9, top_k=3, top_p=0.9, seed=7, logit_bias=((2, -3.0), (END, 2.5))
)
PARAMS = []
for sampling, stop in product((GREEDY, SAMPLED), ((), ("ab",))):
    PARAMS.append(SessionParams(sampling, 60, stop=stop, logprobs=2))


def rounds_of(params, prompt=PROMPT, width=None, scores=None, *, drafted=True, back_after=None):
    limits = TargetLimits(512, N_VOCAB, frozenset({END}), max_drafts=3, pieces=PIECES, width=width)
    made = session(prompt, params, limits, n_prompt=len(prompt), attached=drafted)
    drafts = mostly_right(TARGET, random.Random(3)) if drafted else None
    return generate(made, TARGET, drafts, scores, back_after)


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


@pytest.mark.parametrize("params", PARAMS)
def test_each_token_has_the_row_that_chose_it(params):
    """As the model gave it, whatever sampling makes of it."""
    rounds = rounds_of(params, drafted=False)
    assert of_rounds(rounds) == expected(PROMPT, ids_of(rounds))


@pytest.mark.parametrize("params", PARAMS)
def test_drafts_change_nothing_about_them(params):
    rounds = rounds_of(params)
    assert any(done.accepted for done in rounds)
    assert of_rounds(rounds) == of_rounds(rounds_of(params, drafted=False))


# --- of an echoed prompt

ECHOES = pytest.mark.parametrize(
    ("length", "count", "width"), [*product([1, 2, 4, 70], [0, 1, 60], [None, 4])]
)


def echoed(length, count, width, *, echo=True, back_after=None):
    """The prompt, the log-probabilities of its ids, and the rounds."""
    prompt = [1 + at % (N_VOCAB - 1) for at in range(length)]
    scores = []
    params = SessionParams(GREEDY, count, logprobs=2, echo=echo)
    rounds = rounds_of(params, prompt, width, scores, back_after=back_after)
    return prompt, scores, rounds


@ECHOES
def test_each_id_of_a_prompt_but_the_first_has_the_row_before_it(length, count, width):
    prompt, scores, _ = echoed(length, count, width)
    assert scores == expected(prompt[:1], prompt[1:])


@ECHOES
def test_an_echo_does_not_change_the_text(length, count, width):
    """Its end id is shown, too."""
    _, scores, rounds = echoed(length, count, width, echo=False)
    assert scores == []
    text = ids_of(rounds)
    end = (END,) if len(text) < count else ()
    assert ids_of(echoed(length, count, width)[2]) == (*text, *end)


@ECHOES
def test_each_id_after_an_echoed_prompt_has_its_own(length, count, width):
    prompt, _, rounds = echoed(length, count, width)
    assert of_rounds(rounds) == expected(prompt, ids_of(rounds))


@pytest.mark.parametrize("length", [1, 2, 70])
@pytest.mark.parametrize("width", [None, 4])
def test_a_session_that_was_set_back_is_not_scored_again(length, width):
    _, scores, rounds = echoed(length, 60, width)
    again = echoed(length, 60, width, back_after=2)
    assert (again[1], of_rounds(again[2])) == (scores, of_rounds(rounds))


@pytest.mark.parametrize("length", [1, 2])
def test_ids_of_a_scored_session_are_read_again_without_logits(length):
    limits = TargetLimits(512, N_VOCAB, frozenset(), max_drafts=3, pieces=PIECES)
    params = SessionParams(GREEDY, 60, logprobs=2, echo=True)
    made = session([1] * length, params, limits, attached=False)
    if length > 1:
        made.prefilled(length - 1, TARGET(0)[np.newaxis])
    made.stepped(made.plan(0.0), TARGET(0)[np.newaxis], 0.0, seconds=0.01)
    made.set_back()
    made.go_on(KVSlot(seq=0))
    assert not made.plan(0.0).stepwise
