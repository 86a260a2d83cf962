"""Tables of test cases in JSON, as clients write bodies, tools and schemas."""

import json
import re
from pathlib import Path

import pytest

VECTORS = Path(__file__).parents[2] / "wire" / "vectors"


def rows(text, **names):
    """Return the JSON values that follow each other in a text; `$NAME` stands for a given value."""

    def written(found):
        return json.dumps(names[found[1]])

    text = re.sub(r"\$([A-Z]+)", written, text)
    decoder = json.JSONDecoder()
    found = []
    while text := text.lstrip():
        value, end = decoder.raw_decode(text)
        found.append(value)
        text = text[end:]
    return found


def each(*tables):
    """Return a pair of name and value for each value of rows that are a name and its values."""
    pairs = []
    for table in tables:
        for name, *values in table:
            pairs += [(name, value) for value in values]
    return pairs


def cases(arguments, text, **names):
    """Return a `parametrize` of arguments, separated by commas, whose cases are JSON values."""
    return pytest.mark.parametrize(arguments, rows(text, **names))


def vectors(*names):
    """Return the vectors of some files of wire/vectors."""
    found = []
    for name in names:
        found += json.loads((VECTORS / f"{name}.json").read_bytes())["vectors"]
    return found


def lines(text):
    return text.strip("\n").split("\n")
