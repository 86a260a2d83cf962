"""Who may ask over TCP."""

import asyncio

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Message

from specmesh.api.app import ApiGuard


def asked(keys: tuple[str, ...], path: str = "/stats", **headers: str) -> int:
    statuses: list[int] = []

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    scope = {"type": "http", "method": "GET", "path": path, "headers": raw, "query_string": b""}
    asyncio.run(ApiGuard(PlainTextResponse("ok"), keys)(scope, receive, send))
    return statuses[0]


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8080", "127.0.0.1:8080", "[::1]:8080", "LOCALHOST", "127.0.0.2:80"]
)
def test_this_machine_needs_no_key(host: str):
    assert asked((), host=host) == 200
    assert asked((), host=host, origin="http://localhost:3000") == 200


@pytest.mark.parametrize("host", ["", "evil.example", "evil.example:8080", "127.0.0.1.evil.example", "[bad", "@"])
def test_another_name_is_refused(host: str):
    assert asked((), host=host) == 403
    assert asked(()) == 403


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://[bad"])
@pytest.mark.fault("E6.73")
def test_another_origin_is_refused(origin: str):
    assert asked((), host="localhost", origin=origin) == 403


@pytest.mark.fault("E6.73")
def test_keys():
    keys = ("sk-one", "sk-two")
    for key in keys:
        assert asked(keys, host="box.example", authorization=f"Bearer {key}") == 200
        assert asked(keys, host="box.example", authorization=f"bearer  {key} ") == 200
    for wrong in ("Bearer sk-three", "Bearer", "", "Basic sk-one", "sk-one", "Bearer sk-onetwo", "Bearer schl\xfcssel"):
        assert asked(keys, host="localhost", authorization=wrong) == 401
    assert asked(keys, host="localhost") == 401
    assert asked(keys, path="/health", host="box.example") == 200
