"""Texts of a running pair, for all benchmarks: prompts, generation and sums."""

import json
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from specmesh.client import Client, GeneratedText
from specmesh.core.fields import Json, number_at, objects_at
from specmesh.errors import Busy, ConfigError, DaemonUnreachable, EngineError
from specmesh.paths import read_text

WARM_UP_TOKENS = 32  # of a text that is not measured: first steps allocate memory
PAYS = 1.02
"""Least speed-up at which drafts pay: two simulations of the same pair differ by 1 %."""

SIZES = ("bytes_sent", "bytes_received")  # of a report
MAX_PROMPTS = 2**26  # bytes of a file of prompts

BUILT_IN = (
    "The lighthouse keeper climbed the stairs every evening, and one night he found that",
    "def merge_sort(items: list[int]) -> list[int]:\n",
    "Photosynthesis is the process by which plants",
    (
        "import json\nfrom pathlib import Path\n\n\nclass Settings:\n"
        "    def __init__(self, path: Path) -> None:\n"
    ),
    "Ingredients: 500 g flour, 300 ml water, 10 g salt, 5 g yeast.\nMethod:\n1.",
    "Question: Why is the sky blue?\nAnswer:",
    "Dear Sir or Madam,\n\nI am writing to you about",
    "The capitals of Europe: France - Paris, Italy - Rome, Spain - Madrid,",
)


def generate(client: Client, body: Json, text: GeneratedText | None = None) -> GeneratedText:
    """Generate one text, into `text` as it comes.

    Raises the errors of the daemon, and EngineError if it ends the text without a report.
    """
    if text is None:
        text = GeneratedText()
    text.begun = time.perf_counter()
    with closing(client.complete(body)) as chunks:
        for chunk in chunks:
            text.take(chunk, time.perf_counter())
    if not text.report:
        raise EngineError("the daemon ended a text without its report", "see its log")
    return text


def summed(texts: Sequence[GeneratedText], *names: str) -> float:
    """Return the sum of these numbers of all reports."""
    total = 0.0
    for text in texts:
        for name in names:
            if text.report[name] is not None:
                total += number_at(text.report, name)
    return total


def ratio(part: float, whole: float, digits: int) -> float | None:
    """Return part / whole, rounded; None for a whole of 0."""
    if not whole:
        return None
    return round(part / whole, digits)


def count_tokens(texts: list[GeneratedText]) -> int:
    """Return the number of tokens of texts."""
    return sum(len(text.ids) for text in texts)


def totals(texts: list[GeneratedText]) -> Json:
    """Return the numbers of texts, tokens and drafts, and the rate of acceptance."""
    drafted = summed(texts, "drafted")
    accepted = summed(texts, "accepted")
    return {
        "texts": len(texts),
        "tokens": count_tokens(texts),
        "drafted": drafted,
        "accepted": accepted,
        "acceptance_rate": ratio(accepted, drafted, 4),
    }


def loaded_stats(client: Client) -> Json:
    """Return a daemon's /stats. Raises Busy while it loads."""
    snapshot = client.get("/stats")
    if "loading" in snapshot:
        raise Busy("the daemon is still loading its model", "try again in a moment")
    return snapshot


def has_drafter(snapshot: Json) -> bool:
    """Return True if the daemon of these /stats has a peer: a drafter, or a found verifier."""
    if snapshot.get("role") == "drafter":
        return any(verifier["name"] for verifier in objects_at(snapshot, "verifiers"))
    return bool(snapshot.get("peers"))


def drafting_stats(client: Client) -> Json:
    """Return the /stats of a daemon whose drafts can be measured.

    A verifier without a drafter has sources of its own. Raises Busy while the daemon loads,
    DaemonUnreachable for a drafter without a verifier.
    """
    snapshot = loaded_stats(client)
    if snapshot.get("role") == "drafter" and not has_drafter(snapshot):
        reason = "the drafter has found no verifier, so there is nothing to compare"
        raise DaemonUnreachable(reason, "start specmesh verifier")
    return snapshot


@contextmanager
def bar(texts: int) -> Generator[Callable[[], None]]:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    hidden = not sys.stderr.isatty()
    with Progress(console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task("texts", total=texts)
        yield lambda: progress.advance(task)


def requests_of(prompts: Iterable[str], body: Json) -> list[Json]:
    """Return a request for each prompt, with the fields of the body."""
    return [body | {"prompt": prompt} for prompt in prompts]


def read_prompts(path: Path | None) -> tuple[str, ...]:
    """Return the prompts of a file; without a file the built-in ones.

    The file has one prompt per line. If the first line is a JSON object, each line is one, with
    "prompt". Empty lines are left out. Raises ConfigError that names the file.
    """
    if path is None:
        return BUILT_IN
    text = read_text(path, MAX_PROMPTS, "a file of prompts")
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise ConfigError(f"--prompts: {path} has no prompts", "write one on each line")
    if not lines[0].startswith("{"):
        return tuple(lines)
    try:
        return tuple(str(json.loads(line)["prompt"]) for line in lines)
    except (ValueError, TypeError, KeyError):
        reason = f'--prompts: {path} has a line that is no JSON object with "prompt"'
        raise ConfigError(reason, "correct it") from None
