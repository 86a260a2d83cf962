"""One HTTP request to a daemon and its answer, as bytes: no socket, no clock.

The client and the asynchronous client both carry these bytes; h11, which the daemons' server
needs, too, reads and writes them.
"""

import json
from collections.abc import Iterator

import h11

from specmesh import errors
from specmesh.core.fields import Json, at
from specmesh.errors import DaemonUnreachable, RequestError, SpecmeshError, WentAway

RECEIVE_BYTES = 65536
"""Bytes to receive at once."""


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
    Raises RequestError for a body that is not UTF-8.
    """

    def __init__(
        self, resource: str, body: Json | None, *, host: str, key: str = "", streams: bool = False
    ) -> None:
        self.is_complete = False
        self._streams = streams
        self._status = 0
        self._whole = b""
        self._line = b""
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

        Raises WentAway at a sudden end, and the daemon's error if it sends one.
        """
        try:
            self._http.receive_data(data)
            yield from self._events()
        except h11.RemoteProtocolError as error:
            reason = error if data else ConnectionError("the connection was closed")
            raise self.broken(reason) from None

    def broken(self, error: Exception) -> WentAway:
        """Return the error of a connection that ended before the answer did."""
        trouble = "went away while answering" if self._status else "does not answer"
        return WentAway(f"the daemon {trouble} ({error})", "see its log")

    def answer(self) -> Json:
        """Return the whole answer. Raises the daemon's error."""
        answer = _json(self._whole)
        if self._status >= 400 and "error" in answer:
            raise error_of(answer)
        return answer

    def _events(self) -> Iterator[Json]:
        while not self.is_complete:
            match self._http.next_event():
                case h11.Response() as response:
                    self._status = response.status_code
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

    def _take(self, part: bytes) -> Iterator[Json]:
        if not self._streams or self._status != 200:
            self._whole += part
            return
        *lines, self._line = (self._line + part).split(b"\n")
        for line in lines:
            if not line.startswith(b"data: "):
                continue
            data = line[6:].strip()
            if data == b"[DONE]":
                self.is_complete = True
                return
            chunk = _json(data)
            if "error" in chunk:
                raise error_of(chunk)
            yield chunk

    def _end(self) -> None:
        """End the answer. Raises the error that it is, WentAway for a stream without its end."""
        self.is_complete = True
        if not self._streams:
            return
        if self._status != 200:
            raise error_of(_json(self._whole))
        raise WentAway("the daemon went away while answering")


def written(body: Json) -> bytes:
    """Return a body as JSON. Raises RequestError for texts that are not UTF-8.

    Texts of a command line are the bytes that were typed: in a locale without UTF-8 Python keeps
    those that it cannot decode as half surrogate pairs.
    """
    try:
        raw = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogateescape")
        raw.decode()
    except (UnicodeEncodeError, UnicodeDecodeError) as error:
        why = f"a text that was given is not UTF-8 ({error.reason})"
        raise RequestError(why, remedy="convert it, for example with iconv") from None
    return raw


def _json(raw: bytes) -> Json:
    try:
        answer: Json = json.loads(raw)
    except ValueError:
        raise DaemonUnreachable(f"the daemon's answer is not JSON: {raw[:80]!r}") from None
    return answer


def error_of(answer: Json) -> SpecmeshError:
    """Return the error of an answer, of the class and about the field that the daemon names."""
    message = str(at(answer, "error.message") or "the daemon refused without a reason")
    kind = _ERRORS.get(str(at(answer, "error.specmesh.error")), SpecmeshError)
    error = kind.read(message)
    param = at(answer, "error.param")
    if isinstance(error, errors.RequestError) and isinstance(param, str):
        error.param = param
    return error
