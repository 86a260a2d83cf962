"""docs/faults.md names the tests that there are, and every case is shown by one or has a reason for it."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("faults", ROOT / "tools" / "faults.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_is_current(tool: ModuleType):
    """A case without a test that gives no reason, and a test of no case, are errors."""
    assert tool.filled(DOCUMENT) == DOCUMENT, "run `make docs`"


def test_every_case_is_there(tool: ModuleType):
    assert [int(number) for number in tool.ROW.findall(DOCUMENT)] == sorted({*range(1, 100)} - {70, 82})
    assert DOCUMENT.count(tool.NO_TEST) < 4
