"""The options of the benchmarks' programs."""

import argparse
from pathlib import Path


class Options(argparse.ArgumentParser):
    """Parses a program's options; --help begins with the first line of its docstring."""

    def __init__(self, doc: str | None) -> None:
        lines = (doc or "").splitlines()
        super().__init__(description=lines[0])

    def option(self, flag: str, default: float | str | Path, text: str | None = None) -> None:
        """Add an option whose type is that of its default. text: its help."""
        self.add_argument(flag, type=type(default), default=default, help=text)

    def switch(self, flag: str, text: str | None = None) -> None:
        """Add an option without a value. text: its help."""
        self.add_argument(flag, action="store_true", help=text)


def numbers(text: str) -> list[int]:
    """Return the numbers of `2,3,5`; none for an empty text."""
    parts = filter(None, text.split(","))
    return list(map(int, parts))
