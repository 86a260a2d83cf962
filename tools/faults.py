"""Fill the tests of each case into docs/faults.md, whose words are written by hand.

`make docs` runs it.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATH = ROOT / "docs" / "faults.md"
ROW = re.compile(r"^\| E\d\.(\d+) \|.*$", re.MULTILINE)
MARKERS = {"fault", "pytest.mark.fault"}
NO_TEST = "no test: "
"""Stands in place of the tests, before the reason."""


def tests_of_cases() -> dict[str, list[str]]:
    """Return links to the tests of each case, by the marker `fault`."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for test, case in _marked(ast.parse(path.read_text(encoding="utf-8"))):
            link = f"[{test.removeprefix('test_')}](../{path.relative_to(ROOT)})"
            if link not in found.setdefault(case, []):
                found[case].append(link)
    return found


def _marked(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield (test, case) for each marker of a test.

    The marker may stand on the test, on its parameters, or in a list of parameters of the module.
    """
    lists: dict[str, ast.expr] = {}
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(name)], value=value):
                lists[name] = value
            case _:
                pass
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            for decorator in node.decorator_list:
                for case in _cases(decorator, lists):
                    yield node.name, case


def _cases(decorator: ast.expr, lists: dict[str, ast.expr]) -> Iterator[str]:
    names = {node.id for node in ast.walk(decorator) if isinstance(node, ast.Name)}
    used = [lists[name] for name in sorted(names & lists.keys())]
    for part in (decorator, *used):
        for call in ast.walk(part):
            if isinstance(call, ast.Call) and ast.unparse(call.func) in MARKERS:
                for argument in call.args:
                    yield str(ast.literal_eval(argument))


def filled(document: str) -> str:
    """Return the document with the tests of each case.

    Raise ValueError for a case without a test and a reason, and for one that the document lacks.
    """
    links = tests_of_cases()

    def row(match: re.Match[str]) -> str:
        cells = list(map(str.strip, match[0].strip("|").split("|")))
        name = cells[0]
        tests = links.pop(name, [])
        if bool(tests) == cells[-1].startswith(NO_TEST):
            advice = f"mark a test that shows it, or write '{NO_TEST}' and a reason"
            raise ValueError(f"{name}: {advice}")
        if tests:
            cells[-1] = ", ".join(tests)
        return f"| {' | '.join(cells)} |"

    document = ROW.sub(row, document)
    if links:
        raise ValueError(f"no cases of {PATH.name}: {links}")
    return document


if __name__ == "__main__":
    PATH.write_text(filled(PATH.read_text(encoding="utf-8")), encoding="utf-8")
