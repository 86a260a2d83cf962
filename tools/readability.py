"""Check how a Python package reads.

    python tools/readability.py [PACKAGE ...]

A ruler that counts lines rewards packing. This one counts what a reader holds in mind: tokens of a
statement, comprehensions, ternaries, packed assignments, positional arguments and the wording of
docstrings. The limits come from measurements of h11, websockets, structlog, starlette, mini-sglang
and mlx-lm.

The exit code is 1 if a package exceeds one of them.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("specmesh", "wire", "daemons", "tests", "fuzz", "soak", "bench", "tools")

COLUMNS = 100
MOST_TARGETS = 2
MOST_POSITIONAL = 5
MOST_POSITIONAL_FIELDS = 4
MOST_DIALECT = 8.0

LAYOUT = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NL,
}
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
ARITHMETIC = (ast.Add, ast.Sub, ast.Mult)
RECORDS = {"pack", "pack_into", "array", "zeros", "full", "einsum", "where"}
"""Functions of struct and numpy, whose positional arguments are data."""
DIALECT = re.compile(
    r"\b(what|where|who|said|says|hears?|heard|tell|tells|told|besides?|else|alone)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The most that a package may have; the last three are per 1,000 statements."""

    mean: float = 10.0
    median: int = 8
    p90: int = 20
    file_mean: float = float("inf")
    comprehensions: float = 20.0
    nested: float = 0.5
    ternaries: float = 15.0


PRODUCT = Limits()
TESTS = Limits(mean=11.0, median=9, p90=22, file_mean=13.0, comprehensions=30.0, nested=1.0)


@dataclass(kw_only=True)
class Reading:
    """The counts of one package."""

    tokens: list[int] = field(default_factory=list[int])
    file_means: dict[str, float] = field(default_factory=dict[str, float])
    comprehensions: int = 0
    nested: int = 0
    ternaries: int = 0
    words: int = 0
    dialect: int = 0
    faults: list[str] = field(default_factory=list[str])

    def per_thousand(self, count: int) -> float:
        """Return a count per 1,000 statements."""
        return 1000 * count / max(len(self.tokens), 1)

    def mean(self) -> float:
        """Return the mean number of tokens of a statement."""
        return sum(self.tokens) / len(self.tokens)

    def percentile(self, percent: int) -> int:
        """Return a percentile of the tokens of a statement, which are sorted."""
        place = len(self.tokens) * percent // 100
        return self.tokens[place]

    def dialect_rate(self) -> float:
        """Return the dialect words per 1,000 words of docstrings."""
        return 1000 * self.dialect / max(self.words, 1)


def python_files(package: Path) -> list[Path]:
    """Return the package's own files: links lead to packages that are read by themselves."""
    found: list[Path] = []
    for path in sorted(package.rglob("*.py")):
        inside_link = any(parent.is_symlink() for parent in path.parents)
        if not inside_link:
            found.append(path)
    return found


def statement_sizes(source: str, docstring_lines: set[int]) -> list[int]:
    """Return the number of tokens of each statement, docstrings left out."""
    sizes: list[int] = []
    size = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NEWLINE:
            if size and token.start[0] not in docstring_lines:
                sizes.append(size)
            size = 0
        elif token.type not in LAYOUT:
            size += 1
    return sizes


