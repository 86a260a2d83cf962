"""Errors as OpenAI's clients expect them, and their status."""

from starlette.responses import JSONResponse

from specmesh import errors
from specmesh.core.fields import Json
from specmesh.errors import SpecmeshError

RETRY_AFTER = "1"  # seconds

_STATUS: dict[type[SpecmeshError], int] = {
    errors.RequestError: 400,
    errors.PromptTooLong: 400,
    errors.NotPassedOn: 400,
    errors.MissingField: 400,
    errors.NoSuchModel: 404,
    errors.NoSuchText: 404,
    errors.NotOffered: 501,
    errors.DaemonUnreachable: 502,
    errors.Busy: 503,
    errors.Starting: 503,
    errors.WentAway: 503,
}


def error_body(error: SpecmeshError, kind: str = "", code: str | None = None) -> Json:
    """Return OpenAI's error object.

    kind, code: in the place of the error's own.
    Under `specmesh` are the fields by which our own client raises the same error again.
    """
    if not kind:
        kind = "invalid_request_error" if error.exit_code == 2 else "server_error"
    return {
        "error": {
            "message": str(error),
            "type": kind,
            "param": getattr(error, "param", None),
            "code": code or error.code,
            "specmesh": {"error": type(error).__name__, "exit_code": error.exit_code},
        }
    }


def status_of(error: SpecmeshError) -> int:
    """Return the status of a response with an error."""
    return _STATUS.get(type(error), 500)


def refusal(error: SpecmeshError) -> JSONResponse:
    """Return the response that refuses a request."""
    response = JSONResponse(error_body(error), status_of(error))
    if response.status_code == 503:
        response.headers["Retry-After"] = RETRY_AFTER
    return response
