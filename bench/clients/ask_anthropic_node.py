"""The anthropic library for Node."""

import json
from collections.abc import Iterator
from pathlib import Path

from work import MILD, MODEL, QUESTION, SCHEMA, Place, output

SCRIPT = Path(__file__).with_suffix(".mjs")


def ask(place: Place, installed: Path) -> Iterator[tuple[str, str]]:
    """Yield each piece of work, and its text."""
    asked = {
        "url": place.url.removesuffix("/v1"),
        "key": place.key,
        "model": MODEL,
        "question": QUESTION,
        "schema": SCHEMA,
        "grammar": MILD,
    }
    said = output(["node", str(SCRIPT), str(installed), json.dumps(asked)], {})
    for line in said.splitlines():
        piece, text = json.loads(line)
        yield piece, text
