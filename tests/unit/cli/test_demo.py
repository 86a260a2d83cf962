"""What `specmesh demo` shows, and the step times that it imitates."""

import pytest
from rich.console import Console

from specmesh.cli.demo import result, screen
from specmesh.client import GeneratedText
from specmesh.machines import step_ms

REPORT = {
    "rounds": 4.0,
    "drafted": 8.0,
    "accepted": 6.0,
    "acceptance_rate": 0.75,
    "mean_acceptance_length": 2.5,
    "tokens_per_second": 100.0,
    "verify_ms": 76.0,
    "bytes_sent": 90.0,
    "bytes_received": 70.0,
}


def texts(second: list[int]) -> tuple[GeneratedText, GeneratedText]:
    before = REPORT | {"tokens_per_second": 40.0}
    alone = GeneratedText(pieces=[("one\ntwo\nthree", False)], ids=[1, 2], report=before)
    return alone, GeneratedText(pieces=[("one\n", False), ("two", True)], ids=second, report=REPORT)


@pytest.mark.parametrize(("rows", "expected"), [(0, 18.9), (1, 18.9), (3, 21.9), (5, 28.75), (9, 36.9), (512, 48.7)])
def test_step_times(rows: int, expected: float):
    assert step_ms("h100-70b", rows) == pytest.approx(expected)


@pytest.mark.parametrize(("ids", "same"), [([1, 2], True), ([1, 3], False)])
def test_result(ids: list[int], same: bool):
    found = result("h100-70b", *texts(ids))
    told = {"speedup": 2.5, "bytes_per_token": 80.0, "tokens_per_second_alone": 40.0, "same_text": same}
    assert found | told == found


def test_screen():
    """The last lines of both, side by side, drafts in green."""
    console = Console(width=60, force_terminal=True, color_system="standard")
    with console.capture() as captured:
        console.print(screen(texts([1, 2]), 4))
    _, first, second, _ = captured.get().splitlines()
    assert ("two" in first, "one" in first, "three" in second) == (True, True, True)
    assert "\x1b[32mtwo" in second
    assert "\x1b[32m" not in first
