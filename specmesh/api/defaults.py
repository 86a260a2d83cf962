"""What a daemon was told to use where a request does not say how to sample, or how long the text may be."""

from collections.abc import Mapping

from specmesh.errors import RequestError

DEFAULTS = (
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repeat_penalty",
    "repeat_last_n",
    "frequency_penalty",
    "presence_penalty",
)
"""Fields of a body that a daemon may have defaults for."""


def filled(body: object, defaults: Mapping[str, object]) -> object:
    """A body with what it leaves out: the daemon's defaults, then its own `fallback`.

    fallback: a client's own defaults, some of DEFAULTS, which the daemon's come before. Raises RequestError where it is
    something else.
    """
    if not isinstance(body, dict):
        return body
    fallback = body.get("fallback")
    if not isinstance(fallback, dict | None) or not set(fallback or {}) <= set(DEFAULTS):
        raise RequestError(f"fallback must be an object with some of {', '.join(DEFAULTS)}", "fallback")
    used = {**(fallback or {}), **defaults}
    given = {name: value for name, value in body.items() if name != "fallback"}
    return given | {name: value for name, value in used.items() if given.get(name) is None}
