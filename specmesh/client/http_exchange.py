"""One HTTP request to a daemon and its answer, as bytes: no socket, no clock.

The client and the asynchronous client both carry these bytes; h11, which the daemons' server
needs, too, reads and writes them.
"""

import json
import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import SupportsFloat, SupportsIndex, cast

import h11

from specmesh import errors
from specmesh.core.fields import Json, at, is_object, place_of_text
from specmesh.errors import DaemonUnreachable, RequestError, SpecmeshError, TimedOut, WentAway

RECEIVE_BYTES = 65536
"""Bytes to receive at once."""

MOST_ANSWER = 2**26
"""Bytes of a whole answer, or of one event, at most: a long prompt's ids take some MiB."""

_EVENTS = b"text/event-stream"

_WHOLE = (200, 503)
"""Statuses of answers that are read: /health has its answer with 503, too."""


def _nameable_errors() -> dict[str, type[SpecmeshError]]:
    """Return the errors that an answer may name: those made of a sentence."""
    others = (errors.FrameError, errors.InvalidTransition)
    found: dict[str, type[SpecmeshError]] = {}
    for name, value in vars(errors).items():
        is_error = isinstance(value, type) and issubclass(value, SpecmeshError)
        if is_error and value not in others:
            found[name] = value
    return found


_ERRORS = _nameable_errors()


class Exchange:
    """One request and its answer.

    body: None for a GET, else it is sent as JSON.
    host: for the header.
    key: an API key, "" for none.
    streams: whether a good answer is server-sent events, which `receive` yields; any other answer
        is kept whole.

    request: the bytes to send.
    is_complete: nothing more is to be received.
    Raises RequestError for a body that is no JSON, or not UTF-8.
    """

    def __init__(
        self, resource: str, body: Json | None, *, host: str, key: str = "", streams: bool = False
    ) -> None:
        self.is_complete = False
        self._streams = streams
        self._status = 0
        self._location = ""
        self._is_stream = False
        self._whole = bytearray()
        self._line = bytearray()
        self._http = h11.Connection(h11.CLIENT)
        method = "GET" if body is None else "POST"
        raw = b""
        headers = [("Host", host), ("Connection", "close")]
        if key:
            headers.append(("Authorization", f"Bearer {key}"))
        if body is not None:
            raw = written(body)
            headers.append(("Content-Type", "application/json"))
            headers.append(("Content-Length", str(len(raw))))
        head = self._http.send(h11.Request(method=method, target=resource, headers=headers))
        data = self._http.send(h11.Data(data=raw))
        end = self._http.send(h11.EndOfMessage())
        self.request = (head or b"") + (data or b"") + (end or b"")

    def receive(self, data: bytes) -> Iterator[Json]:
        """Yield the events that end with these bytes; b"": the daemon has closed.

        Raises WentAway at a sudden end, the daemon's error if it sends one, and DaemonUnreachable
        for bytes that are no HTTP: there is nothing to wait for.
        """
        try:
            self._http.receive_data(data)
            yield from self._events()
        except h11.RemoteProtocolError as error:
            if data or self._is_foreign():
                what = f"the answer is no HTTP ({error})"
                raise DaemonUnreachable(what, "check the address") from None
            raise self.broken(ConnectionError("the connection was closed")) from None

    def _is_foreign(self) -> bool:
        """Return True if the bytes so far begin no answer of HTTP."""
        held, _ = self._http.trailing_data
        return not self._status and not b"HTTP/".startswith(held[:5])

    def broken(self, error: Exception) -> WentAway:
        """Return the error of a connection that ended before the answer did."""
        if isinstance(error, TimeoutError) and error.errno is None:  # a limit of the client's
            trouble = "went silent while answering" if self._status else "does not answer in time"
            return TimedOut(f"the daemon {trouble}", "give a longer timeout, or see its log")
        trouble = "went away while answering" if self._status else "does not answer"
        return WentAway(f"the daemon {trouble} ({error})", "see its log")

    def answer(self) -> Json:
        """Return the whole answer. Raises the daemon's error."""
        if self._status not in _WHOLE:
            raise self._failure()
        answer = _object(self._whole)
        if self._status != 200 and answer.get("error"):
            raise error_of(answer)
        return answer

    def _failure(self) -> SpecmeshError:
        """Return the error that an answer is which is not what was asked for."""
        if self._location:
            remedy = f"give the address {self._location!a}"
            return DaemonUnreachable("the server at this address names another", remedy)
        with suppress(DaemonUnreachable):
            answer = _object(self._whole)
            if answer.get("error"):
                return error_of(answer)
        shown = bytes(self._whole[:80])
        what = f"an answer with status {self._status} is no daemon's: {shown!r}"
        return DaemonUnreachable(what, "check the address")

    def _events(self) -> Iterator[Json]:
        while not self.is_complete:
            match self._http.next_event():
                case h11.Response() as response:
                    self._begin(response)
                case h11.Data() as part:
                    yield from self._take(bytes(part.data))
                case h11.EndOfMessage():
                    self._end()
                case h11.ConnectionClosed():
                    raise h11.RemoteProtocolError("the connection was closed")
                case h11.NEED_DATA:
                    return
                case _:  # a status before the answer's
                    continue

    def _begin(self, response: h11.Response) -> None:
        """Note the head of the answer."""
        headers = dict(response.headers)
        self._status = response.status_code
        if 300 <= self._status < 400:
            self._location = headers.get(b"location", b"").decode("latin-1")
        kind = headers.get(b"content-type", _EVENTS).lower()
        is_good = self._status == 200 and kind.startswith(_EVENTS)
        self._is_stream = self._streams and is_good

    def _take(self, part: bytes) -> Iterator[Json]:
        """Yield the events that end with this part of the body."""
        if not self._is_stream:
            _add(self._whole, part)
            return
        first, *others = part.split(b"\n")
        _add(self._line, first)
        for rest in others:
            line = bytes(self._line)
            self._line = bytearray(rest)
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                self.is_complete = True
                return
            chunk = _object(data)
            if chunk.get("error"):
                raise error_of(chunk)
            yield chunk

    def _end(self) -> None:
        """End the answer. Raises the error that it is, WentAway for a stream without its end."""
        self.is_complete = True
        if not self._streams:
            return
        if not self._is_stream:
            raise self._failure()
        raise WentAway("the daemon went away while answering")


