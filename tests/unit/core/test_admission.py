"""Which prompts are taken."""

import pytest

from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams, TargetLimits, check_alternatives, check_biases, check_prompt
from specmesh.errors import PromptTooLong, RequestError

LIMITS = TargetLimits(n_ctx=4, n_vocab=10, end_ids=frozenset())


def test_a_prompt_that_leaves_room_for_one_token_is_taken():
    check_prompt([0, 9, 3], LIMITS)


@pytest.mark.parametrize("ids", [[], [10], [-1], [0, 2**31]])
def test_empty_and_foreign_prompts_are_refused(ids):
    with pytest.raises(RequestError):
        check_prompt(ids, LIMITS)


@pytest.mark.fault("E7.80")
def test_a_long_prompt_names_both_counts():
    with pytest.raises(PromptTooLong, match=r"length is 4 tokens.*has 4 tokens.*--ctx") as caught:
        check_prompt([1, 2, 3, 4], LIMITS)
    assert caught.value.param == "prompt"


def test_alternatives_have_an_end():
    for top, most in ((None, 2**31), (20, 2**31), (2**16, 2)):
        check_alternatives(SessionParams(SamplingParams(), most, logprobs=top), 1, LIMITS)
    with pytest.raises(RequestError, match="give max_tokens, 2 at most") as refused:
        check_alternatives(SessionParams(SamplingParams(), 2**31, logprobs=2**16), 1, LIMITS)
    assert refused.value.param == "max_tokens"


def test_a_bias_is_for_a_token_of_the_model():
    check_biases(SamplingParams(logit_bias=((0, 1.0), (9, -1.0))), LIMITS)
    with pytest.raises(RequestError, match=r"token 10.*has 10"):
        check_biases(SamplingParams(logit_bias=((0, 1.0), (10, 1.0))), LIMITS)
