"""Write the README's table of pairs from specmesh/bench/pairs.toml. `make docs` runs it."""

import re
from pathlib import Path

from specmesh.bench.recommend import summary

PATH = Path(__file__).parents[1] / "README.md"
HEAD = "| target | drafter | result |\n|---|---|---|\n"


def filled(document: str) -> str:
    """Return the document with the data's table."""
    rows = "".join(f"| {' | '.join(row)} |\n" for row in summary())
    return re.sub(rf"{re.escape(HEAD)}(?:\|.*\n)*", lambda _: HEAD + rows, document)


if __name__ == "__main__":
    PATH.write_text(filled(PATH.read_text(encoding="utf-8")), encoding="utf-8")