def _add(buffer: bytearray, part: bytes) -> None:
    """Add to the bytes of an answer. Raises DaemonUnreachable if there are too many."""
    if len(buffer) + len(part) > MOST_ANSWER:
        raise DaemonUnreachable(f"the daemon's answer has more than {MOST_ANSWER} bytes")
    buffer += part


def written(body: Json) -> bytes:
    """Return a body as JSON. Raises RequestError for what is no JSON, and texts that are not UTF-8.

    Such an error names the field. Any mapping, sequence and number will do, such as a number of
    numpy's. Texts of a command line are the bytes that were typed: in a locale without UTF-8 Python
    keeps those that it cannot decode as half surrogate pairs.
    """
    try:
        text = json.dumps(body, ensure_ascii=False, allow_nan=False, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"an option or a message is no JSON ({error})") from None
    raw = _typed(text)
    if raw is None:
        place = place_of_text(json.loads(text), lambda part: _typed(part) is None)
        why = f"{place or 'a text that was given'} is not UTF-8"
        raise RequestError(why, place, "convert it, for example with iconv")
    return raw


def _typed(text: str) -> bytes | None:
    """Return the bytes of a text; None if they are not UTF-8."""
    try:
        raw = text.encode("utf-8", "surrogateescape")
        raw.decode()
    except (UnicodeEncodeError, UnicodeDecodeError):
        return None
    return raw


def _plain(value: object) -> object:
    """Return a value of another kind as one that JSON has. Raises TypeError if there is none."""
    kind = type(value).__name__
    match value:
        case bytes() | bytearray() | memoryview():
            pass
        case Mapping():
            return dict(cast("Mapping[str, object]", value))
        case Sequence():
            return list(cast("Sequence[object]", value))
        case SupportsIndex():
            return operator.index(value)
        case SupportsFloat():
            return float(value)
        case _:
            pass
    raise TypeError(f"a value is of type {kind}")


def _object(raw: bytes | bytearray) -> Json:
    """Return a JSON object. Raises DaemonUnreachable for anything else."""
    try:
        answer: object = json.loads(raw)
    except (ValueError, RecursionError):
        shown = bytes(raw[:80])
        raise DaemonUnreachable(f"the daemon's answer is not JSON: {shown!r}") from None
    if not is_object(answer):
        raise DaemonUnreachable(f"the daemon's answer is no object: {bytes(raw[:80])!r}")
    return answer


def error_of(answer: Json) -> SpecmeshError:
    """Return the error of an answer, of the class and about the field that the daemon names.

    Other servers may have a text as the error.
    """
    given = answer.get("error")
    message = given if isinstance(given, str) else at(given, "message")
    message = str(message or "the daemon refused without a reason")
    kind = _ERRORS.get(str(at(given, "specmesh.error")), SpecmeshError)
    error = kind.read(message)
    param = at(given, "param")
    if isinstance(error, errors.RequestError) and isinstance(param, str):
        error.param = param
    return error
