"""Daemons as processes for the end-to-end tests."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # test folders are no packages; these helpers are

from meshes import daemon, logs, mesh, pair, proxy, role, served, server, shared

__all__ = ["daemon", "logs", "mesh", "pair", "proxy", "role", "served", "server", "shared"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.e2e)
