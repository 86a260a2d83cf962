"""Measuring a live pair: what the benchmarks share."""

import json
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from specmesh.client import Client, GeneratedText
from specmesh.core.fields import Json, number_at, objects_at
from specmesh.errors import Busy, ConfigError, DaemonUnreachable, EngineError
from specmesh.paths import read_text

WARM_UP_TOKENS = 32  # of a text that is not measured: first steps allocate memory
PAYS = 1.02  # minimum speed-up at which drafts pay: two simulations of the same thing differ by 1 %
SIZES = ("bytes_sent", "bytes_received")  # of a report
MAX_PROMPTS = 2**26  # bytes of a file of prompts

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


def generate(client: Client, body: Json, text: GeneratedText | None = None) -> GeneratedText:
    """Generate one text, into `text` as it comes. Raise what the daemon raises, EngineError where it ends the text
    without a report."""
    text = GeneratedText() if text is None else text
    text.begun = time.perf_counter()
    with closing(client.complete(body)) as chunks:
        for chunk in chunks:
            text.take(chunk, time.perf_counter())
    if not text.report:
        raise EngineError("the daemon ended a text without its report", "see its log")
    return text


def summed(texts: Sequence[GeneratedText], *names: str) -> float:
    """Return the sum of these numbers of all reports."""
    return sum(
        number_at(text.report, name)
        for text in texts
        for name in names
        if text.report[name] is not None
    )


def totals(texts: list[GeneratedText]) -> Json:
    drafted, accepted = summed(texts, "drafted"), summed(texts, "accepted")
    return {
        "texts": len(texts),
        "tokens": sum(len(text.ids) for text in texts),
        "drafted": drafted,
        "accepted": accepted,
        "acceptance_rate": round(accepted / drafted, 4) if drafted else None,
    }


def loaded_stats(client: Client) -> Json:
    """Return a daemon's /stats. Raise Busy while it loads."""
    snapshot = client.get("/stats")
    if "loading" in snapshot:
        raise Busy("the daemon is still loading its model", "try again in a moment")
    return snapshot


def has_drafter(snapshot: Json) -> bool:
    """Whether the daemon of these /stats has a drafter, or is one that has found its verifier."""
    if snapshot.get("role") == "drafter":
        return any(one["name"] for one in objects_at(snapshot, "verifiers"))
    return bool(snapshot.get("peers"))


def drafting_stats(client: Client) -> Json:
    """Return a daemon's /stats. Raise Busy while it loads, DaemonUnreachable where nobody drafts."""
    snapshot = loaded_stats(client)
    if not has_drafter(snapshot):
        raise DaemonUnreachable(
            "no drafter is attached, so there is nothing to compare", "start specmesh drafter"
        )
    return snapshot


@contextmanager
def bar(texts: int) -> Generator[Callable[[], None]]:
    from rich.console import Console
    from rich.progress import Progress

    with Progress(
        console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
    ) as progress:
        task = progress.add_task("texts", total=texts)
        yield lambda: progress.advance(task)


def read_prompts(path: Path | None) -> tuple[str, ...]:
    """One prompt per line, or, where the first line is a JSON object, JSON lines with "prompt"; empty lines left out.
    Without a file the built-in ones. Raises ConfigError that names the file."""
    if path is None:
        return BUILT_IN
    lines = [
        line
        for line in read_text(path, MAX_PROMPTS, "a file of prompts").splitlines()
        if line.strip()
    ]
    if not lines:
        raise ConfigError(f"--prompts: {path} has no prompts", "write one on each line")
    if not lines[0].startswith("{"):
        return tuple(lines)
    try:
        return tuple(str(json.loads(line)["prompt"]) for line in lines)
    except (ValueError, TypeError, KeyError):
        raise ConfigError(
            f'--prompts: {path} has a line that is no JSON object with "prompt"', "correct it"
        ) from None
