"""A dialect: the form of requests and answers under one path of the API."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from starlette.responses import Response

from specmesh.api.error_body import refusal
from specmesh.api.generation import Generation
from specmesh.api.stream import Event, Usage
from specmesh.errors import SpecmeshError


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The facts that an answer begins with.

    created: seconds since 1970.
    model_hash: as in WELCOME, "" if it is not known.
    """

    id: str
    created: int
    model: str
    model_hash: str = ""


class Renderer(Protocol):
    """Writes one answer, either as a stream of server-sent events or whole."""

    def part(self, index: int, events: Sequence[Event]) -> str:
        """Return events of a choice that came together as server-sent events; there is one."""
        ...

    def ping(self) -> str:
        """Return a server-sent event for a client that waits for more; "" if there is none."""
        return ""

    def end(self, usage: Usage) -> str:
        """Return the server-sent events that end a stream."""
        ...

    def error(self, error: SpecmeshError) -> str:
        """Return the server-sent events that end a stream with an error."""
        ...

    def whole(self, choices: Sequence[Sequence[Event]], usage: Usage) -> str:
        """Return a whole answer as JSON, from all events of each choice."""
        ...


@dataclass(frozen=True, slots=True)
class Order:
    """A parsed body. renderer: begins the answer."""

    generation: Generation
    renderer: Callable[[AnswerHead], Renderer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """A dialect; `create_app` has the list of them.

    path: below /v1, and below /.
    parse: returns the order of a body of JSON, from any thread. Raises RequestError.
    refuse: returns the response that refuses a request.
    id_header: has the answer's name, beside X-Request-Id.
    ignored_header: names features of a request, all without effect here.
    """

    path: str = field(kw_only=False)
    parse: Callable[[object], Order] = field(kw_only=False)
    refuse: Callable[[SpecmeshError], Response] = refusal
    id_header: str = "X-Request-Id"
    ignored_header: str = ""
