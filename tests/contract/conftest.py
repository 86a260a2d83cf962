"""Interfaces for users and other programs. Daemons as processes, and on threads of this process."""

from collections.abc import Iterator

import pytest
from harness.loops import Bench
from meshes import logs, mesh, proxy, role, shared

__all__ = ["logs", "mesh", "proxy", "role", "shared"]


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()
