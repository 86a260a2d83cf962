"""Prompts on which the bundled pair was not trained: pieces of the standard library."""

import sysconfig
from collections.abc import Iterator
from pathlib import Path

HELD_OUT = (
    "textwrap",
    "heapq",
    "shelve",
    "fractions",
    "csv",
    "queue",
    "sched",
    "bisect",
    "calendar",
    "cmd",
)


def prompts(count: int) -> Iterator[str]:
    """Yield `count` pieces of source text of about 300 characters, from as many places."""
    library = Path(sysconfig.get_path("stdlib"))
    paths = [library / f"{name}.py" for name in HELD_OUT]
    texts = [path.read_text() for path in paths if path.is_file()]
    for index in range(count):
        text = texts[index % len(texts)]
        at = (index // len(texts) * 1777 + 900) % max(len(text) - 400, 1)
        start = text.find("\n", at) + 1
        yield text[start : start + 300]
