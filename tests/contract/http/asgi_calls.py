"""A fake daemon, and calls of the API over it as an ASGI application."""

import asyncio
import json
import selectors
from collections.abc import Mapping
from typing import NamedTuple

import pytest
from harness import PATIENCE

from specmesh.api import backend as r
from specmesh.api.app import create_app
from specmesh.api.kept_responses import KeptResponses
from specmesh.core.requests import EventSink, Finished, Request, Started, Tokens
from specmesh.core.statistics.snapshot import Snapshot
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import NoSuchModel

LETTERS = Vocabulary(tuple(bytes([n]) for n in range(256)), frozenset({255}))
DONE = Finished(
    "length", (104, 105), {"rounds": 2, "drafted": 5, "accepted": 3, "cached_tokens": 1}
)
streamed_or_whole = pytest.mark.parametrize("stream", [False, True])
EVENTS = (Started(7, 2), Tokens((65, 66), 1), Tokens((67,), 0), DONE)


class Asked(NamedTuple):
    """One request of a `Submit`."""

    request: Request
    client: EventSink


class FakeDaemon:
    """A backend that answers every request with the same events.

    orders: as they came; of a `Submit`, its requests one by one. accounts: of each `Submit`.
    """

    role = "verifier"
    models: tuple[str, ...] = ("fake-model", "other-model")
    vocabulary = LETTERS
    texts: Mapping[str, str] = {}

    def __init__(self, *events, reason=None):
        self.events = events
        self.reason = reason
        self.orders = []
        self.accounts = []
        self.kept = KeptResponses()
        self.cancelled = asyncio.Event()
        self.snapshot = Snapshot(role=self.role, version="0", pid=1, uptime_s=1.0)

    def not_ready(self):
        return self.reason

    def served(self, name):
        if name not in ("", *self.models):
            raise NoSuchModel.of(name)
        target = f"target of {name}" if name else ""
        return r.ModelInfo(
            model=name or self.models[0],
            vocabulary=self.vocabulary,
            target=target,
            n_ctx=4000,
            texts=self.texts,
            model_hash="f00d",
        )

    async def stats(self):
        return self.snapshot

    def submit(self, order):
        match order:
            case r.Submit(texts):
                self.accounts.append(order.account)
                for request, client in texts:
                    self.ask(Asked(request, client))
            case r.Cancel():
                self.orders.append(order)
                self.cancelled.set()
            case r.PauseClient():
                self.orders.append(order)

    def ask(self, asked):
        self.orders.append(asked)
        for event in self.events_of(asked.request):
            asked.client.on_event(event)

    def events_of(self, _):
        return self.events


class Reader:
    """The connection of an answer, as far as that knows it.

    cuts: how often the answer closed it.
    looks: how often the answer, which begins each look so, asked whether the reader is behind.
    """

    def __init__(self, *, behind=False):
        self._behind = behind
        self.cuts = 0
        self.looks = 0
        self.written = 0
        self.on_writable = None

    @property
    def behind(self):
        self.looks += 1
        return self._behind

    @behind.setter
    def behind(self, behind):
        self._behind = behind

    def wrote(self, size):
        self.written += size

    def cut(self):
        self.cuts += 1


class Answer:
    """The answer to a call over a connection, and a way to leave early."""

    def __init__(self, connection=None):
        self.connection = connection or Reader()
        self.status = 0
        self.headers = {}
        self.parts = []
        self.gone = asyncio.Event()
        self.on_part = lambda: None

    @property
    def body(self):
        return b"".join(self.parts)

    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json()["error"]

    def events(self):
        """The data of server-sent events."""
        *events, rest = self.body.decode().split("\n\n")
        assert rest == ""
        return [event.removeprefix("data: ") for event in events]

    def bodies(self):
        """The chunks of a stream, or the one answer."""
        if self.headers["content-type"] == "application/json":
            return [self.json()]
        return [json.loads(event) for event in self.events()[:-1]]

    async def send(self, message):
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
    daemon,
    method,
    path,
    parts=(b"",),
    answer=None,
    app=None,
    headers=((b"content-type", b"application/json"),),
):
    answer = answer or Answer()
    left = list(parts)

    async def receive():
        if left:
            return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}
        await answer.gone.wait()
        return {"type": "http.disconnect"}

    scope = {
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


class JumpingSelector(selectors.DefaultSelector):
    """A selector that can skip what it would wait for.

    jumps: it does. jumped: seconds that it skipped.
    """

    jumps = False
    jumped = 0.0

    def select(self, timeout=None):
        if self.jumps and timeout is not None:
            self.jumped += max(timeout, 0.0)
            timeout = 0.0
        return super().select(timeout)


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop that can jump to its next timer once it has nothing else to do.

    Jumping, whatever waits for an event that never comes is at its time-out at once.
    """

    def __init__(self):
        self._waits = JumpingSelector()
        super().__init__(self._waits)

    def time(self):
        return super().time() + self._waits.jumped

    def jump(self, *, jumps=True):
        self._waits.jumps = jumps


def get(daemon, path):
    return asyncio.run(call(daemon, "GET", path))


def ask(daemon, path, body, method="POST", **how):
    """Send a body, as JSON unless it is bytes."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return asyncio.run(call(daemon, method, path, [raw], **how))


def post(daemon, **body):
    return ask(daemon, "/v1/completions", {"prompt": "hi"} | body)
