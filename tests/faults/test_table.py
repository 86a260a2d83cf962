"""docs/faults.md is what the tests say, and every case is shown by one or has a reason for it."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("faults", ROOT / "tools" / "faults.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_is_current(tool: ModuleType):
    """Its words and tests are those of the markers now; a case without a test that gives no reason is an error."""
    document = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    assert document == tool.table(*tool.read(document)), "run `make docs`, or `make faults`"


def test_there_are_99_cases(tool: ModuleType):
    assert [int(name.split(".")[1]) for name in tool.every()] == list(range(1, 100))
    assert len(tool.WITHOUT_A_TEST) < 4
