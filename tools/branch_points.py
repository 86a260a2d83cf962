"""Branch points of a folder's modules: if, elif, for, while, except, case, and, or, in comprehensions too.

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
    """Return how often a module decides."""
    nodes = list(ast.walk(ast.parse(source)))
    decided = sum(isinstance(node, BRANCHES) for node in nodes)
    filtered = sum(len(node.ifs) for node in nodes if isinstance(node, ast.comprehension))
    joined = sum(len(node.values) - 1 for node in nodes if isinstance(node, ast.BoolOp))
    return decided + filtered + joined


def main() -> None:
    """Print a line for each folder."""
    for folder in sys.argv[1:] or ("specmesh/core", "daemons"):
        files = sorted(Path(folder).rglob("*.py"))
        print(
            f"{sum(branch_points(file.read_text()) for file in files):6} {folder} ({len(files)} files)"
        )


if __name__ == "__main__":
    main()
