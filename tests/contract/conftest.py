"""What users and other programs build on: schemas recorded as golden files."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # test folders are no packages; these helpers are
sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))

from meshes import logs, mesh, proxy, role, shared

__all__ = ["logs", "mesh", "proxy", "role", "shared"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark those tests of this folder that start processes."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and {"mesh", "shared"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.e2e)
