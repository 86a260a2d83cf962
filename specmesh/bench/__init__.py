"""Measuring a live pair: what the benchmarks share."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

from specmesh.client import Client, Json
from specmesh.errors import Busy, ConfigError, EngineError
from specmesh.paths import read_text

MAX_PROMPTS = 2**26
"""Bytes of a file of prompts."""

BUILT_IN = (
    "The lighthouse keeper climbed the stairs every evening, and one night he found that",
    "def merge_sort(items: list[int]) -> list[int]:\n",
    "Photosynthesis is the process by which plants",
    "import json\nfrom pathlib import Path\n\n\nclass Settings:\n    def __init__(self, path: Path) -> None:\n",
    "Ingredients: 500 g flour, 300 ml water, 10 g salt, 5 g yeast.\nMethod:\n1.",
    "Question: Why is the sky blue?\nAnswer:",
    "Dear Sir or Madam,\n\nI am writing to you about",
    "The capitals of Europe: France - Paris, Italy - Rome, Spain - Madrid,",
)


def has_drafter(snapshot: Json) -> bool:
    """Whether the daemon of these /stats has a drafter, or is one that has found its verifier. Raise Busy while it
    loads."""
    if "loading" in snapshot:
        raise Busy("the daemon is still loading its model: try again in a moment")
    return bool(snapshot.get("verifier" if snapshot.get("role") == "drafter" else "peers"))


def collect(client: Client, body: Json) -> tuple[list[int], float, dict[str, Any], list[Any]]:
    """Generate: (ids, seconds to the last of them, what the last chunk tells, log-probabilities)."""
    ids, entries, last = list[int](), list[Any](), dict[str, Any]()
    begun = ended = time.perf_counter()
    with closing(client.complete(body)) as chunks:
        for chunk in chunks:
            last = cast("dict[str, Any]", chunk["specmesh"])
            entries += last.get("logprobs", [])
            if new := last.get("token_ids"):
                ids += new
                ended = time.perf_counter()
    if not isinstance(last.get("report"), dict):
        raise EngineError("the daemon ended a text without its report: see its log")
    return ids, ended - begun, last, entries


@contextmanager
def bar(texts: int) -> Iterator[Callable[[], None]]:
    """A bar for `texts` texts; the function it gives is called after each."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("texts", total=texts)
        yield lambda: progress.advance(task)


def read_prompts(path: Path) -> list[str]:
    """One prompt per line, or, where the first line is a JSON object, JSON lines with "prompt"; empty lines left out.

    Raises ConfigError that names the file, and the line where one is wrong.
    """
    text = read_text(path, MAX_PROMPTS, "a file of prompts")
    lines = [line for line in enumerate(text.splitlines(), 1) if line[1].strip()]
    if not lines:
        raise ConfigError(f"--prompts: {path} has no prompts: write one on each line")
    if not isinstance(_parsed(lines[0][1]), dict):
        return [line for _, line in lines]
    prompts = []
    for number, line in lines:
        match _parsed(line):
            case {"prompt": str(prompt)} if prompt:
                prompts.append(prompt)
            case _:
                where = f"--prompts: {path}, line {number}"
                raise ConfigError(f'{where} is no JSON object with a text as "prompt": correct it')
    return prompts


def _parsed(line: str) -> object:
    try:
        return json.loads(line)
    except ValueError:
        return None
