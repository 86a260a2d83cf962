"""Loops on threads for the tests of the daemons."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # test folders are no packages; these helpers are

from gate import closed, gate
from harness.loops import Bench

__all__ = ["closed", "gate"]


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()
