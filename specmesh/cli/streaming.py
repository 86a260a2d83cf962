"""Streamed answers: resumed after a disconnection, and printed at an even pace."""

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from statistics import median
from typing import Self

from specmesh.client import Client, Json
from specmesh.errors import Busy, DaemonUnreachable, WentAway

RECONNECT_TIMEOUT = 30.0
"""Default time to wait for a daemon that went away, in seconds."""

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between two attempts to reconnect: doubled each time."""

LATE = 0.05
"""Maximum time in seconds that a piece is shown after the next block has come."""

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


@dataclass(slots=True)
class _Piece:
    text: str
    due: float
    latest: float


class Pace:
    """Pieces of text and the times at which to show them, in seconds of one clock.

    A block's pieces are spread over the time until the next block is expected: the median of the latest gaps.
    """

    def __init__(self) -> None:
        self._pieces: deque[_Piece] = deque()
        self._gaps: deque[float] = deque(maxlen=8)
        self._last: float | None = None

    def add(self, block: Sequence[str], now: float) -> None:
        """Add a block; the first one is due at once."""
        if self._last is not None:
            self._gaps.append(now - self._last)
        self._last = now
        for piece in self._pieces:
            piece.latest = min(piece.latest, now + LATE)
        spread = min(median(self._gaps), LONGEST) if self._gaps else 0.0
        self._pieces.extend(_Piece(text, now, now + spread) for text in block)
        step = spread / max(len(self._pieces), 1)
        for number, piece in enumerate(self._pieces):
            piece.due = min(now + number * step, piece.latest)

    def next_due(self) -> float | None:
        """Return the time of the first piece; None without one."""
        return self._pieces[0].due if self._pieces else None

    def take(self, now: float = float("inf")) -> list[str]:
        """Remove and return what is due by now."""
        taken = []
        while self._pieces and self._pieces[0].due <= now:
            taken.append(self._pieces.popleft().text)
        return taken


def pieces(text: str, count: int) -> list[str]:
    """Return a text cut into `count` parts of about the same length, without empty ones."""
    cuts = [len(text) * number // max(count, 1) for number in range(max(count, 1) + 1)]
    return [text[begin:end] for begin, end in itertools.pairwise(cuts) if end > begin]


class PacedOutput:
    """A context that writes text at an even pace on a thread of its own; its end writes what is left.

    `add` and the end raise what `write` raised.
    """

    def __init__(self, write: Callable[[str], object], clock: Callable[[], float] = time.monotonic) -> None:
        self._write, self._clock = write, clock
        self._pace = Pace()
        self._changed = threading.Condition()
        self._over = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="paced output", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._over = True
            self._changed.notify()
        self._thread.join()
        self._raise()

    def add(self, text: str, tokens: int) -> None:
        """Add the text of a block of so many tokens."""
        self._raise()
        if text:
            with self._changed:
                self._pace.add(pieces(text, tokens), self._clock())
                self._changed.notify()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        try:
            while (text := self._next()) is not None:
                self._write(text)
        except Exception as error:  # noqa: BLE001  (raised again on the thread that adds text)
            self._error = error

    def _next(self) -> str | None:
        """Wait for the text to write now; None at the end."""
        with self._changed:
            while not self._over:
                now, due = self._clock(), self._pace.next_due()
                if due is not None and due <= now:
                    return "".join(self._pace.take(now))
                self._changed.wait(None if due is None else due - now)
            return "".join(self._pace.take()) or None
