"""An answer over as many connections as it takes: what is asked next, and how long is waited."""

from dataclasses import dataclass

from specmesh.core.fields import Json, at, ids_at, object_at
from specmesh.errors import Busy, DaemonUnreachable, Starting, TimedOut, WentAway

START_TIMEOUT_S = 300.0
"""Most seconds to wait for a daemon that is starting: as long as its service may take."""

RECONNECT_TIMEOUT = 30.0
"""Default seconds to wait for a daemon that went away."""

FIRST_PAUSE = 0.05
"""Seconds between the first attempts to reconnect; the pause doubles each time."""

LONGEST_PAUSE = 1.0


@dataclass(frozen=True, slots=True)
class Retry:
    """A pause before the next attempt, in seconds. notice: its reason, the first time."""

    seconds: float
    notice: str = ""


class Resumption:
    """One answer over as many connections as it takes.

    body: the request to send now.
    timeout: seconds to wait for a daemon that went away; START_TIMEOUT_S for a starting one.
    No part of the text comes twice. Several texts (`n`) cannot be resumed, nor a text that was
    resumed by its id only.
    """

    def __init__(self, body: Json, timeout: float) -> None:
        self.body = body | {"resumable": "n" not in body, "reconnect_timeout": timeout}
        self._timeout = timeout
        self._begun = False
        self._known: list[int] = []
        self._resume: Json = {"id": "", "token_ids": self._known}
        self._outage = _Outage(timeout)

    def note(self, chunk: Json) -> None:
        """Go on after this chunk.

        Only tokens make the waiting begin anew: a daemon that each time ends before the first would
        be asked for ever.
        """
        self._begun = True
        extra = object_at(chunk, "specmesh")
        self._resume |= {"id": chunk.get("id"), "model": chunk.get("model")}
        prompt_ids = ids_at(extra, "prompt_token_ids")
        if "request" in extra and prompt_ids and "resume" not in self.body:
            self._resume["prompt_token_ids"] = prompt_ids
            model_hash = at(extra, "model_hash")
            if isinstance(model_hash, str):
                self._resume["model_hash"] = model_hash
            self.body |= object_at(extra, "request") | {"resume": self._resume}
        ids = ids_at(extra, "token_ids")
        if ids:
            self._known += ids
            self._outage = _Outage(self._timeout)

    def after(self, error: DaemonUnreachable | Busy, now: float) -> Retry:
        """Return the pause after which the body is sent again.

        now: in seconds, on a clock that nobody sets.
        Raises the error if there is no use in waiting, as after a time-out of the client's. The
        DaemonUnreachable of an answer that has begun names the command that resumes it.
        """
        name = self._resume["id"]
        is_lost = self._begun and self.body.get("resume") is not self._resume
        if not (is_lost or isinstance(error, TimedOut)):
            wait = self._outage.after(error, now)
            if wait is not None:
                return wait
        if not name or "n" in self.body or isinstance(error, Busy):
            raise error
        command = f"specmesh generate --resume {name}"
        hint = f"for as long as a daemon keeps it, go on: {command}"
        raise type(error)(f"{error}; {hint}") from None


class _Outage:
    """The time without an answer. timeout: seconds to wait for a daemon that went away."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._since: float | None = None
        self._patience = 0.0  # seconds; 0 until a daemon goes away
        self._pause = FIRST_PAUSE

    def after(self, error: DaemonUnreachable | Busy, now: float) -> Retry | None:
        """Return the pause after this error, None if it is not worth to wait."""
        if self._since is None:
            self._since = now
        if isinstance(error, WentAway):
            self._patience = self._timeout
        limit = START_TIMEOUT_S if isinstance(error, Starting) else self._patience
        left = self._since + limit - now
        if left <= 0:
            return None
        notice = ""
        if self._pause == FIRST_PAUSE:
            notice = f"{error}; it is waited for, {limit:g} s at most"
        seconds = min(self._pause, left)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return Retry(seconds, notice)
