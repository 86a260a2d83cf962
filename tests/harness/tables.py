"""Tables of test cases in JSON, as clients write bodies, tools and schemas."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

VECTORS = Path(__file__).parents[2] / "wire" / "vectors"


def rows(text: str, **names: object) -> Any:
    """Return the JSON values that follow each other in a text; `$NAME` stands for a given value."""

    def written(found: "re.Match[str]") -> str:
        return json.dumps(names[found[1]])

    text = re.sub(r"\$([A-Z]+)", written, text)
    decoder = json.JSONDecoder()
    found: list[Any] = []
    while text := text.lstrip():
        value, end = decoder.raw_decode(text)
        found.append(value)
        text = text[end:]
    return found


def each(*tables: Any) -> list[tuple[str, Any]]:
    """Return a pair of name and value for each value of rows that are a name and its values."""
    pairs: list[tuple[str, Any]] = []
    for table in tables:
        for name, *values in table:
            pairs += [(name, value) for value in values]
    return pairs


def cases(arguments: str, text: str, **names: object) -> pytest.MarkDecorator:
    """Return a `parametrize` of arguments, separated by commas, whose cases are JSON values."""
    return pytest.mark.parametrize(arguments, rows(text, **names))


def vectors(*names: str) -> list[Any]:
    """Return the vectors of some files of wire/vectors."""
    found: list[Any] = []
    for name in names:
        found += json.loads((VECTORS / f"{name}.json").read_bytes())["vectors"]
    return found


def lines(text: str) -> list[str]:
    return text.strip("\n").split("\n")
