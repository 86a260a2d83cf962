"""What a terminal may be shown, and the progress of long work on stderr.

A bar is drawn again in its place, and is gone once the work has ended. Where a terminal asks for
plain lines, one is written every few seconds instead. Without a terminal nothing is written.
"""

import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Protocol, Self, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

QUIET_S = 1.0  # seconds that work may take without a word
REDRAW_S = 0.1  # least seconds between two drawings of a bar
LINE_S = 5.0  # least seconds between two plain lines about the same work

BAR_CELLS = 20
BAR_NEEDS = 72  # cells of a line with all that a bar shows; a narrower terminal gets the percents
ERASE_LINE = "\r\x1b[2K"

_NO_CONTROL = ("", "dumb", "unknown")
"""Values of TERM for terminals that only append lines."""


def is_plain() -> bool:
    """Return True if the user asks for text without colours and without redrawing.

    NO_COLOR does (no-color.org), a TERM without control sequences, and TTY_INTERACTIVE=0, as in
    rich. Users of a screen reader set one of them: no terminal reports a screen reader.
    """
    if os.environ.get("NO_COLOR") or os.environ.get("TTY_INTERACTIVE") == "0":
        return True
    return os.environ.get("TERM", "") in _NO_CONTROL


def redraws(stream: TextIO) -> bool:
    """Return True if this stream is a terminal that may be drawn again in place."""
    return stream.isatty() and not is_plain()


DRAFT_COLOURS = {
    "remote": "green",
    "suffix": "blue",
    "prediction": "yellow",
    "grammar": "magenta",
    "mtp": "red",
    "local": "cyan",
}
"""The colour of accepted drafts, by source."""

_CODES = {"red": 31, "green": 32, "yellow": 33, "blue": 34, "magenta": 35, "cyan": 36}


def underlined_draft(text: str, source: str) -> str:
    """Return accepted drafts underlined, in the colour of their source if it has one."""
    colour = DRAFT_COLOURS.get(source)
    style = "4" if colour is None else f"4;{_CODES[colour]}"
    return f"\x1b[{style}m{text}\x1b[24;39m"


def has_styles(stream: TextIO) -> bool:
    """Return True if text for this stream may be coloured; a file may unless NO_COLOR is set."""
    if stream.isatty():
        return not is_plain()
    return not os.environ.get("NO_COLOR")


class Display(Protocol):
    """The display of one piece of work after the other, until its context ends."""

    def show(self, title: str, done: float, total: float, unit: str = "") -> None:
        """Show that `done` of `total` is done.

        unit: "tokens", "bytes", or empty for a share only.
        """
        ...

    def clear(self) -> None:
        """Take the display away; the next call of `show` brings it back."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def progress(stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> Display:
    """Return the display for work that begins now.

    stream: of the display; by default stderr.
    clock: returns seconds.
    """
    shown_on = sys.stderr if stream is None else stream
    if not shown_on.isatty():
        return _NoDisplay()
    if is_plain():
        return _Lines(shown_on, clock)
    return _Bar(shown_on, clock)


class _NoDisplay:
    """The display where there is no terminal."""

    def show(self, title: str, done: float, total: float, unit: str = "") -> None:
        pass

    def clear(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class _Paced(ABC):
    """A display that is quiet at first, and then shows no more than its terminal should get."""

    def __init__(self, stream: TextIO, clock: Callable[[], float], interval: float) -> None:
        self._stream = stream
        self._clock = clock
        self._interval = interval
        self._next = clock() + QUIET_S
        self._title = ""

    def show(self, title: str, done: float, total: float, unit: str = "") -> None:
        now = self._clock()
        is_new = bool(self._title) and title != self._title
        if now < self._next and not is_new:
            return
        self._title = title
        self._next = now + self._interval
        self._draw(title, done, total, amount(done, total, unit))

    @abstractmethod
    def clear(self) -> None: ...

    @abstractmethod
    def _draw(self, title: str, done: float, total: float, counted: str) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()


class _Lines(_Paced):
    """Plain lines for a terminal that is not to be redrawn."""

    def __init__(self, stream: TextIO, clock: Callable[[], float]) -> None:
        super().__init__(stream, clock, LINE_S)

    def clear(self) -> None:
        pass

    def _draw(self, title: str, done: float, total: float, counted: str) -> None:
        line = f"specmesh: {title}: {share(done, total):.0%}"
        if counted:
            line += f", {counted}"
        print(line, file=self._stream, flush=True)


class _Bar(_Paced):
    """A bar in one line of a terminal.

    shown: True while this process has one on its terminal.
    """

    shown: ClassVar[bool] = False

    def __init__(self, stream: TextIO, clock: Callable[[], float]) -> None:
        super().__init__(stream, clock, REDRAW_S)
        self._drawn: RichProgress | None = None
        self._drawn_title = ""

    def _draw(self, title: str, done: float, total: float, counted: str) -> None:
        if self._drawn is None or self._drawn_title != title:
            self.clear()
            self._drawn = _rich_progress(self._stream, self._clock)
            self._drawn_title = title
            self._drawn.add_task(title)
        [task] = self._drawn.task_ids
        self._drawn.update(task, completed=done, total=total, amount=counted)
        self._drawn.start()  # once; it draws nothing again
        self._drawn.refresh()
        _Bar.shown = True

    def clear(self) -> None:
        if self._drawn is not None:
            self._drawn.stop()
            self._drawn = None
            _Bar.shown = False


def _rich_progress(stream: TextIO, clock: Callable[[], float]) -> "RichProgress":
    """Return rich's display of progress in one line, without a thread that draws it."""
    from rich import progress as bars
    from rich.console import Console
    from rich.table import Column

    class WithCursor(Console):
        """A console that keeps its cursor: a process may end without giving it back."""

        def show_cursor(self, show: bool = True) -> bool:
            return show

    def text(format_: str) -> bars.TextColumn:
        return bars.TextColumn(format_, markup=False, table_column=Column(no_wrap=True))

    console = WithCursor(file=stream, force_terminal=True, force_interactive=True)
    columns: list[bars.ProgressColumn] = [text("{task.percentage:>3.0f}% {task.description}")]
    if console.width >= BAR_NEEDS:
        columns = [
            text("{task.description}"),
            bars.BarColumn(BAR_CELLS),
            text("{task.percentage:>3.0f}%"),
            text("{task.fields[amount]}"),
            bars.TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
        ]
    return bars.Progress(
        *columns,
        console=console,
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        get_time=clock,
    )


def share(done: float, total: float) -> float:
    """Return the part of the work that is done, from 0 to 1; 0 for no work."""
    if total <= 0:
        return 0.0
    return min(max(done / total, 0.0), 1.0)


def amount(done: float, total: float, unit: str) -> str:
    """Return both amounts with their unit, such as "2,700 of 6,000 tokens"."""
    if unit == "bytes":
        from rich.filesize import decimal

        return f"{decimal(int(done))} of {decimal(int(total))}"
    if unit:
        return f"{done:,.0f} of {total:,.0f} {unit}"
    return ""


def bar_eraser() -> str:
    """Return the characters that erase this process's bar, if it has one on its terminal.

    Other lines for the terminal begin with them; the bar is drawn again below.
    """
    return ERASE_LINE if _Bar.shown else ""
