"""Commands of ours on a terminal, and the text that is on its screen afterwards."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import Self

from processes import PATIENCE, edited, environment

CONTROL = re.compile(r"\x1b\[[\d;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+")
AT_ONCE = "from specmesh import terminal; terminal.QUIET_S = terminal.REDRAW_S = 0.0"
"""A line of Python by which a command shows all progress, however soon it comes."""

XTERM = {"TERM": "xterm", "NO_COLOR": "", "TTY_INTERACTIVE": "", "COLUMNS": "", "LINES": ""}


class OnTerminal:
    """`specmesh WORDS` on a terminal of its own, until the context ends.

    env: changes of its environment. columns: of the terminal. piped: stdout is a pipe.
    seen: all that it wrote to the terminal so far.
    """

    def __init__(
        self,
        *words: object,
        env: dict[str, str] | None = None,
        columns: int = 80,
        piped: bool = False,
        before: Sequence[str] = (AT_ONCE,),
    ) -> None:
        self._ours, theirs = pty.openpty()
        self.resize(columns)
        self.seen = ""
        self._decoder = getincrementaldecoder("utf-8")()  # a part may end within a character
        variables = environment(XTERM | (env or {}))
        self.process = subprocess.Popen(
            [*edited(*before), *map(str, words)],
            stdin=theirs,
            stdout=subprocess.PIPE if piped else theirs,
            stderr=theirs,
            env={name: value for name, value in variables.items() if value},
            start_new_session=True,
        )
        os.close(theirs)

    def resize(self, columns: int) -> None:
        size = struct.pack("HHHH", 24, columns, 0, 0)
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, size)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def until(self, words: str) -> str:
        """Read on until the terminal has got these words."""
        while words not in self.seen:
            assert self.read(), f"it ended: {self.seen!r}"
        return self.seen

    def end(self) -> int:
        """Read until it closes its terminal, and return its exit code."""
        while self.read():
            pass
        return self.process.wait(PATIENCE)

    def read(self) -> bool:
        """Wait for more; return False if it has closed its terminal."""
        try:
            part = os.read(self._ours, 65536)
        except OSError:  # Linux's way to end it
            return False
        self.seen += self._decoder.decode(part)
        return bool(part)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.process.wait(PATIENCE)
        os.close(self._ours)


def screen(text: str) -> list[str]:
    """Return the lines that a terminal shows after this text; each of its bars fits in a line."""
    lines = [""]
    row = column = 0
    for part in CONTROL.findall(text):
        if part == "\r":
            column = 0
        elif part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part == "\x1b[2K":
            lines[row] = ""
        elif part == "\x1b[1A":
            row -= 1
        elif not part.startswith("\x1b"):
            lines[row] = lines[row].ljust(column)[:column] + part + lines[row][column + len(part) :]
            column += len(part)
    return lines
