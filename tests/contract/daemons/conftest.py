"""Daemons on threads of this process."""

from collections.abc import Iterator

import pytest
from harness.loops import Bench


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()
