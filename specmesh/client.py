"""Talks to a daemon's local API over its Unix socket. Light: the standard library only, so commands start fast."""

import contextlib
import fcntl
import http.client
import json
import os
import socket
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from specmesh import errors
from specmesh.core.fields import Json, at, ids_at, object_at, objects_at
from specmesh.errors import (
    Busy,
    DaemonUnreachable,
    RequestError,
    SpecmeshError,
    Starting,
    WentAway,
)
from specmesh.paths import candidate_sockets, expanded, lock_of

START_TIMEOUT_S = 300.0
"""Most seconds that a daemon which is starting is waited for: as long as its service may take to start."""

RECONNECT_TIMEOUT = 30.0  # default time to wait for a daemon that went away, in seconds
FIRST_PAUSE, LONGEST_PAUSE = (
    0.05,
    1.0,
)  # seconds between two attempts to reconnect: doubled each time

_CLASSES: dict[str, type[SpecmeshError]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, SpecmeshError)
    if kind not in (errors.FrameError, errors.InvalidTransition)
}
"""The errors that a daemon's answer may name: those made of a sentence."""


class Client:
    """A connection to one daemon: at `path`, or the first live socket of SPECMESH_SOCKET, the user's and the system's.
    timeout: seconds without a byte, None for ever. Every method raises DaemonUnreachable if nobody answers (WentAway if
    somebody did before), Starting if it will soon, and the daemon's own error if it refuses."""

    def __init__(self, path: Path | None = None, timeout: float | None = None) -> None:
        named = os.environ.get("SPECMESH_SOCKET")
        self.tried = candidate_sockets()
        if path is not None:
            self.tried = [path]
        elif named:
            self.tried = [Path(expanded(named))]
        self._timeout = timeout

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
        with self._request("POST", resource, body | {"stream": True}) as response:
            if response.status != 200:
                raise _error(_json(response.read()))
            yield from chunks(response)

    @contextlib.contextmanager
    def _request(
        self, method: str, resource: str, body: Json | None
    ) -> Generator[http.client.HTTPResponse]:
        """Ask once, on a connection of its own. Raises WentAway where the response ends while it is read, too."""
        connection, trouble = self._connect(waits=method == "POST"), "does not answer"
        headers = {"Connection": "close"}
        raw = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            raw = written(body)
        try:
            with contextlib.suppress(
                ConnectionError
            ):  # a body that is too long is refused before all of it is read
                connection.request(method, resource, raw, headers)
            with connection.getresponse() as response:
                trouble = "went away while answering"
                yield response
        except (OSError, http.client.HTTPException) as error:
            raise WentAway(f"the daemon {trouble} ({error})", "see its log") from None
        finally:
            connection.close()

    def _connect(self, *, waits: bool) -> http.client.HTTPConnection:
        """waits: a daemon that is starting comes before others that answer, which may have another model."""
        closed = list[Path]()
        for path in self.tried:
            connection = http.client.HTTPConnection("localhost")
            connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.sock.settimeout(self._timeout)
            try:
                connection.sock.connect(os.fspath(path))
            except OSError as error:
                connection.close()
                if isinstance(error, BlockingIOError):  # its queue is full
                    raise WentAway(
                        f"the daemon at {path} does not answer", "see its log", str(path)
                    ) from None
                if isinstance(error, PermissionError):
                    closed.append(path)
                elif waits and starting(path):
                    break
                continue
            return connection
        for path in filter(starting, self.tried):
            raise Starting(f"the daemon at {path} is starting")
        tried = ", ".join(str(path) for path in self.tried)
        remedy = "start one (specmesh verifier) or give --socket PATH"
        remedy += f"; this user may not use {closed[0]}" if closed else ""
        raise DaemonUnreachable(f"no daemon answers at {tried}", remedy, tried)


