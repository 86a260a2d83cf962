"""Count branch points of modules: if, elif, for, while, except, case, and, or, comprehensions.

    python tools/branch_points.py [FOLDER ...]

Shells decide nothing: daemons/ should have at most a third of what specmesh/core has.
"""

import ast
import sys
from pathlib import Path

BRANCHES = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.match_case,
    ast.comprehension,
)


def branch_points(source: str) -> int:
    """Return the number of branch points of a module."""
    count = 0
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, BRANCHES):
            count += 1
        if isinstance(node, ast.comprehension):
            count += len(node.ifs)
        elif isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
    return count


def main() -> None:
    """Print a line for each folder."""
    for folder in sys.argv[1:] or ("specmesh/core", "daemons"):
        files = sorted(Path(folder).rglob("*.py"))
        count = sum(branch_points(file.read_text()) for file in files)
        print(f"{count:6} {folder} ({len(files)} files)")


if __name__ == "__main__":
    main()
