"""Talks to a daemon's local API over its Unix socket. Light: the standard library only, so commands start fast."""

import contextlib
import fcntl
import http.client
import json
import os
import socket
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from specmesh import errors
from specmesh.errors import Busy, DaemonUnreachable, SpecmeshError, Starting, WentAway
from specmesh.paths import candidate_sockets, lock_of

Json = dict[str, object]

START_TIMEOUT_S = 300.0
"""Most seconds that a daemon which is starting is waited for: as long as its service may take to start."""
POLL_S = 0.2

RECONNECT_TIMEOUT = 30.0
"""Default time to wait for a daemon that went away, in seconds."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between two attempts to reconnect: doubled each time."""

_CLASSES: dict[str, type[SpecmeshError]] = {"NoSuchModel": errors.RequestError} | {
    cls.__name__: cls
    for cls in (
        *(Busy, errors.ConfigError, DaemonUnreachable, errors.EngineError, errors.NoSuchText),
        *(errors.PromptTooLong, errors.Refused, errors.RequestError, Starting, WentAway),
    )
}


class Client:
    """A connection to one daemon: at `path`, or the first live socket of SPECMESH_SOCKET, the user's and the system's.

    timeout: seconds without a byte, None for ever. waits: `complete` waits START_TIMEOUT_S for one that starts,
    and tells `waits` once what for. Every method raises DaemonUnreachable if nobody answers (WentAway if somebody did
    before), Starting if it will soon, and the daemon's own error if it refuses.
    """

    def __init__(
        self, path: Path | None = None, timeout: float | None = None, waits: Callable[[str], None] | None = None
    ) -> None:
        named = os.environ.get("SPECMESH_SOCKET")
        self._tried = [path] if path is not None else [Path(named)] if named else candidate_sockets()
        self._timeout, self._waits = timeout, waits

    def get(self, resource: str, body: Json | None = None) -> Json:
        """GET a JSON resource, or POST `body` to it; also one that answers 503 with a body of ours."""
        with self._request("GET" if body is None else "POST", resource, body) as response:
            answer = _json(response.read())
        if response.status >= 400 and "error" in answer:
            raise _error(answer)
        return answer

    def complete(self, body: Json) -> Generator[Json, None, None]:
        """POST a streamed completion, of a chat where `body` has messages, and yield its chunks; closing the iterator
        cancels it on the daemon."""
        resource = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        with self._started(resource, body | {"stream": True}) as response, _went_away():
            yield from chunks(response)

    def _started(self, resource: str, body: Json) -> http.client.HTTPResponse:
        """A POST that is answered with events; waits for a daemon that is starting where that is wanted."""
        until, waiting = time.monotonic() + START_TIMEOUT_S, False
        while True:
            try:
                response = self._request("POST", resource, body)
                if response.status == 200:
                    return response
                with response, _went_away():
                    raise _error(_json(response.read()))
            except Starting as error:
                if self._waits is None or time.monotonic() > until:
                    raise
                if not waiting:
                    self._waits(str(error).removesuffix(": try again in a moment"))
                waiting = True
                time.sleep(POLL_S)

    def _request(self, method: str, resource: str, body: Json | None) -> http.client.HTTPResponse:
        """Ask once; the connection ends with the response."""
        connection = self._connect()
        headers = {"Connection": "close"} | ({} if body is None else {"Content-Type": "application/json"})
        try:
            with contextlib.suppress(ConnectionError):  # a body that is too long is refused before all of it is read
                connection.request(method, resource, None if body is None else json.dumps(body), headers)
            return connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise WentAway(f"the daemon does not answer ({error}): see its log") from None

    def _connect(self) -> http.client.HTTPConnection:
        closed = []
        for path in self._tried:
            connection = _UnixConnection(path, self._timeout)
            try:
                connection.connect()
            except OSError as error:
                if isinstance(error, PermissionError):
                    closed.append(path)
                elif self._waits is not None and starting(path):
                    break  # it comes before those that answer
                continue
            return connection
        for path in filter(starting, self._tried):
            raise Starting(f"the daemon at {path} is starting: try again in a moment")
        tried = ", ".join(str(path) for path in self._tried)
        told = f"no daemon answers at {tried}: start one (specmesh verifier) or give --socket PATH"
        raise DaemonUnreachable(told + (f"; this user may not use {closed[0]}" if closed else ""))


def answer(
    client: Client, body: Json, timeout: float, say: Callable[[str], None] = lambda _: None
) -> Generator[Json, None, None]:
    """Yield the chunks of one answer, over as many connections as it takes. No part of its text comes twice.

    timeout: seconds to wait for a daemon that went away; 0: not at all. say: called with what is waited for. Raises
    what Client.complete does; DaemonUnreachable then says how to resume an answer that has begun.
    """
    body = body | {"resumable": True, "reconnect_timeout": timeout}
    resume: Json = {"id": "", "model": "", "prompt_token_ids": None, "token_ids": []}
    deadline, pause = None, FIRST_PAUSE
    while True:
        try:
            with contextlib.closing(client.complete(dict(body))) as chunks:
                for chunk in chunks:
                    _note(chunk, body, resume)
                    deadline, pause = None, FIRST_PAUSE
                    yield chunk
        except (DaemonUnreachable, Busy) as error:
            now = time.monotonic()
            if deadline is None and isinstance(error, WentAway) and timeout:
                say(f"{error}; it is waited for, {timeout:g} s at most")
                deadline = now + timeout
            elif deadline is None or now >= deadline:
                if not resume["id"] or isinstance(error, Busy):
                    raise
                hint = f"for as long as a daemon keeps it, go on: specmesh generate --resume {resume['id']}"
                raise DaemonUnreachable(f"{error}; {hint}") from None
            time.sleep(min(pause, max(deadline - now, 0.0)))
            pause = min(2 * pause, LONGEST_PAUSE)
        else:
            return


