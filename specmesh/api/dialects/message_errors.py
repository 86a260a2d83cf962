"""Errors of Anthropic's API: which requests are of its clients, and what these are answered."""

from collections.abc import Mapping

from starlette.responses import JSONResponse

from specmesh.api.error_body import RETRY_AFTER, error_body, status_of
from specmesh.api.generation import new_digits
from specmesh.core.fields import Json, at
from specmesh.errors import PromptTooLong, SpecmeshError

PATH = "messages"

VERSION_HEADER = "anthropic-version"
"""The header by which a client of this API is known."""

ID_HEADER = "request-id"

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    529: "overloaded_error",
}
"""Anthropic's types of errors by their status. Others are `api_error` from 500 on."""

_STATUS = {503: 529}
"""Anthropic's status of an error by OpenAI's, where it is another."""


def is_for_messages(path: str, headers: Mapping[str, str]) -> bool:
    """Return True for a request of a client of this API."""
    parts = path.removeprefix("/v1").strip("/").partition("/")
    return parts[0] == PATH or VERSION_HEADER in headers


def message_error(error: SpecmeshError, status: int = 0) -> Json:
    """Return Anthropic's error object. status: in the place of the error's own."""
    status = _status(error, status)
    default = "invalid_request_error" if status < 500 else "api_error"
    kind = _KINDS.get(status, default)
    ours = at(error_body(error), "error.specmesh")
    inner: Json = {"type": kind, "message": _in_clients_words(error), "specmesh": ours}
    return {"type": "error", "error": inner}


def _status(error: SpecmeshError, status: int) -> int:
    """Return Anthropic's status of an error; `status` instead of the error's own if not 0."""
    status = status or status_of(error)
    return _STATUS.get(status, status)


def _in_clients_words(error: SpecmeshError) -> str:
    """Return the message of an error; clients shorten a chat at these words for a long prompt."""
    message = str(error)
    if not isinstance(error, PromptTooLong):
        return message
    if error.lengths is None:
        return f"prompt is too long: {message}"
    prompt, context = error.lengths
    return f"prompt is too long: {prompt} tokens > {context} maximum"


def message_refusal(error: SpecmeshError, status: int = 0) -> JSONResponse:
    """Return the response that refuses a request. status: in the place of the error's own."""
    name = f"req_{new_digits()}"
    status = _status(error, status)
    body = message_error(error, status) | {"request_id": name}
    response = JSONResponse(body, status, {ID_HEADER: name})
    if status == 529:
        response.headers["Retry-After"] = RETRY_AFTER
    return response
