"""Requests as they may be written: with a host in their target, with bodies in parts."""

import json

import h11
import pytest
from api_sockets import HEAD, answer_to
from asgi_calls import EVENTS, FakeDaemon
from harness.tables import cases, each

from specmesh.api.request_parser import MOST_SMALL_PARTS, SMALL_PART, in_origin_form
from specmesh.api.server import serving_api

BODY = json.dumps({"prompt": "x", "user": "y" * (MOST_SMALL_PARTS * SMALL_PART)}).encode()


def in_parts(body, size):
    """Return a request whose body comes in parts of so many bytes."""
    request = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    for at in range(0, len(body), size):
        part = body[at : at + size]
        request += b"%x\r\n%b\r\n" % (len(part), part)
    return request + b"0\r\n\r\n"


FEW_BYTES = json.dumps({"prompt": "x" * 900}).encode()
LARGE_OR_FEW = [(BODY, SMALL_PART + 1), (FEW_BYTES, 1)]
SMALL_AND_MANY = [(BODY, SMALL_PART // 2), (BODY[:MOST_SMALL_PARTS], 1)]
PARTS = [[200, *LARGE_OR_FEW], [400, *SMALL_AND_MANY]]


@pytest.mark.parametrize(("status", "sent"), each(PARTS))
def test_bodies_in_parts(tmp_path, status, sent):
    """Large parts may be many, and small ones few."""
    body, size = sent
    with serving_api(tmp_path / "s", FakeDaemon(*EVENTS)):
        answered = answer_to(tmp_path / "s", in_parts(body, size))
    assert answered.startswith(b"HTTP/1.1 %d " % status), answered


def test_small_parts_are_refused_by_name(tmp_path):
    with serving_api(tmp_path / "s", FakeDaemon()):
        answered = answer_to(tmp_path / "s", in_parts(BODY[:40_000], 1)[:200_000])
    assert b"parts of fewer than 256 bytes" in answered


@cases(
    "target, origin_form",
    """
    ["/v1/models?x=http://a/b", "/v1/models?x=http://a/b"]
    ["http://localhost:80/v1/models", "/v1/models"]
    ["HTTP://localhost:80/v1/models?a=//b", "/v1/models?a=//b"]
    ["http://localhost:80", "/"]
    ["http://localhost:80?a=1", "/?a=1"]
    ["*", "*"]
    ["ftp://localhost/x", "ftp://localhost/x"]
    ["http:///v1/models", "http:///v1/models"]
    """,
)
def test_targets(target, origin_form):
    request = h11.Request(method="GET", target=target, headers=[("Host", "a")])
    assert in_origin_form(request).target == origin_form.encode()


def test_a_targets_host_counts():
    """The Host field does not: the API's guard looks at the target's."""
    headers = [("Host", "localhost"), ("Accept", "*/*")]
    request = h11.Request(method="GET", target="http://elsewhere:1/v1/models", headers=headers)
    found = in_origin_form(request)
    assert list(found.headers) == [(b"host", b"elsewhere:1"), (b"accept", b"*/*")]


@cases(
    "target, status",
    """
    ["http://localhost/health", 200]
    ["http://[::1/health", 400]
    ["http://[x]/health", 400]
    ["http://::1]/", 400]
    """,
)
def test_a_target_with_a_host_is_answered_if_it_is_a_uri(tmp_path, target, status):
    request = f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    with serving_api(tmp_path / "s", FakeDaemon()):
        assert answer_to(tmp_path / "s", request).startswith(b"HTTP/1.1 %d " % status)
