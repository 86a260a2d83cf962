"""The answers that a client's exchange makes of bytes, also of servers that are no daemon."""

import errno
import json

import pytest

from specmesh import errors
from specmesh.client import http_exchange
from specmesh.client.http_exchange import Exchange

OK = b"HTTP/1.1 200 OK\r\n"
EVENTS = OK + b"Content-Type: text/event-stream\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def exchange(*, streams=True):
    return Exchange("/x", {}, host="h", streams=streams)


def events(*parts, head=EVENTS):
    """Return the events of a stream that comes in these parts."""
    asked = exchange()
    found = []
    for part in (head, *parts, b""):
        if not asked.is_complete:
            found += asked.receive(part)
    return found


def answer(raw):
    """Return a whole answer."""
    asked = exchange(streams=False)
    assert [*asked.receive(raw), *asked.receive(b"")] == []
    return asked.answer()


DEEP = b"[" * 100_000


@pytest.mark.parametrize("data", [b"[1]", b"5", b"null", b'"x"', DEEP, b'{"a": "\xff"}'])
def test_an_event_that_is_no_object(data):
    with pytest.raises(errors.DaemonUnreachable):
        events(b"data: " + data + b"\n\n" + DONE)


@pytest.mark.parametrize("body", [b"[1]", b"5", b"null", DEEP, b"<html>", b""])
def test_a_whole_answer_that_is_no_object(body):
    with pytest.raises(errors.DaemonUnreachable):
        answer(OK + b"\r\n" + body)


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("begin", [b"data: ", b"data:"])
def test_forms_of_events(begin, end):
    lines = [b"event: x", begin + b'{"a": 1}', b": comment", b"", begin + b"[DONE]", b""]
    assert events(end.join(lines)) == [{"a": 1}]


def test_an_event_may_come_in_any_parts():
    stream = b'data: {"a": 1}\n\ndata: {"b": 2}\n\n' + DONE
    parts = [bytes([byte]) for byte in stream]
    assert events(*parts) == [{"a": 1}, {"b": 2}]


OTHERS = [
    (OK + b"Content-Type: text/html\r\n\r\n<html>", "status 200.*<html>"),
    (OK + b"Content-Type: application/json\r\n\r\n{}", "status 200"),
    (b"HTTP/1.1 204 No Content\r\n\r\n", "status 204"),
    (b"HTTP/1.1 502 Bad Gateway\r\n\r\n<html>", "status 502.*<html>"),
    (b'HTTP/1.1 404 Not Found\r\n\r\n{"detail": "no"}', "status 404.*detail"),
    (b"HTTP/1.1 500 Oh\r\n\r\n5", "status 500"),
    (b"HTTP/1.1 301 Moved\r\nLocation: https://other/\r\n\r\n", "'https://other/'"),
    (b"SSH-2.0-OpenSSH_9.2\r\n", "no HTTP"),
    (b"\x15\x03\x01\x00\x02\x02\x46", "no HTTP"),  # an alert of TLS
    (OK + b"Transfer-Encoding: chunked\r\n\r\nno length\r\n", "no HTTP"),
]


@pytest.mark.parametrize(("raw", "words"), OTHERS)
def test_a_stream_of_another_server(raw, words):
    """It is asked no more: there is nothing to wait for."""
    with pytest.raises(errors.DaemonUnreachable, match=words) as caught:
        events(head=raw)
    assert type(caught.value) is errors.DaemonUnreachable


@pytest.mark.parametrize(("raw", "words"), OTHERS[2:])
def test_a_whole_answer_of_another_server(raw, words):
    with pytest.raises(errors.DaemonUnreachable, match=words):
        answer(raw)


def test_an_unhealthy_daemon_answers():
    body = {"status": "unavailable"}
    assert answer(b"HTTP/1.1 503 No\r\n\r\n" + json.dumps(body).encode()) == body


@pytest.mark.parametrize("error", ["no such thing", {"message": "no such thing"}])
def test_errors_of_other_servers(error):
    body = json.dumps({"error": error}).encode()
    with pytest.raises(errors.SpecmeshError, match=r"^no such thing$"):
        answer(b"HTTP/1.1 404 Not Found\r\n\r\n" + body)
    with pytest.raises(errors.SpecmeshError, match=r"^no such thing$"):
        events(b"data: " + body + b"\n\n")


@pytest.mark.parametrize("kind", [b"Content-Type: Text/Event-Stream\r\n", b""])
def test_kinds_of_streams(kind):
    """A server may write it otherwise, or leave it out."""
    assert events(b'data: {"a": 1}\n\n' + DONE, head=OK + kind + b"\r\n") == [{"a": 1}]


CUT = b'data: {"a": 1}\n\n'


@pytest.mark.parametrize("parts", [(CUT,), (CUT, b"data: {")], ids=["event", "half a line"])
@pytest.mark.parametrize(
    "head", [EVENTS, EVENTS.replace(b"\r\n\r\n", b"\r\nContent-Length: 99\r\n\r\n")]
)
def test_a_stream_without_its_end(head, parts):
    with pytest.raises(errors.WentAway, match="while answering"):
        events(*parts, head=head)


def test_no_error_is_none():
    assert events(b'data: {"error": null}\n\n' + DONE) == [{"error": None}]


def test_an_answer_has_an_end(monkeypatch):
    """A server that sends on and on fills no memory."""
    monkeypatch.setattr(http_exchange, "MOST_ANSWER", 1000)
    assert len(events((b'data: {"a": 1}\n\n' * 200), DONE)) == 200
    with pytest.raises(errors.DaemonUnreachable, match="more than 1000 bytes"):
        events(*[b"data: " + b"a" * 300] * 4)
    with pytest.raises(errors.DaemonUnreachable, match="more than 1000 bytes"):
        answer(OK + b"\r\n" + b"a" * 1001)


def test_a_time_out_is_told_from_a_lost_connection():
    assert type(exchange().broken(TimeoutError())) is errors.TimedOut
    lost = TimeoutError(errno.ETIMEDOUT, "Connection timed out")
    assert type(exchange().broken(lost)) is errors.WentAway