def _note(chunk: Json, body: Json, resume: Json) -> None:
    """Change `body` so that it goes on after this chunk. resume: what is known of the text."""
    told = chunk.get("specmesh")
    if not isinstance(told, dict):
        return
    resume |= {"id": str(chunk.get("id", "")), "model": str(chunk.get("model", ""))}
    if isinstance(ids := told.get("token_ids"), list):
        resume["token_ids"] = [*resume["token_ids"], *ids]  # type: ignore[misc]
    if "request" in told:
        resume["prompt_token_ids"] = told["prompt_token_ids"]
        body |= told["request"]
        body.pop("prompt", None)
    if resume["prompt_token_ids"] is not None:
        body["resume"] = dict(resume)


@contextlib.contextmanager
def _went_away() -> Iterator[None]:
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        raise WentAway(f"the daemon went away while answering ({error})") from None


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float | None) -> None:
        super().__init__("localhost")
        self._path, self._patience = path, timeout

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self._patience)
        try:
            self.sock.connect(os.fspath(self._path))
        except OSError:
            self.sock.close()
            raise


def listens(path: Path) -> bool:
    connection = _UnixConnection(path, 1.0)
    try:
        connection.connect()
    except OSError as error:
        return isinstance(error, TimeoutError | BlockingIOError)  # its queue is full, so there is somebody
    connection.close()
    return True


def starting(path: Path) -> bool:
    """Whether a daemon has taken a socket's path: where none listens there, it is about to, or has just ended."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # whatever is there must not hold us up
        with os.fdopen(os.open(lock_of(path), flags), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # no lock, or not ours to look at
    return False


def known_sockets() -> list[Path]:
    """Where daemons of this machine may listen: SPECMESH_SOCKET, then the user's and the system's folders."""
    named = os.environ.get("SPECMESH_SOCKET")
    return list(dict.fromkeys([*([Path(named)] if named else []), *candidate_sockets()]))


def chunks(response: http.client.HTTPResponse) -> Iterator[Json]:
    """Server-sent events until [DONE]; raises the daemon's error if one comes, WentAway at a sudden end."""
    for line in response:
        if not line.startswith(b"data: "):
            continue
        data = line[6:].strip()
        if data == b"[DONE]":
            return
        chunk = _json(data)
        if "error" in chunk:
            raise _error(chunk)
        yield chunk
    raise WentAway("the daemon went away while answering")


def _json(raw: bytes) -> Json:
    try:
        return cast("Json", json.loads(raw))
    except ValueError:
        raise DaemonUnreachable(f"the daemon's answer is not JSON: {raw[:80]!r}") from None


def _error(answer: Json) -> SpecmeshError:
    """The error that an answer tells, of the class that the daemon names."""
    told = answer.get("error")
    body = told if isinstance(told, dict) else {}
    ours = body.get("specmesh")
    cls = _CLASSES.get(str(ours.get("error")) if isinstance(ours, dict) else "", SpecmeshError)
    return cls(str(body.get("message", "the daemon refused without a reason")))


@dataclass(frozen=True, slots=True)
class Fields:
    """A snapshot, or a part of it. What is missing, or of another type, is None or empty: daemons differ in version."""

    raw: Json

    def part(self, *path: str) -> "Fields":
        value = self._at(path)
        return Fields(value if isinstance(value, dict) else {})

    def number(self, *path: str) -> float | None:
        return _number(self._at(path))

    def numbers(self, *path: str) -> list[float]:
        value = self._at(path)
        return [_number(item) or 0.0 for item in value] if isinstance(value, list) else []

    def text(self, *path: str) -> str:
        """The text at this path. Peers say some of it: what could steer a terminal is replaced."""
        value = self._at(path)
        return printable(str(value)) if value is not None else ""

    def parts(self, *path: str) -> list["Fields"]:
        value = self._at(path)
        return [Fields(item) for item in value if isinstance(item, dict)] if isinstance(value, list) else []

    def by_name(self, *path: str) -> dict[str, float]:
        """The object, or list, of numbers at this path, by name or index."""
        value = self._at(path)
        if isinstance(value, list):
            value = {str(index): item for index, item in enumerate(value)}
        named = value if isinstance(value, dict) else {}
        return {str(name): number for name, item in named.items() if (number := _number(item)) is not None}

    def _at(self, path: tuple[str, ...]) -> object:
        value: object = self.raw
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        return value


def printable(text: str) -> str:
    """A peer's own words without what a terminal would obey."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) else None
