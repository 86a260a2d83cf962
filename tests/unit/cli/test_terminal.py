"""Progress on a terminal: its pace, its lines, and when there is none."""

import io

import pytest
from harness.tables import cases

from specmesh import terminal
from specmesh.terminal import amount, has_styles, is_plain, progress, redraws, share


class Screen(io.StringIO):
    """A terminal that keeps what is written."""

    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def xterm(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("TTY_INTERACTIVE", raising=False)


@pytest.fixture
def run():
    """Show amounts at times, both from 0 to a total; return what a stream got."""

    def shown(stream, times, total=100, unit="tokens"):
        now = 0.0
        with progress(stream, lambda: now) as display:
            for now in times:  # the clock above reads it
                display.show("reading", now, total, unit)
        return stream.getvalue()

    return shown


def test_nothing_without_a_terminal(run):
    assert run(io.StringIO(), range(100)) == ""


@pytest.mark.parametrize("plain", [False, True])
def test_nothing_about_short_work(run, monkeypatch, plain):
    monkeypatch.setenv("NO_COLOR", str(plain) if plain else "")
    assert run(Screen(), [0.0, 0.5, 0.9]) == ""


def test_a_plain_line_every_few_seconds(run, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    seconds = [number / 10 for number in range(130)]
    assert run(Screen(), seconds).splitlines() == [
        "specmesh: reading: 1%, 1 of 100 tokens",
        "specmesh: reading: 6%, 6 of 100 tokens",
        "specmesh: reading: 11%, 11 of 100 tokens",
    ]


def test_a_bar_is_drawn_at_most_ten_times_a_second(run):
    milliseconds = [1 + number / 1000 for number in range(1000)]
    drawn = run(Screen(), milliseconds)
    assert 5 < drawn.count(terminal.ERASE_LINE) < 15


def test_a_bar_keeps_the_cursor(run):
    assert "\x1b[?25" not in run(Screen(), [1.0, 2.0])


def test_a_line_of_the_log_erases_the_bar():
    """Only while there is one."""
    now = 0.0
    with progress(Screen(), lambda: now) as display:
        before = terminal.bar_eraser()
        now = 2.0
        display.show("reading", 1, 2)
        during = terminal.bar_eraser()
    assert (before, during, terminal.bar_eraser()) == ("", terminal.ERASE_LINE, "")


@cases(
    "name, value, plain",
    """
    ["NO_COLOR", "1", true]
    ["NO_COLOR", "", false]
    ["TERM", "dumb", true]
    ["TERM", "unknown", true]
    ["TERM", "", true]
    ["TERM", "vt100", false]
    ["TTY_INTERACTIVE", "0", true]
    ["TTY_INTERACTIVE", "1", false]
    """,
)
def test_what_makes_a_terminal_plain(monkeypatch, name, value, plain):
    monkeypatch.setenv(name, value)
    assert is_plain() == plain
    assert redraws(Screen()) == has_styles(Screen()) == (not plain)


def test_a_file_is_never_drawn_again():
    assert not redraws(io.StringIO())


def test_a_file_has_styles_unless_nobody_wants_any(monkeypatch):
    assert has_styles(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not has_styles(io.StringIO())


@cases(
    "done, total, unit, expected",
    """
    [2700, 6000, "tokens", "2,700 of 6,000 tokens"]
    [1500000, 3000000000, "bytes", "1.5 MB of 3.0 GB"]
    [0.5, 1, "", ""]
    """,
)
def test_amounts(done, total, unit, expected):
    assert amount(done, total, unit) == expected


@cases("done, total, expected", "[1, 4, 0.25] [5, 4, 1.0] [-1, 4, 0.0] [0, 0, 0.0]")
def test_shares(done, total, expected):
    assert share(done, total) == expected
