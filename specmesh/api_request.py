"""A /v1/completions body -> a Request, every field checked; what is not supported is refused, never ignored."""

import secrets
from dataclasses import dataclass

from specmesh.core.sampling import SamplingParams
from specmesh.core.verifier_session import MAX_DRAFTS, SessionParams
from specmesh.errors import RequestError
from specmesh.requests import Request

_IGNORED = frozenset({"model", "user", "stream_options"})
_NEUTRAL: dict[str, tuple[object, ...]] = {
    # Parameters of OpenAI's that are accepted at the values that change nothing.
    "n": (1, None),
    "best_of": (1, None),
    "echo": (False, None),
    "logprobs": (None, 0),
    "stop": (None, [], ""),
    "suffix": (None, ""),
    "presence_penalty": (0, None),
    "frequency_penalty": (0, None),
    "logit_bias": (None, {}),
}
_KNOWN = frozenset({"prompt", "max_tokens", "temperature", "top_k", "top_p", "seed", "stream", "draft_n", "rounds"})
MAX_SEED = 2**32 - 1


@dataclass(frozen=True, slots=True)
class CompletionBody:
    """A parsed body: the request, and whether its answer is streamed."""

    request: Request
    stream: bool


def parse_completion(body: object) -> CompletionBody:
    """Check a body; raises RequestError that names the field.

    Defaults are OpenAI's (temperature 1, top_p 1) except max_tokens, 128. Ours: top_k (0: off), draft_n ("auto" or a
    number; 0 never drafts), rounds (stream each round's drafts).
    """
    if not isinstance(body, dict):
        raise RequestError("the request body must be a JSON object")
    for name, value in body.items():
        if name in _NEUTRAL and value not in _NEUTRAL[name]:
            raise RequestError(f"{name} is not supported yet")
        if name not in _NEUTRAL and name not in _KNOWN and name not in _IGNORED:
            raise RequestError(f"unknown field {name!r}")
    text, ids = _prompt(body.get("prompt"))
    seed = body.get("seed")
    sampling = SamplingParams(
        temperature=number_field(body, "temperature", 1.0, 0.0, 100.0),
        top_k=integer_field(body, "top_k", 0, 0, 2**31 - 1),
        top_p=number_field(body, "top_p", 1.0, 0.0, 1.0),
        seed=secrets.randbits(32) if seed is None else integer_field(body, "seed", 0, 0, MAX_SEED),
    )
    params = SessionParams(
        sampling, integer_field(body, "max_tokens", 128, 1, 2**31 - 1), _draft_n(body.get("draft_n"))
    )
    return CompletionBody(Request(text, ids, params, _flag(body, "rounds")), _flag(body, "stream"))


def _prompt(value: object) -> tuple[str | None, tuple[int, ...] | None]:
    if isinstance(value, str):
        return value, None
    if isinstance(value, list) and value and all(type(item) is int and 0 <= item < 2**31 for item in value):
        return None, tuple(value)
    raise RequestError("prompt must be a string or a list of token ids, each from 0 to 2147483647")


def _draft_n(value: object) -> int | None:
    if value is None or value == "auto":
        return None
    if type(value) is int and 0 <= value <= MAX_DRAFTS:
        return value
    raise RequestError(f'draft_n must be "auto" or a number from 0 to {MAX_DRAFTS}')


def number_field(body: dict[str, object], name: str, default: float, low: float, high: float) -> float:
    """A field that is a number within bounds, or its default; raises RequestError."""
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise RequestError(f"{name} must be a number from {low:g} to {high:g}")
    return float(value)


def integer_field(body: dict[str, object], name: str, default: int, low: int, high: int) -> int:
    """The same of a whole number."""
    value = body.get(name)
    if value is None:
        return default
    if type(value) is not int or not low <= value <= high:
        raise RequestError(f"{name} must be a whole number from {low} to {high}")
    return value


def _flag(body: dict[str, object], name: str) -> bool:
    value = body.get(name, False)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise RequestError(f"{name} must be true or false")
    return value
