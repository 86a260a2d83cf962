"""A streamed answer that outlives its daemon: gone on with where it broke off, once the daemon is back."""

import time
from collections.abc import Callable, Generator
from contextlib import closing

from specmesh.client import Client, Json
from specmesh.errors import Busy, DaemonUnreachable, WentAway

RECONNECT_TIMEOUT = 30.0
"""Seconds that a daemon which went away is waited for, where nothing is said."""

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between two looks whether it is back: twice as many each time."""


class Answer:
    """One answer to `body`, over as many connections as it takes. Nothing of its text comes twice.

    timeout: seconds that a daemon which went away is waited for; 0 for not at all. say: hears what is waited for.
    """

    def __init__(self, client: Client, body: Json, timeout: float, say: Callable[[str], None] = lambda _: None) -> None:
        self._client, self._timeout, self._say = client, timeout, say
        self._body = body | {"resumable": True, "reconnect_timeout": timeout}
        self._id = self._model = ""
        self._prompt_ids: object = None
        self._ids: list[object] = []

    def chunks(self) -> Generator[Json, None, None]:
        """The chunks of all connections. Raises what Client.complete does; DaemonUnreachable says how to go on with an
        answer that has begun."""
        deadline, pause = None, FIRST_PAUSE
        while True:
            try:
                with closing(self._client.complete(self._next_body())) as chunks:
                    for chunk in chunks:
                        self._take(chunk)
                        deadline, pause = None, FIRST_PAUSE
                        yield chunk
            except (DaemonUnreachable, Busy) as error:
                deadline = self._deadline(error, deadline)
                time.sleep(min(pause, max(deadline - time.monotonic(), 0.0)))
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                return

    def _deadline(self, error: DaemonUnreachable | Busy, before: float | None) -> float:
        """Until when to try again; raises the error where that is not wanted, or was long enough."""
        now = time.monotonic()
        if before is None and isinstance(error, WentAway) and self._timeout:
            self._say(f"{error}; it is waited for, {self._timeout:g} s at most")
            return now + self._timeout
        if before is None or now >= before:
            raise self._told(error) from None
        return before

    def _take(self, chunk: Json) -> None:
        """Note what is needed to go on after this chunk."""
        told = chunk.get("specmesh")
        if not isinstance(told, dict):
            return
        self._id, self._model = str(chunk.get("id", "")), str(chunk.get("model", ""))
        ids = told.get("token_ids")
        if isinstance(ids, list):
            self._ids += ids
        if "request" in told:
            self._prompt_ids = told["prompt_token_ids"]
            self._body |= told["request"]

    def _next_body(self) -> Json:
        if self._prompt_ids is None:
            return self._body
        begun = {name: value for name, value in self._body.items() if name != "prompt"}
        ids = {"prompt_token_ids": self._prompt_ids, "token_ids": list(self._ids)}
        return begun | {"resume": {"id": self._id, "model": self._model, **ids}}

    def _told(self, error: DaemonUnreachable | Busy) -> DaemonUnreachable | Busy:
        """The error; of a text that has begun, with how to go on with it."""
        if not self._id or not isinstance(error, DaemonUnreachable):
            return error
        return DaemonUnreachable(
            f"{error}; for as long as a daemon keeps it, go on: specmesh generate --resume {self._id}"
        )
