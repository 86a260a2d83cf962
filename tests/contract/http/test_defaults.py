"""What a request leaves out: the daemon's defaults, then the client's own, then the API's."""

import pytest

from specmesh.api.body import DEFAULTS, filled, parse_chat, parse_completion
from specmesh.core.sampling.sampler import Penalties, SamplingParams
from specmesh.errors import RequestError


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, 0.5),
        ({"temperature": None}, 0.5),
        ({"temperature": 0}, 0),
        ({"temperature": 0.9, "fallback": {"temperature": 0.2}}, 0.9),
        ({"fallback": {"temperature": 0.2}}, 0.5),
    ],
)
def test_precedence(body: dict[str, object], expected: float):
    """The request, the daemon, the client's fallback, in this order; null is not said."""
    assert filled(body, {"temperature": 0.5}) == {"temperature": expected}


@pytest.mark.parametrize("fallback", [3, [], "x", {"prompt": "x"}, {"seed": 1}, {"temperature": 1, "nonsense": 1}])
def test_bad_fallbacks(fallback: object):
    """Only fields that have defaults can be in it."""
    with pytest.raises(RequestError, match="fallback must be an object with some of max_tokens, temperature"):
        filled({"prompt": "x", "fallback": fallback}, {})


def test_every_default_arrives():
    told = dict(zip(DEFAULTS, (9, 0.5, 40, 0.9, 0.05, 0.8, 1.1, 32, 0.3, 0.4), strict=True))
    sampling = SamplingParams(0.5, 40, 0.9, 1, 0.05, 0.8, Penalties(1.1, 0.3, 0.4, 32))
    message = {"messages": [{"role": "user", "content": "x"}]}
    for parse, body in ((parse_completion, {"prompt": "x"}), (parse_chat, message)):
        params = parse(filled(body | {"seed": 1}, told)).request.params  # type: ignore[operator]
        assert (params.max_tokens, params.sampling) == (9, sampling)
