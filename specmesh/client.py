"""A client of a daemon's local API over its Unix socket.

Light: it needs the standard library only, so commands start fast.
"""

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
"""Most seconds to wait for a daemon that is starting: as long as its service may take to start."""

RECONNECT_TIMEOUT = 30.0  # default time to wait for a daemon that went away, in seconds

# Seconds between two attempts to reconnect: doubled each time.
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0


class Client:
    """A connection to one daemon.

    Every method raises DaemonUnreachable if no daemon answers, WentAway if it stops answering,
    Starting if it is not ready yet, and the daemon's own error if it refuses.
    """

    def __init__(self, path: Path | None = None, timeout: float | None = None) -> None:
        """Use the socket `path`, or else SPECMESH_SOCKET, or the first usual one that answers.

        timeout: seconds without a byte. None: wait for ever.
        """
        named = os.environ.get("SPECMESH_SOCKET")
        self.tried = candidate_sockets()
        if path is not None:
            self.tried = [path]
        elif named:
            self.tried = [Path(expanded(named))]
        self._timeout = timeout

    def get(self, resource: str, body: Json | None = None) -> Json:
        """GET a JSON resource, or POST `body` to it; accept a status of 503 with a body of ours."""
        with self._request("GET" if body is None else "POST", resource, body) as response:
            answer = _json(response.read())
        if response.status >= 400 and "error" in answer:
            raise _error(answer)
        return answer

    def complete(self, body: Json) -> Generator[Json, None, None]:
        """POST a streamed completion, of a chat if `body` has messages, and yield its chunks.

        Closing the iterator cancels it on the daemon.
        """
        resource = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        with self._request("POST", resource, body | {"stream": True}) as response:
            if response.status != 200:
                raise _error(_json(response.read()))
            yield from chunks(response)

    @contextlib.contextmanager
    def _request(
        self, method: str, resource: str, body: Json | None
    ) -> Generator[http.client.HTTPResponse]:
        """Send one request, on a connection of its own.

        Raises WentAway also if the response ends while it is read.
        """
        connection = self._connect(waits=method == "POST")
        trouble = "does not answer"
        headers = {"Connection": "close"}
        raw = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            raw = written(body)
        try:
            # A body that is too long is refused before all of it is read.
            with contextlib.suppress(ConnectionError):
                connection.request(method, resource, raw, headers)
            with connection.getresponse() as response:
                trouble = "went away while answering"
                yield response
        except (OSError, http.client.HTTPException) as error:
            raise WentAway(f"the daemon {trouble} ({error})", "see its log") from None
        finally:
            connection.close()

    def _connect(self, *, waits: bool) -> http.client.HTTPConnection:
        """Connect to the first daemon that answers.

        waits: a daemon that is starting precedes others that answer, which may have another model.
        """
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
                    reason = f"the daemon at {path} does not answer"
                    raise WentAway(reason, "see its log", str(path)) from None
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
        if closed:
            remedy += f"; this user may not use {closed[0]}"
        raise DaemonUnreachable(f"no daemon answers at {tried}", remedy, tried)


def answer(
    client: Client, body: Json, timeout: float, say: Callable[[str], None] = lambda _: None
) -> Generator[Json, None, None]:
    """Yield the chunks of one answer, over as many connections as it takes.

    - No part of its text comes twice.
    - Several texts (`n`) cannot be resumed. An answer that was resumed by its id only cannot be
      resumed again.
    - It raises the errors of Client.complete. DaemonUnreachable then names the command that resumes
      an answer that has begun.

    timeout: seconds to wait for a daemon that went away; START_TIMEOUT_S holds for one that is
        starting.
    say: called with the reason of a wait.
    """
    body = body | {"resumable": "n" not in body, "reconnect_timeout": timeout}
    known = list[int]()
    resume: Json = {"id": "", "token_ids": known}
    silent_since = None
    patience = 0.0
    pause = FIRST_PAUSE
    while True:
        try:
            with contextlib.closing(client.complete(dict(body))) as chunks:
                for chunk in chunks:
                    _note(chunk, body, resume)
                    known += ids_at(chunk, "specmesh.token_ids")
                    silent_since = None
                    patience = 0.0
                    pause = FIRST_PAUSE
                    yield chunk
        except (DaemonUnreachable, Busy) as error:
            now = time.monotonic()
            if silent_since is None:
                silent_since = now
            if isinstance(error, WentAway):
                patience = timeout
            limit = START_TIMEOUT_S if isinstance(error, Starting) else patience
            lost = resume["id"] and body.get("resume") is not resume
            if limit and pause == FIRST_PAUSE and not lost:
                say(f"{error}; it is waited for, {limit:g} s at most")
            if lost or now >= silent_since + limit:
                if not resume["id"] or "n" in body or isinstance(error, Busy):
                    raise
                command = f"specmesh generate --resume {resume['id']}"
                hint = f"for as long as a daemon keeps it, go on: {command}"
                raise DaemonUnreachable(f"{error}; {hint}") from None
            time.sleep(min(pause, silent_since + limit - now))
            pause = min(2 * pause, LONGEST_PAUSE)
        else:
            return


