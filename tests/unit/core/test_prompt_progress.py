"""How far a prompt is read: when a client gets a report, and how long the steps are."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmesh.core.requests import PromptRead
from specmesh.core.verifier.prompt_progress import PromptProgress

TOTAL = 6000
SECONDS = st.lists(st.floats(1e-4, 5.0), min_size=1, max_size=40)


def reports_of(seconds, rows=128):
    """Return the reports of steps of so many seconds, one after the other, and their times."""
    now = 100.0
    progress = PromptProgress(TOTAL, 10, now)
    found = []
    read = 10
    for step in seconds:
        read += rows
        reports = progress.read(read, rows, now, now + step)
        now += step
        found += [(now, report) for report in reports]
    return found


def test_a_short_prompt_has_none():
    assert reports_of([0.1, 0.1]) == []


def test_a_report_has_the_ids_and_the_time_since_the_session_began():
    [(_, report)] = reports_of([0.2, 0.2])
    assert report._replace(seconds=round(report.seconds, 6)) == PromptRead(TOTAL, 10, 266, 0.4)


@given(SECONDS)
def test_reports_keep_apart(seconds):
    times = [100.0] + [time for time, _ in reports_of(seconds)]
    assert all(after - before >= 0.25 for before, after in pairwise(times))


@given(SECONDS)
def test_a_second_of_short_steps_has_a_report(seconds):
    short = [min(step, 0.7) for step in seconds]
    times = [100.0] + [time for time, _ in reports_of(short)] + [100.0 + sum(short)]
    assert all(after - before <= 1 for before, after in pairwise(times))


def test_the_first_step_is_short():
    assert PromptProgress(TOTAL, 0, 1.0).most_rows == 256


@pytest.mark.parametrize(
    ("rows", "seconds", "most_rows"),
    [
        (256, 1.0, 512),
        (512, 0.5, 2048),
        (512, 1.5, 512),  # not 682
        (512, 2.5, 256),  # not 409
        (256, 2.1, None),
        (512, 60.0, None),
        (256, 0.0, 256),  # a clock that stands still tells nothing
    ],
)
def test_a_step_has_rows_for_a_moment(rows, seconds, most_rows):
    progress = PromptProgress(TOTAL, 0, 1.0)
    progress.read(rows, rows, 1.0, 1.0 + seconds)
    assert progress.most_rows == most_rows
