"""Fills docs/faults.md, whose words are written by hand: which tests show each case, and what came of them.

python tools/faults.py          runs every test that shows a case, the slow ones too
python tools/faults.py --links  looks up the tests only
"""

import ast
import datetime as dt
import platform
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PATH = ROOT / "docs" / "faults.md"
ROW = re.compile(r"^\| E\d\.(\d+) \|.*$", re.MULTILINE)
LAST_RUN = re.compile(r"^Last run: .*$", re.MULTILINE)
NOT_RUN = "not run: "
"""What came of a case that no test shows, with the reason after it."""


def tests_of_cases() -> dict[str, list[str]]:
    """Links to the tests that the marker `fault` says to show a case, by the case's name."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for test, case in _marked(ast.parse(path.read_text(encoding="utf-8"))):
            link = f"[{test.removeprefix('test_')}](../{path.relative_to(ROOT)})"
            if link not in found.setdefault(case, []):
                found[case].append(link)
    return found


def _marked(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(test, case) of each marker: on a test, on its parameters, or in a list that these are taken from."""
    lists = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            for decorator in node.decorator_list:
                names = {inner.id for inner in ast.walk(decorator) if isinstance(inner, ast.Name)}
                for part in (decorator, *(lists[name] for name in sorted(names) if name in lists)):
                    for call in ast.walk(part):
                        if isinstance(call, ast.Call) and ast.unparse(call.func) in {"fault", "pytest.mark.fault"}:
                            yield node.name, str(ast.literal_eval(call.args[0]))


def filled(document: str, results: dict[str, str] | None = None) -> str:
    """The document with the tests of each case, and with `results` where the tests were run.

    Raises ValueError for a case that no test shows and no reason excuses, and for one that the document does not have.
    """
    links = tests_of_cases()

    def row(match: re.Match[str]) -> str:
        name, done, must, came, _ = (cell.strip() for cell in match[0].strip("|").split("|"))
        shown_by = links.pop(name, [])
        if bool(shown_by) == came.startswith(NOT_RUN):
            raise ValueError(f"{name}: mark a test that shows it, or say '{NOT_RUN}' and why there is none")
        if shown_by and results is not None:
            came = results.get(name, "not run yet")
        return f"| {name} | {done} | {must} | {came} | {', '.join(shown_by)} |"

    document = ROW.sub(row, document)
    if links:
        raise ValueError(f"no cases of {PATH.name}: {links}")
    return document


class Outcomes:
    """A pytest plugin that notes what came of the tests of each case."""

    def __init__(self) -> None:
        self.results: dict[str, Counter[str]] = {}
        self.tests = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the call, or what kept it from happening."""
        if report.when != "call" and report.outcome == "passed":
            return
        outcome = str(report.outcome)
        if report.skipped and isinstance(report.longrepr, tuple):
            outcome = "skipped: " + report.longrepr[2].removeprefix("Skipped: ")
        self.tests += report.when == "call"
        for name, case in report.user_properties:
            if name == "fault":
                self.results.setdefault(str(case), Counter())[outcome] += 1

    def told(self) -> dict[str, str]:
        """The cells of the table."""
        return {case: ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
                for case, counts in self.results.items()}  # fmt: skip


def main() -> int:
    """What the process ends with: pytest's own exit code."""
    document, code = PATH.read_text(encoding="utf-8"), 0
    if "--links" in sys.argv:
        document = filled(document)
    else:
        outcomes, began = Outcomes(), time.monotonic()
        words = ["-m", "fault", "--numprocesses", "2", "--dist", "loadfile", str(ROOT / "tests")]
        code = int(pytest.main(words, plugins=[outcomes]))
        machine = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
        took = f"{outcomes.tests} tests in {time.monotonic() - began:.0f} s"
        ran = f"Last run: {dt.datetime.now(dt.UTC).date()}, {machine}: {took}."
        document = LAST_RUN.sub(ran, filled(document, outcomes.told()))
    PATH.write_text(document, encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
