"""docs/faults.md is what the tests say, and every case is shown by one or has a reason for it."""

import ast
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


def test_markers_are_found_where_they_may_stand(tool: ModuleType):
    text = """
CASES = [pytest.param(1, marks=fault("E1.1", "done", "must"))]
OTHERS = [pytest.param(1, marks=fault("E1.4"))]
@pytest.mark.parametrize("x", CASES)
@pytest.mark.parametrize("y", [pytest.param(2, marks=[pytest.mark.fault("E1.2")])])
@fault("E1.3")
def test_a(x, y): ...
class TestB:
    @pytest.mark.fault("E1.1")
    def test_b(self): ...
"""
    found = sorted(tool._marked(ast.parse(text)))
    assert found == [
        ("test_a", ["E1.1", "done", "must"]),
        ("test_a", ["E1.2"]),
        ("test_a", ["E1.3"]),
        ("test_b", ["E1.1"]),
    ]
