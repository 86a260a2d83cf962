"""Interfaces for users and other programs. Daemons as processes, and on threads of this process."""

import pytest
from harness.loops import Bench
from meshes import logs, mesh, proxy, role, shared

__all__ = ["logs", "mesh", "proxy", "role", "shared"]


@pytest.fixture
def bench():
    made = Bench()
    yield made
    made.close()
