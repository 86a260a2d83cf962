"""Streamed answers: resumed after a disconnection, and printed at an even pace."""

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import closing
from statistics import median
from typing import Self

from specmesh.client import Client, Json
from specmesh.errors import Busy, DaemonUnreachable, WentAway

RECONNECT_TIMEOUT = 30.0
"""Default time to wait for a daemon that went away, in seconds."""

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between two attempts to reconnect: doubled each time."""

LATE = 0.05
"""Seconds over which the rest of a block is spread once the next has come."""

LONGEST = 1.0
"""Maximum time in seconds over which a block is spread."""


class Answer:
    """One answer to `body`, over as many connections as it takes. No part of its text comes twice.

    timeout: seconds to wait for a daemon that went away; 0: not at all. say: called with what is waited for.
    """

    def __init__(self, client: Client, body: Json, timeout: float, say: Callable[[str], None] = lambda _: None) -> None:
        self._client, self._timeout, self._say = client, timeout, say
        self._body = body | {"resumable": True, "reconnect_timeout": timeout}
        self._resume: Json = {"id": "", "model": "", "prompt_token_ids": None, "token_ids": []}

    def chunks(self) -> Generator[Json, None, None]:
        """Yield the chunks of all connections.

        Raises what Client.complete does; DaemonUnreachable then says how to resume an answer that has begun.
        """
        deadline, pause = None, FIRST_PAUSE
        while True:
            try:
                with closing(self._client.complete(dict(self._body))) as chunks:
                    for chunk in chunks:
                        self._take(chunk)
                        deadline, pause = None, FIRST_PAUSE
                        yield chunk
            except (DaemonUnreachable, Busy) as error:
                now = time.monotonic()
                if deadline is None and isinstance(error, WentAway) and self._timeout:
                    self._say(f"{error}; it is waited for, {self._timeout:g} s at most")
                    deadline = now + self._timeout
                elif deadline is None or now >= deadline:
                    if not self._resume["id"] or isinstance(error, Busy):
                        raise
                    hint = f"for as long as a daemon keeps it, go on: specmesh generate --resume {self._resume['id']}"
                    raise DaemonUnreachable(f"{error}; {hint}") from None
                time.sleep(min(pause, max(deadline - now, 0.0)))
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                return

    def _take(self, chunk: Json) -> None:
        """Note what is needed to resume after this chunk."""
        told = chunk.get("specmesh")
        if not isinstance(told, dict):
            return
        self._resume |= {"id": str(chunk.get("id", "")), "model": str(chunk.get("model", ""))}
        if isinstance(ids := told.get("token_ids"), list):
            self._resume["token_ids"] = [*self._resume["token_ids"], *ids]  # type: ignore[misc]
        if "request" in told:
            self._resume["prompt_token_ids"] = told["prompt_token_ids"]
            self._body |= told["request"]
            self._body.pop("prompt", None)
        if self._resume["prompt_token_ids"] is not None:
            self._body["resume"] = dict(self._resume)


class PacedOutput:
    """A context that writes text at an even pace on a thread of its own; its end writes what is left.

    A block is spread over the time until the next is expected: the median of the latest gaps. `add` and the end raise
    what `write` raised.
    """

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._gaps = deque[float](maxlen=8)
        self._last: float | None = None
        self._blocks = deque[tuple[list[str], float]]()
        self._more, self._over = threading.Event(), False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="paced output", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._more.set()
        self._thread.join()
        self._raise()

    def add(self, text: str, tokens: int) -> None:
        """Add the text of a block of so many tokens."""
        self._raise()
        if not text:
            return
        now = time.monotonic()
        if self._last is not None:
            self._gaps.append(now - self._last)
        self._last = now
        parts = min(max(tokens, 1), len(text))
        cuts = [len(text) * number // parts for number in range(parts + 1)]
        spread = min(median(self._gaps), LONGEST) if self._gaps else 0.0
        self._blocks.append(([text[begin:end] for begin, end in itertools.pairwise(cuts)], spread / parts))
        self._more.set()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        try:
            while self._blocks or not self._over:
                self._more.wait()
                self._more.clear()
                while self._blocks:
                    self._show(*self._blocks.popleft())
        except Exception as error:  # noqa: BLE001  (raised again on the thread that adds text)
            self._error = error

    def _show(self, pieces: list[str], pause: float) -> None:
        for number, piece in enumerate(pieces):
            self._write(piece)
            if self._over:
                continue
            if not self._blocks:
                self._more.wait(pause)
                self._more.clear()
            if self._blocks:
                pause = min(pause, LATE / (len(pieces) - number))
                time.sleep(pause)
