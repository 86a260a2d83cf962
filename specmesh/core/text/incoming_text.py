"""A text that comes in pieces, read from its beginning by generators that yield where they take
more of it."""

import re
from collections.abc import Generator, Iterable
from typing import TypeVar

from specmesh.core.text.reasoning import begun, first_mark

T = TypeVar("T")
Reading = Generator[None, None, T]
"""Reads a part of a text. It yields where it takes more of the text to go on, and returns what it
read."""


class IncomingText:
    """What came of a text and was not read yet. over: no more will come."""

    def __init__(self) -> None:
        self.kept = ""
        self.over = False

    def add(self, text: str, *, over: bool) -> None:
        self.kept += text
        self.over = over

    @property
    def ended(self) -> bool:
        """Return True once everything was read and no more will come."""
        return self.over and not self.kept

    def drop(self, size: int) -> str:
        """Read so many letters that are there."""
        taken, self.kept = self.kept[:size], self.kept[size:]
        return taken

    def ahead(self, size: int) -> Reading[str]:
        """Return the next letters without reading them: fewer only at the text's end."""
        while len(self.kept) < size and not self.over:
            yield
        return self.kept[:size]

    def take(self, marks: Iterable[str], *, within: bool = False) -> Reading[str]:
        """Read the longest of the marks with which the text goes on; return "" where there is none.
        within: half a mark with which the text ends is read as well, though it is no text."""
        marks = tuple(marks)
        while not self.over and self._may_become(marks, longer=True):
            yield
        found = max((mark for mark in marks if self.kept.startswith(mark)), key=len, default="")
        if found or not within or not self._may_become(marks, longer=False):
            return self.drop(len(found))
        self.kept = ""
        return ""

    def _may_become(self, marks: Iterable[str], *, longer: bool) -> bool:
        """Return whether all that is there begins a mark. longer: one that is not whole yet."""
        begun_marks = [mark for mark in marks if mark.startswith(self.kept)]
        return any(not longer or mark != self.kept for mark in begun_marks)

    def until(self, mark: str) -> Reading[str | None]:
        """Read up to a mark, and the mark; return the text before it. None where the text is over
        first: then all of it is read."""
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
        """Read what is there up to the first of the marks, and the mark; return both. Half a mark
        at the end stays until it is known what it becomes. half: where the text is over, so many
        letters of a mark or more are left."""
        marks = tuple(marks)
        end, mark = first_mark(self.kept, marks)
        if not mark:
            waiting = begun(self.kept, marks)
            if not self.over or (half is not None and waiting >= half):
                end -= waiting
        text = self.drop(end)
        self.drop(len(mark))
        return text, mark
