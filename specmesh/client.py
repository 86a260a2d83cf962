"""A client of a daemon's API over its Unix socket.

It needs the standard library only, so commands start fast.
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
"""Most seconds to wait for a daemon that is starting: as long as its service may take."""

RECONNECT_TIMEOUT = 30.0
"""Default seconds to wait for a daemon that went away."""

FIRST_PAUSE = 0.05
"""Seconds between the first attempts to reconnect; the pause doubles each time."""

LONGEST_PAUSE = 1.0


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


class Client:
    """A connection to one daemon.

    path: its socket; by default the first that answers of SPECMESH_SOCKET, the user's and the
        system's.
    timeout: seconds without a byte; None for no limit.
    Every method raises DaemonUnreachable if no daemon answers, WentAway if it ends meanwhile,
    Starting if it will answer soon, and the daemon's own error if it refuses.
    """

    def __init__(self, path: Path | None = None, timeout: float | None = None) -> None:
        named = os.environ.get("SPECMESH_SOCKET")
        self.tried = candidate_sockets()
        if path is not None:
            self.tried = [path]
        elif named:
            self.tried = [Path(expanded(named))]
        self.timeout = timeout

    def get(self, resource: str, body: Json | None = None) -> Json:
        """GET a JSON resource, or POST `body` to it; also one that answers 503 with a body."""
        method = "GET" if body is None else "POST"
        with self._request(method, resource, body) as response:
            answer = _json(response.read())
        if response.status >= 400 and "error" in answer:
            raise _error(answer)
        return answer

    def complete(self, body: Json) -> Generator[Json, None, None]:
        """POST a streamed completion, or a chat for a body with messages; yield its chunks.

        Closing the iterator cancels it at the daemon.
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
        """Send one request on a connection of its own.

        Raises WentAway, also if the response ends while it is read.
        """
        connection = self._connect(waits=method == "POST")
        headers = {"Connection": "close"}
        raw = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            raw = written(body)
        trouble = "does not answer"
        try:
            # a body that is too long is refused before all of it is read
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
        """Return a connection to the first daemon that answers.

        waits: prefer a daemon that is starting to later ones, which may have another model.
        """
        closed: list[Path] = []
        for path in self.tried:
            connection = http.client.HTTPConnection("localhost")
            connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.sock.settimeout(self.timeout)
            try:
                connection.sock.connect(os.fspath(path))
            except BlockingIOError:  # its queue is full
                connection.close()
                raise WentAway(f"the daemon at {path} does not answer", "see its log") from None
            except PermissionError:
                connection.close()
                closed.append(path)
            except OSError:
                connection.close()
                if waits and starting(path):
                    break
            else:
                return connection
        for path in filter(starting, self.tried):
            raise Starting(f"the daemon at {path} is starting")
        tried = ", ".join(str(path) for path in self.tried)
        remedy = "start one (specmesh verifier) or give --socket PATH"
        if closed:
            remedy += f"; this user may not use {closed[0]}"
        raise DaemonUnreachable(f"no daemon answers at {tried}", remedy)


def answer(
    client: Client,
    body: Json,
    timeout: float,
    notify: Callable[[str], None] = lambda _: None,
    waits: Callable[[], None] = lambda: None,
) -> Generator[Json, None, None]:
    """Yield the chunks of one answer, over as many connections as it takes.

    timeout: seconds to wait for a daemon that went away; START_TIMEOUT_S for a starting one.
    notify: called once with the reason for which it waits.
    waits: called before each pause of a wait.
    No part of the text comes twice. Several texts (`n`) cannot be resumed, nor a text that was
    resumed by its id only. Raises as Client.complete does; the DaemonUnreachable of an answer that
    has begun names the command that resumes it.
    """
    body = body | {"resumable": "n" not in body, "reconnect_timeout": timeout}
    known: list[int] = []
    resume: Json = {"id": "", "token_ids": known}
    silence = _Silence(timeout)
    while True:
        try:
            with contextlib.closing(client.complete(dict(body))) as chunks:
                for chunk in chunks:
                    _note(chunk, body, resume)
                    known += ids_at(chunk, "specmesh.token_ids")
                    silence = _Silence(timeout)
                    yield chunk
        except (DaemonUnreachable, Busy) as error:
            name = resume["id"]
            is_lost = bool(name) and body.get("resume") is not resume
            if not is_lost and silence.goes_on(error, notify):
                waits()
                silence.wait()
                continue
            if not name or "n" in body or isinstance(error, Busy):
                raise
            command = f"specmesh generate --resume {name}"
            hint = f"for as long as a daemon keeps it, go on: {command}"
            raise DaemonUnreachable(f"{error}; {hint}") from None
        else:
            return


