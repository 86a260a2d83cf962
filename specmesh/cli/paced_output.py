"""Text onto a terminal at an even pace, written by a thread of its own while the next is waited for."""

import threading
import time
from collections.abc import Callable
from typing import Self

from specmesh.core.pace import Pace, pieces


class PacedOutput:
    """As a context: what is left at its end is written at once. `write` is called from one thread at a time; what it
    raises is raised again by whoever adds the next text, or at the end."""

    def __init__(self, write: Callable[[str], object], clock: Callable[[], float] = time.monotonic) -> None:
        self._write, self._clock = write, clock
        self._pace = Pace[str]()
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
        """The text of a block of so many tokens has come; one without text is none."""
        self._raise()
        if not text:
            return
        with self._changed:
            self._pace.add(pieces(text, tokens), self._clock())
            self._changed.notify()

    def _raise(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _run(self) -> None:
        try:
            while (text := self._next()) is not None:
                self._write(text)
        except Exception as error:  # noqa: BLE001  (raised again on the thread that adds text)
            self._error = error

    def _next(self) -> str | None:
        """The text to write now, once there is some; None at the end."""
        with self._changed:
            while not self._over:
                now, due = self._clock(), self._pace.next_due()
                if due is not None and due <= now:
                    return "".join(self._pace.take(now))
                self._changed.wait(None if due is None else due - now)
            return "".join(self._pace.rest()) or None
