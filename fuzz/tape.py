"""An input's bytes as choices."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Tape:
    """Reads its bytes in order, and zeros for ever once they are used up: every input is a whole script."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def left(self) -> bool:
        return self._at < len(self._data)

    def take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        self._at += count
        return taken

    def byte(self) -> int:
        return self.number(1)

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def choice(self, options: Sequence[T]) -> T:
        return options[self.byte() % len(options)]
