"""Runs the fault suite and writes docs/faults.md: each case, what is done, what must come, and what came.

python tools/faults.py          runs every test that shows a case, the slow ones too
python tools/faults.py --words  takes over what the tests say, with the results that stand there
"""

import ast
import datetime as dt
import platform
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PATH = ROOT / "docs" / "faults.md"

GROUPS = {
    "E1": ("Malformed frames", range(1, 17)),
    "E2": ("Frames at the wrong time", range(17, 29)),
    "E3": ("Death at each step", range(29, 39)),
    "E4": ("Networks", range(39, 51)),
    "E5": ("What runs out", range(51, 59)),
    "E6": ("Strangers and secrets", range(59, 74)),
    "E7": ("Settings and models", range(74, 86)),
    "E8": ("Starting, running, stopping", range(86, 100)),
}

WITHOUT_A_TEST = {
    "E5.58": (
        "a day of load, one request a second, with random kills",
        "memory and descriptors flat, every text right",
        "too long for tests: see the soak in bench/RESULTS.md",
    ),
}
"""Cases that no test shows: what would be done, what would have to come, and why there is none."""

HEAD = """# Faults, and what comes of them

Written by `make faults` from the tests themselves: each names the cases that it shows by the marker `fault`. Every case
also asserts that nobody crashes and that the text is the verifier's own; where something could grow, that it does not.

"""


@dataclass(slots=True)
class Case:
    """A case as its tests tell it, in the words of one or several; `tests` are (path from the root, function)."""

    done: list[str] = field(default_factory=list)
    must: list[str] = field(default_factory=list)
    tests: list[tuple[str, str]] = field(default_factory=list)


def cases() -> dict[str, Case]:
    """Every case that tests name. Raises ValueError for one that there is not, or that none has words for."""
    found: dict[str, Case] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for test, (name, *words) in _marked(ast.parse(path.read_text(encoding="utf-8"))):
            case, where = found.setdefault(name, Case()), (str(path.relative_to(ROOT)), test)
            for told, text in zip((case.done, case.must), words, strict=False):
                if text not in told:
                    told.append(text)
            if where not in case.tests:
                case.tests.append(where)
    for name, case in found.items():
        if name not in every() or not case.done or name in WITHOUT_A_TEST:
            raise ValueError(f"{name}, shown by {case.tests}, is no case, or is told by none or as without a test")
    return found


def every() -> list[str]:
    """The names of all cases."""
    return [f"{group}.{number}" for group, (_, numbers) in GROUPS.items() for number in numbers]


def _marked(tree: ast.Module) -> Iterator[tuple[str, list[str]]]:
    """(test, arguments) of each marker: on a test, on its parameters, or in a list that these are taken from."""
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
                            yield node.name, [str(ast.literal_eval(argument)) for argument in call.args]


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


def table(results: dict[str, str], ran: str) -> str:
    """The whole document, with what `results` says of each case and `ran` of the run."""
    found, parts = cases(), [HEAD, f"{ran}\n"]
    for group, (title, numbers) in GROUPS.items():
        parts.append(f"\n## {group}: {title}\n\n| case | what is done | what must come | what came | shown by |")
        parts.append("\n|---|---|---|---|---|\n")
        parts += [_row(f"{group}.{number}", found, results) for number in numbers]
    return "".join(parts)


def _row(name: str, found: dict[str, Case], results: dict[str, str]) -> str:
    if name in WITHOUT_A_TEST:
        done, must, reason = WITHOUT_A_TEST[name]
        return f"| {name} | {done} | {must} | not run: {reason} | |\n"
    if name not in found:
        raise ValueError(f"{name} is shown by no test: mark one, or say in WITHOUT_A_TEST why there is none")
    case = found[name]
    tests = ", ".join(f"[{test.removeprefix('test_')}](../{path})" for path, test in case.tests)
    return (
        f"| {name} | {'; '.join(case.done)} | {'; '.join(case.must)} | {results.get(name, 'not run yet')} | {tests} |\n"
    )


def read(document: str) -> tuple[dict[str, str], str]:
    """Results and run of a table as it stands."""
    rows = re.findall(r"^\| (E\d\.\d+) \|[^|]*\|[^|]*\| ([^|]*) \|", document, re.MULTILINE)
    run = re.search(r"^Last run: .*$", document, re.MULTILINE)
    return dict(rows), run[0] if run else "Last run: none yet."


def main() -> int:
    """What the process ends with: pytest's own exit code."""
    if "--words" in sys.argv:
        PATH.write_text(table(*read(PATH.read_text(encoding="utf-8") if PATH.exists() else "")), encoding="utf-8")
        return 0
    outcomes, began = Outcomes(), time.monotonic()
    words = ["-m", "fault", "--numprocesses", "2", "--dist", "loadfile", str(ROOT / "tests")]
    code = pytest.main(words, plugins=[outcomes])
    machine = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    took = f"{outcomes.tests} tests in {time.monotonic() - began:.0f} s"
    ran = f"Last run: {dt.datetime.now(dt.UTC).date()}, {machine}: {took}."
    PATH.write_text(table(outcomes.told(), ran), encoding="utf-8")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
