"""A fake daemon, and calls of the API over it as an ASGI application."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from harness import PATIENCE
from starlette.types import ASGIApp

from specmesh.api import backend as r
from specmesh.api.app import create_app
from specmesh.api.kept_responses import KeptResponses
from specmesh.core.requests import ClientEvent, EventSink, Finished, Request, Started, Tokens
from specmesh.core.statistics.snapshot import Snapshot
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import NoSuchModel, SpecmeshError

LETTERS = Vocabulary(tuple(bytes([n]) for n in range(256)), frozenset({255}))
DONE = Finished(
    "length", (104, 105), {"rounds": 2, "drafted": 5, "accepted": 3, "cached_tokens": 1}
)
EVENTS = (Started(7, 2), Tokens((65, 66), 1), Tokens((67,), 0), DONE)


class Asked(NamedTuple):
    """One request of a `Submit`."""

    request: Request
    client: EventSink


class FakeDaemon:
    """A backend that answers every request with the same events.

    orders: as they came; of a `Submit`, its requests one by one.
    """

    role = "verifier"
    models: tuple[str, ...] = ("fake-model", "other-model")
    vocabulary = LETTERS
    texts: Mapping[str, str] = {}

    def __init__(self, *events: ClientEvent, reason: SpecmeshError | None = None) -> None:
        self.events = events
        self.reason = reason
        self.orders: list[Asked | r.Cancel | r.PauseClient] = []
        self.kept = KeptResponses()
        self.cancelled = asyncio.Event()
        self.snapshot = Snapshot(role=self.role, version="0", pid=1, uptime_s=1.0)

    def not_ready(self) -> SpecmeshError | None:
        return self.reason

    def served(self, name: str) -> r.ModelInfo:
        if name not in ("", *self.models):
            raise NoSuchModel.of(name)
        target = f"target of {name}" if name else ""
        return r.ModelInfo(
            model=name or self.models[0],
            vocabulary=self.vocabulary,
            target=target,
            n_ctx=4000,
            texts=self.texts,
        )

    async def stats(self) -> Snapshot:
        return self.snapshot

    def submit(self, order: r.ClientOrder) -> None:
        match order:
            case r.Submit(texts):
                for request, client in texts:
                    self.ask(Asked(request, client))
            case r.Cancel():
                self.orders.append(order)
                self.cancelled.set()
            case r.PauseClient():
                self.orders.append(order)

    def ask(self, asked: Asked) -> None:
        self.orders.append(asked)
        for event in self.events_of(asked.request):
            asked.client.on_event(event)

    def events_of(self, _: Request) -> tuple[ClientEvent, ...]:
        return self.events


class Reader:
    """The connection of an answer, as far as that knows it.

    cuts: how often the answer closed it.
    looks: how often the answer, which begins each look so, asked whether the reader is behind.
    """

    def __init__(self, *, behind: bool = False) -> None:
        self._behind = behind
        self.cuts = 0
        self.looks = 0
        self.written = 0
        self.on_writable: Callable[[], None] | None = None

    @property
    def behind(self) -> bool:
        self.looks += 1
        return self._behind

    @behind.setter
    def behind(self, behind: bool) -> None:
        self._behind = behind

    def wrote(self, size: int) -> None:
        self.written += size

    def cut(self) -> None:
        self.cuts += 1


class Answer:
    """The answer to a call over a connection, and a way to leave early."""

    def __init__(self, connection: Reader | None = None) -> None:
        self.connection = connection or Reader()
        self.status = 0
        self.headers: dict[str, str] = {}
        self.parts: list[bytes] = []
        self.gone = asyncio.Event()
        self.on_part: Callable[[], None] = lambda: None

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json()["error"]

    def events(self) -> list[str]:
        """The data of server-sent events."""
        *events, rest = self.body.decode().split("\n\n")
        assert rest == ""
        return [event.removeprefix("data: ") for event in events]

    def bodies(self) -> list[Any]:
        """The chunks of a stream, or the one answer."""
        if self.headers["content-type"] == "application/json":
            return [self.json()]
        return [json.loads(event) for event in self.events()[:-1]]

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        if message["body"]:
            self.parts.append(message["body"])
            self.on_part()
        if not message.get("more_body"):
            self.gone.set()  # as a server does: there is nothing more to hear


async def call(
    daemon: FakeDaemon,
    method: str,
    path: str,
    parts: Sequence[bytes] = (b"",),
    answer: Answer | None = None,
    app: ASGIApp | None = None,
    headers: Sequence[tuple[bytes, bytes]] = ((b"content-type", b"application/json"),),
) -> Answer:
    answer = answer or Answer()
    left = list(parts)

    async def receive() -> dict[str, object]:
        if left:
            return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}
        await answer.gone.wait()
        return {"type": "http.disconnect"}

    scope: dict[str, object] = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": headers,
        "state": {"connection": answer.connection},
    }
    app = app or create_app(daemon, daemon.kept)
    await asyncio.wait_for(app(scope, receive, answer.send), PATIENCE)
    return answer


def get(daemon: FakeDaemon, path: str) -> Answer:
    return asyncio.run(call(daemon, "GET", path))


def ask(daemon: FakeDaemon, path: str, body: object, method: str = "POST", **how: Any) -> Answer:
    """Send a body, as JSON unless it is bytes."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return asyncio.run(call(daemon, method, path, [raw], **how))


def post(daemon: FakeDaemon, **body: object) -> Answer:
    return ask(daemon, "/v1/completions", {"prompt": "hi"} | body)
