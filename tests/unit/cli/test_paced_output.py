"""Text at an even pace, by a clock of the test's."""

import threading

import pytest

from specmesh.cli.streaming import PacedOutput


class Written:
    """What was written, and when there was more."""

    def __init__(self) -> None:
        self.text = ""
        self.more = threading.Event()

    def __call__(self, text: str) -> None:
        self.text += text
        self.more.set()

    def until(self, text: str) -> None:
        while self.text != text:
            assert self.more.wait(20), self.text
            self.more.clear()


def test_what_is_not_due_comes_at_the_end():
    """The first block at once, of the next as much as is due; all of it once the text has ended."""
    written, now = Written(), 0.0
    with PacedOutput(written, lambda: now) as output:
        output.add("abcd", 2)
        written.until("abcd")
        now = 50.0
        output.add("", 3)
        output.add("efgh", 2)
        written.until("abcdef")
    assert written.text == "abcdefgh"


def test_an_interrupted_text_is_shown_as_far_as_it_came():
    """And the error goes on."""
    written = Written()

    def interrupted() -> None:
        with PacedOutput(written, lambda: 0.0) as output:
            output.add("ab", 1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert written.text == "ab"