def is_record_call(call: ast.Call) -> bool:
    """Return True for a call of struct's or numpy's, whose arguments are data."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else None
    return name in RECORDS


def is_dataclass(node: ast.ClassDef) -> bool:
    """Return True for a class with the dataclass decorator."""
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def has_positional_fields(node: ast.ClassDef) -> bool:
    """Return True for a dataclass of five or more fields that are not keyword-only."""
    if not is_dataclass(node):
        return False
    fields = [item for item in node.body if isinstance(item, ast.AnnAssign)]
    decorators = "".join(ast.unparse(decorator) for decorator in node.decorator_list)
    return len(fields) > MOST_POSITIONAL_FIELDS and "kw_only=True" not in decorators


def is_packed(node: ast.Assign) -> bool:
    """Return True for an assignment of a tuple to three or more targets."""
    if not isinstance(node.value, ast.Tuple):
        return False
    tuples = [target for target in node.targets if isinstance(target, ast.Tuple)]
    return any(len(target.elts) > MOST_TARGETS for target in tuples)


def is_truth_value(node: ast.expr) -> bool:
    """Return True for an expression whose value is True or False."""
    negated = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    return negated or isinstance(node, ast.Compare)


def counts_truth(node: ast.BinOp) -> bool:
    """Return True for arithmetic with a comparison or a negation."""
    operands = (node.left, node.right)
    return isinstance(node.op, ARITHMETIC) and any(map(is_truth_value, operands))


def is_nested(node: ast.AST) -> bool:
    """Return True for a comprehension with two loops, or with another one inside."""
    for inner in ast.walk(node):
        if inner is not node and isinstance(inner, COMPREHENSIONS):
            return True
    loops = getattr(node, "generators", [])
    return len(loops) > 1


def shape_faults(node: ast.AST) -> Iterator[str]:
    """Yield the reasons for which a node must be written differently."""
    match node:
        case ast.Assign() if is_packed(node):
            yield "assigns three or more targets at once"
        case ast.Call() if len(node.args) > MOST_POSITIONAL and not is_record_call(node):
            yield "calls with six or more positional arguments"
        case ast.ClassDef() if has_positional_fields(node):
            yield "a dataclass of five or more fields without kw_only"
        case ast.BinOp() if counts_truth(node):
            yield "arithmetic with a comparison or `not`"
        case _:
            pass


def read_file(path: Path, reading: Reading) -> None:
    """Add the counts of one file."""
    source = path.read_text(encoding="utf-8")
    name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
    docstring_lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        line = getattr(node, "lineno", 1)
        for fault in shape_faults(node):
            reading.faults.append(f"{name}:{line}: {fault}")
        if isinstance(node, DOCUMENTED):
            docstring = ast.get_docstring(node)
            if docstring is not None:
                first = node.body[0]
                docstring_lines |= set(range(first.lineno, (first.end_lineno or 0) + 1))
                reading.words += len(docstring.split())
                reading.dialect += len(DIALECT.findall(docstring))
        elif isinstance(node, COMPREHENSIONS):
            reading.comprehensions += 1
            reading.nested += int(is_nested(node))
        elif isinstance(node, ast.IfExp):
            reading.ternaries += 1
    for number, line in enumerate(source.splitlines(), 1):
        if len(line) > COLUMNS:
            reading.faults.append(f"{name}:{number}: {len(line)} columns")
    sizes = statement_sizes(source, docstring_lines)
    reading.tokens += sizes
    if sizes:
        reading.file_means[name] = sum(sizes) / len(sizes)


def read_package(package: Path) -> Reading:
    """Return the counts of all files of a package."""
    reading = Reading()
    for path in python_files(package):
        read_file(path, reading)
    reading.tokens.sort()
    return reading


def excesses(reading: Reading, limits: Limits) -> Iterator[str]:
    """Yield each limit that a package exceeds, with its value."""
    measured = {
        "tokens a statement, mean": (reading.mean(), limits.mean),
        "tokens a statement, median": (reading.percentile(50), limits.median),
        "tokens a statement, 90th percentile": (reading.percentile(90), limits.p90),
        "comprehensions": (reading.per_thousand(reading.comprehensions), limits.comprehensions),
        "nested comprehensions": (reading.per_thousand(reading.nested), limits.nested),
        "ternaries": (reading.per_thousand(reading.ternaries), limits.ternaries),
        "dialect": (reading.dialect_rate(), MOST_DIALECT),
    }
    for name, (value, most) in measured.items():
        if value > most:
            yield f"{name}: {value:.1f}, at most {most:g}"
    for name, value in reading.file_means.items():
        if value > limits.file_mean:
            yield f"{name}: {value:.1f} tokens a statement, at most {limits.file_mean:g}"


def summary(package: str, reading: Reading) -> str:
    """Return one line with a package's figures."""
    sizes = f"{sum(reading.tokens)} tokens in {len(reading.tokens)} statements"
    middle = f"median {reading.percentile(50)}, p90 {reading.percentile(90)}"
    return (
        f"{package}: {sizes}, mean {reading.mean():.1f}, {middle}; per 1,000: "
        f"comprehensions {reading.per_thousand(reading.comprehensions):.0f}, "
        f"nested {reading.per_thousand(reading.nested):.1f}, "
        f"ternaries {reading.per_thousand(reading.ternaries):.0f}; "
        f"dialect {reading.dialect_rate():.1f} of 1,000 words"
    )


def check(package: str) -> bool:
    """Print a package's figures and faults; return True if it has no faults."""
    reading = read_package((ROOT / package).resolve())
    limits = TESTS if package in ("tests", "fuzz", "soak") else PRODUCT
    faults = [*excesses(reading, limits), *reading.faults]
    print(summary(package, reading))
    for fault in faults:
        print(f"  {fault}")
    return not faults


def main() -> int:
    """Check the packages named, or all; return the exit code."""
    passed = True
    for package in sys.argv[1:] or PACKAGES:
        passed = check(package) and passed
    return int(not passed)


if __name__ == "__main__":
    raise SystemExit(main())