class _Silence:
    """The time without an answer. timeout: seconds to wait for a daemon that went away."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._since: float | None = None
        self._end = 0.0
        self._patience = 0.0  # seconds; 0 until a daemon goes away
        self._pause = FIRST_PAUSE

    def goes_on(self, error: SpecmeshError, notify: Callable[[str], None]) -> bool:
        """Return True if it is worth to wait after this error; notify once."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        if isinstance(error, WentAway):
            self._patience = self._timeout
        limit = START_TIMEOUT_S if isinstance(error, Starting) else self._patience
        self._end = self._since + limit
        if limit and self._pause == FIRST_PAUSE:
            notify(f"{error}; it is waited for, {limit:g} s at most")
        return now < self._end

    def wait(self) -> None:
        """Sleep until the next attempt."""
        time.sleep(max(min(self._pause, self._end - time.monotonic()), 0.0))
        self._pause = min(2 * self._pause, LONGEST_PAUSE)


@dataclass(slots=True, kw_only=True)
class GeneratedText:
    """A completion as its chunks come.

    seed: that it was sampled with.
    begun: time of the request, on the clock of the caller.
    arrivals: times of the chunks with tokens.
    pieces: of its text, each True for accepted drafts, which chunks tell apart with `rounds`.
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
        """Return the whole text so far."""
        return "".join(piece for piece, _ in self.pieces)

    @property
    def ended(self) -> float:
        """Return the time of the last tokens."""
        return self.arrivals[-1] if self.arrivals else self.begun

    def take(self, chunk: Json, now: float = 0.0) -> tuple[str, str]:
        """Read a chunk; return its text: accepted drafts, and the rest."""
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
    """Change `body` so that it goes on after this chunk. resume: the known part of the text."""
    extra = object_at(chunk, "specmesh")
    resume |= {"id": chunk.get("id"), "model": chunk.get("model")}
    if "request" in extra and "resume" not in body:
        resume["prompt_token_ids"] = extra["prompt_token_ids"]
        body |= object_at(extra, "request") | {"resume": resume}


def starting(path: Path) -> bool:
    """Return True if a daemon has locked a socket's path.

    If none listens there, the daemon is about to, or has just ended.
    """
    # a file that is no lock must not make this wait
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(lock_of(path), flags), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        # another error: there is no lock, or this user may not look at it
        return isinstance(error, BlockingIOError)
    return False


def chunks(response: http.client.HTTPResponse) -> Iterator[Json]:
    """Yield server-sent events until [DONE].

    Raises the daemon's error if it sends one, WentAway at a sudden end.
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


def _error(answer: Json) -> SpecmeshError:
    """Return the error of an answer, of the class and about the field that the daemon names."""
    message = str(at(answer, "error.message") or "the daemon refused without a reason")
    error = _ERRORS.get(str(at(answer, "error.specmesh.error")), SpecmeshError)(message)
    param = at(answer, "error.param")
    if isinstance(error, errors.RequestError) and isinstance(param, str):
        error.param = param
    return error


def printable(text: str) -> str:
    """Return a peer's text without the characters that control a terminal."""
    return "".join(char if char.isprintable() else "?" for char in text)
