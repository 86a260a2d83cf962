"""A text that comes in pieces, and generators that read it from its beginning.

A reader is written as if the whole text were there:

    name = yield from text.until("=")
    value = yield from read_value(text, syntax)

Each of these waits, by yielding, until enough has come. Whoever adds text calls `next` on the
outermost generator, and the reader goes on where it was. So there is no table of half-read states,
and a mark that comes in two pieces is found as well as a whole one.

Once `over` is set no reader waits: it returns "" or None for what did not come.
"""

import re
from collections.abc import Generator, Iterable
from typing import TypeVar

from specmesh.core.text.reasoning import begun, first_mark

T = TypeVar("T")
Reading = Generator[None, None, T]
"""Reads a part of a text and returns it. It yields until more of the text has come."""


class IncomingText:
    """The part of a text that came and was not read yet.

    kept: that part.
    over: no more will come.
    """

    def __init__(self) -> None:
        self.kept = ""
        self.over = False

    def add(self, text: str, *, over: bool) -> None:
        """Add the next piece; over: it is the last."""
        self.kept += text
        self.over = over

    @property
    def ended(self) -> bool:
        """Return True once everything was read and no more will come."""
        return self.over and not self.kept

    def drop(self, size: int) -> str:
        """Read so many letters that are there."""
        taken = self.kept[:size]
        self.kept = self.kept[size:]
        return taken

    def ahead(self, size: int) -> Reading[str]:
        """Return the next letters without reading them: fewer only at the text's end."""
        while len(self.kept) < size and not self.over:
            yield
        return self.kept[:size]

    def take(self, marks: Iterable[str], *, within: bool = False) -> Reading[str]:
        """Read the longest of the marks with which the text goes on; return "" if there is none.

        within: half a mark with which the text ends is read as well, though it is no text.
        """
        marks = tuple(marks)
        while not self.over and self._may_become(marks, longer=True):
            yield
        found = max(filter(self.kept.startswith, marks), key=len, default="")
        if not found and within and self._may_become(marks, longer=False):
            self.kept = ""
        return self.drop(len(found))

    def _may_become(self, marks: Iterable[str], *, longer: bool) -> bool:
        """Return whether all that is there begins a mark. longer: one that is not whole yet."""
        for mark in marks:
            whole = mark == self.kept
            if mark.startswith(self.kept) and not (longer and whole):
                return True
        return False

    def until(self, mark: str) -> Reading[str | None]:
        """Read up to a mark, and the mark; return the text before it.

        A text that ends without the mark is read to its end: then it is None.
        """
        seen = 0
        while (at := self.kept.find(mark, seen)) < 0:
            if self.over:
                self.kept = ""
                return None
            seen = max(len(self.kept) - len(mark), 0)
            yield
        text = self.drop(at)
        self.drop(len(mark))
        return text

    def letters(self, kind: re.Pattern[str], most: int) -> Reading[str]:
        """Read letters while each is of a kind, at most so many."""
        size = 0
        while size < most:
            found = yield from self.ahead(size + 1)
            if len(found) <= size or not kind.fullmatch(found[size]):
                break
            size += 1
        return self.drop(size)

    def before(self, marks: Iterable[str], *, half: int | None = None) -> tuple[str, str]:
        """Read up to the first of the marks, and the mark, without more of the text; return both.

        Half a mark at the end stays until the rest of it has come, or something other.
        half: at the end of a text that is over, so many letters of a mark or more are left.
        """
        marks = tuple(marks)
        end, mark = first_mark(self.kept, marks)
        if not mark:
            waiting = begun(self.kept, marks)
            if not self.over or (half is not None and waiting >= half):
                end -= waiting
        text = self.drop(end)
        self.drop(len(mark))
        return text, mark