def answer(
    client: Client, body: Json, timeout: float, say: Callable[[str], None] = lambda _: None
) -> Generator[Json, None, None]:
    """Yield the chunks of one answer, over as many connections as it takes. No part of its text comes twice. timeout:
    seconds to wait for a daemon that went away; one that is starting is waited for START_TIMEOUT_S. say: called with
    what is waited for. Raises what Client.complete does; DaemonUnreachable then says how to resume an answer that has
    begun. Several texts (`n`) cannot be resumed, nor one again that was resumed by its id alone."""
    body = body | {"resumable": "n" not in body, "reconnect_timeout": timeout}
    known = list[int]()
    resume: Json = {"id": "", "token_ids": known}
    silent_since, patience, pause = None, 0.0, FIRST_PAUSE
    while True:
        try:
            with contextlib.closing(client.complete(dict(body))) as chunks:
                for chunk in chunks:
                    _note(chunk, body, resume)
                    known += ids_at(chunk, "specmesh.token_ids")
                    silent_since, patience, pause = None, 0.0, FIRST_PAUSE
                    yield chunk
        except (DaemonUnreachable, Busy) as error:
            now = time.monotonic()
            silent_since = now if silent_since is None else silent_since
            patience = timeout if isinstance(error, WentAway) else patience
            limit = START_TIMEOUT_S if isinstance(error, Starting) else patience
            lost = resume["id"] and body.get("resume") is not resume
            if limit and pause == FIRST_PAUSE and not lost:
                say(f"{error}; it is waited for, {limit:g} s at most")
            if lost or now >= silent_since + limit:
                if not resume["id"] or "n" in body or isinstance(error, Busy):
                    raise
                hint = f"for as long as a daemon keeps it, go on: specmesh generate --resume {resume['id']}"
                raise DaemonUnreachable(f"{error}; {hint}") from None
            time.sleep(min(pause, silent_since + limit - now))
            pause = min(2 * pause, LONGEST_PAUSE)
        else:
            return


@dataclass(slots=True)
class GeneratedText:
    """A completion as its chunks come. pieces: of its text, each with whether it is of accepted drafts, which chunks
    tell where `rounds` was asked for. begun, arrivals: when it was asked for and when chunks with tokens came, on the
    clock of who takes them. report: the daemon's, once the text has ended."""

    seed: object = None
    begun: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    pieces: list[tuple[str, bool]] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    prompt_ids: list[int] = field(default_factory=list)
    logprobs: list[Json] = field(default_factory=list)
    finish_reason: object = None
    report: Json = field(default_factory=dict)

    @property
    def text(self) -> str:
        return "".join(piece for piece, _ in self.pieces)

    @property
    def ended(self) -> float:
        return self.arrivals[-1] if self.arrivals else self.begun

    def take(self, chunk: Json, now: float = 0.0) -> tuple[str, str]:
        """Return the text that came: accepted drafts, and the rest."""
        [choice], extra = objects_at(chunk, "choices"), object_at(chunk, "specmesh")
        drafted = str(extra.get("accepted_text", ""))
        own = str(choice["text"])[len(drafted) :]
        self.pieces += [(drafted, True), (own, False)]
        if ids := ids_at(extra, "token_ids"):
            self.ids += ids
            self.arrivals.append(now)
        self.logprobs += objects_at(extra, "logprobs")
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        self.report = object_at(extra, "report") or self.report
        self.prompt_ids = ids_at(extra, "prompt_token_ids") or self.prompt_ids
        self.seed = at(extra, "request.seed") if "request" in extra else self.seed
        return drafted, own


def _note(chunk: Json, body: Json, resume: Json) -> None:
    """Change `body` so that it goes on after this chunk. resume: what is known of the text."""
    extra = object_at(chunk, "specmesh")
    resume |= {"id": chunk.get("id"), "model": chunk.get("model")}
    if "request" in extra and "resume" not in body:
        resume["prompt_token_ids"] = extra["prompt_token_ids"]
        body |= object_at(extra, "request") | {"resume": resume}


def starting(path: Path) -> bool:
    """Whether a daemon has taken a socket's path: where none listens there, it is about to, or has just ended."""
    try:
        flags = (
            os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        )  # whatever is there must not hold us up
        with os.fdopen(os.open(lock_of(path), flags), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(
            error, BlockingIOError
        )  # else there is no lock, or it is not ours to look at
    return False


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


def written(body: Json) -> bytes:
    """Return a body as JSON. Texts of a command line come as the bytes that were typed: in a locale
    without UTF-8 Python keeps those that it cannot read as half surrogate pairs. Raises
    RequestError for texts that are not UTF-8."""
    try:
        raw = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogateescape")
        raw.decode()
    except (UnicodeEncodeError, UnicodeDecodeError) as error:
        what = f"a text that was given is not UTF-8 ({error.reason})"
        raise RequestError(what, remedy="convert it, for example with iconv") from None
    return raw


def _json(raw: bytes) -> Json:
    try:
        answer: Json = json.loads(raw)
    except ValueError:
        raise DaemonUnreachable(f"the daemon's answer is not JSON: {raw[:80]!r}") from None
    return answer


def _error(answer: Json) -> SpecmeshError:
    """The error that an answer tells, of the class that the daemon names and about the field that it names."""
    message = str(at(answer, "error.message") or "the daemon refused without a reason")
    error = _CLASSES.get(str(at(answer, "error.specmesh.error")), SpecmeshError)(message)
    param = at(answer, "error.param")
    if isinstance(error, errors.RequestError) and isinstance(param, str):
        error.param = param
    return error


def printable(text: str) -> str:
    """A peer's own words without what a terminal would obey."""
    return "".join(char if char.isprintable() else "?" for char in text)