@dataclass(slots=True, kw_only=True)
class GeneratedText:
    """A completion as its chunks come.

    begun, arrivals: times of the request and of chunks with tokens, on the caller's clock.
    pieces: parts of the text. True: it is of accepted drafts, known if the request asked for
        `rounds`.
    report: the daemon's, once the text has ended.
    """

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
        """Add a chunk; return its text: accepted drafts, and the rest."""
        [choice] = objects_at(chunk, "choices")
        extra = object_at(chunk, "specmesh")
        drafted = str(extra.get("accepted_text", ""))
        own = str(choice["text"])[len(drafted) :]
        self.pieces += [(drafted, True), (own, False)]
        ids = ids_at(extra, "token_ids")
        if ids:
            self.ids += ids
            self.arrivals.append(now)
        self.logprobs += objects_at(extra, "logprobs")
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        self.report = object_at(extra, "report") or self.report
        self.prompt_ids = ids_at(extra, "prompt_token_ids") or self.prompt_ids
        if "request" in extra:
            self.seed = at(extra, "request.seed")
        return drafted, own


def _note(chunk: Json, body: Json, resume: Json) -> None:
    """Change `body` so that it goes on after this chunk; resume: the known part of the text."""
    extra = object_at(chunk, "specmesh")
    resume |= {"id": chunk.get("id"), "model": chunk.get("model")}
    if "request" in extra and "resume" not in body:
        resume["prompt_token_ids"] = extra["prompt_token_ids"]
        body |= object_at(extra, "request") | {"resume": resume}


def starting(path: Path) -> bool:
    """Return True if a daemon holds the lock of a socket.

    If it does not listen there, it is about to, or has just ended.
    """
    # No file must hold us up, whatever its kind.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(lock_of(path), flags), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is no lock, or this user may not read it
        return False
    return False


def chunks(response: http.client.HTTPResponse) -> Iterator[Json]:
    """Yield server-sent events until [DONE].

    Raises the daemon's error if one comes, WentAway at a sudden end.
    """
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
    """Return a body as JSON. Raises RequestError for texts that are not UTF-8.

    Texts of a command line come as the bytes that were typed: in a locale without UTF-8 Python
    keeps those that it cannot read as half surrogate pairs.
    """
    try:
        raw = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogateescape")
        raw.decode()
    except (UnicodeEncodeError, UnicodeDecodeError) as error:
        reason = f"a text that was given is not UTF-8 ({error.reason})"
        raise RequestError(reason, remedy="convert it, for example with iconv") from None
    return raw


def _json(raw: bytes) -> Json:
    try:
        answer: Json = json.loads(raw)
    except ValueError:
        raise DaemonUnreachable(f"the daemon's answer is not JSON: {raw[:80]!r}") from None
    return answer


def _error(answer: Json) -> SpecmeshError:
    """Return the error of an answer, of the class and about the field that the daemon names."""
    message = str(at(answer, "error.message") or "the daemon refused without a reason")
    error = _class_of(str(at(answer, "error.specmesh.error")))(message)
    param = at(answer, "error.param")
    if isinstance(error, errors.RequestError) and isinstance(param, str):
        error.param = param
    return error


def _class_of(name: str) -> type[SpecmeshError]:
    """Return the class of this name, if its errors are made of a sentence."""
    kind = getattr(errors, name, None)
    if not isinstance(kind, type) or not issubclass(kind, SpecmeshError):
        return SpecmeshError
    if issubclass(kind, errors.FrameError | errors.InvalidTransition):
        return SpecmeshError
    return kind


def printable(text: str) -> str:
    """Return a peer's own words without characters that control a terminal."""
    return "".join(char if char.isprintable() else "?" for char in text)
