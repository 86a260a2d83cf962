"""Fills in docs/faults.md, whose words are written by hand, which tests show each case: `make docs` runs it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATH = ROOT / "docs" / "faults.md"
ROW = re.compile(r"^\| E\d\.(\d+) \|.*$", re.MULTILINE)
NO_TEST = "no test: "
"""In place of the tests, with the reason after it."""


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
                        if isinstance(call, ast.Call) and ast.unparse(call.func) in {
                            "fault",
                            "pytest.mark.fault",
                        }:
                            yield node.name, str(ast.literal_eval(call.args[0]))


def filled(document: str) -> str:
    """Return the document with the tests of each case. Raise ValueError for a case that no test shows and no reason
    excuses, and for one that the document does not have."""
    links = tests_of_cases()

    def row(match: re.Match[str]) -> str:
        name, done, must, shown_by = (cell.strip() for cell in match[0].strip("|").split("|"))
        tests = links.pop(name, [])
        if bool(tests) == shown_by.startswith(NO_TEST):
            raise ValueError(
                f"{name}: mark a test that shows it, or say '{NO_TEST}' and why there is none"
            )
        return f"| {name} | {done} | {must} | {', '.join(tests) or shown_by} |"

    document = ROW.sub(row, document)
    if links:
        raise ValueError(f"no cases of {PATH.name}: {links}")
    return document


if __name__ == "__main__":
    PATH.write_text(filled(PATH.read_text(encoding="utf-8")), encoding="utf-8")
