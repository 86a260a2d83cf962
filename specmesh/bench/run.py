"""`specmesh bench run`: the same prompts on a live pair, alone and with drafts in several ways."""

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple, cast

from specmesh.client import Client, Fields, Json
from specmesh.errors import Busy, ConfigError, EngineError

WARM_UP_TOKENS = 32
_TIMES = ("verify_ms", "wait_ms", "draft_ms", "network_ms", "restart_ms")


class Variant(NamedTuple):
    """A way to generate: its name in tables, and the draft_n asked for."""

    name: str
    draft_n: int | str


ALONE = Variant("alone", 0)
ADAPTIVE = Variant("adaptive", "auto")
VARIANTS = (ALONE, Variant("draft_n 2", 2), Variant("draft_n 4", 4), Variant("draft_n 8", 8), ADAPTIVE)


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What to run: each prompt with each variant in each iteration, greedily, `max_tokens` tokens."""

    prompts: tuple[str, ...]
    iterations: int
    max_tokens: int
    variants: tuple[Variant, ...] = VARIANTS

    @property
    def texts(self) -> int:
        return len(self.prompts) * self.iterations * len(self.variants)

    def body(self, prompt: int, variant: Variant) -> Json:
        return {
            "prompt": self.prompts[prompt],
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "draft_n": variant.draft_n,
            "cache_prompt": False,  # else whichever comes second finds its prompt in memory
        }


@dataclass(frozen=True, slots=True)
class Sample:
    """One text. latency_s: from the request to its last token, on the client's clock. report: the numbers that the
    daemon told of it; what is missing is 0."""

    variant: str
    prompt: int
    iteration: int
    ids: tuple[int, ...]
    latency_s: float
    drafter: str | None
    report: defaultdict[str, float]

    @property
    def decode_s(self) -> float:
        """Without prompt processing."""
        rate = self.report["tokens_per_second"]
        return len(self.ids) / rate if rate > 0 else 0.0

    @property
    def wire_bytes(self) -> float:
        return self.report["bytes_sent"] + self.report["bytes_received"]

    def as_json(self) -> Json:
        names = ("variant", "prompt", "iteration", "latency_s", "decode_s", "wire_bytes", "drafter")
        told = {name: self.report[name] for name in ("rounds", "drafted", "accepted", *_TIMES)}
        return {name: getattr(self, name) for name in names} | told | {"tokens": len(self.ids)}


@dataclass(frozen=True, slots=True)
class Spread:
    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """A variant's texts together.

    tokens_per_second: over all texts of an iteration. speedup: against the verifier alone in the same iteration.
    Milliseconds are means per text; other_ms is latency without verifying and waiting, mostly the prompt's processing.
    identical: texts equal to the verifier's alone, of `compared`. without_drafter: texts that ended without a drafter.
    """

    variant: str
    iterations: int
    texts: int
    tokens: int
    rounds: int
    tokens_per_second: Spread
    speedup: Spread | None
    acceptance_rate: float | None
    mean_draft_n: float
    mean_length: float
    latency_ms: float
    decode_ms: float
    verify_ms: float
    wait_ms: float
    draft_ms: float
    network_ms: float
    restart_ms: float
    other_ms: float
    bytes_per_token: float
    identical: int
    compared: int
    without_drafter: int


def has_drafter(snapshot: Json) -> bool:
    """Whether the daemon of these /stats has a drafter, or is one that has found its verifier. Raise Busy while it
    loads."""
    if "loading" in snapshot:
        raise Busy("the daemon is still loading its model: try again in a moment")
    return bool(snapshot.get("verifier" if snapshot.get("role") == "drafter" else "peers"))


def measure(client: Client, plan: RunPlan, advance: Callable[[], None]) -> list[Sample]:
    """Run `plan`, one text at a time, calling `advance` after each; first a text of the first and of the last variant,
    unmeasured. Raise what the daemon raises."""
    for variant in dict.fromkeys((plan.variants[0], plan.variants[-1])):
        collect(client, plan.body(0, variant) | {"max_tokens": min(plan.max_tokens, WARM_UP_TOKENS)})
    samples = []
    for iteration in range(plan.iterations):
        for number in range(len(plan.prompts)):
            shift = (iteration + number) % len(plan.variants)  # so that none always follows the same one
            for variant in plan.variants[shift:] + plan.variants[:shift]:
                samples.append(_sample(client, plan, variant, number, iteration))
                advance()
    return samples


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


def _sample(client: Client, plan: RunPlan, variant: Variant, prompt: int, iteration: int) -> Sample:
    ids, latency_s, last, _ = collect(client, plan.body(prompt, variant))
    report = Fields(last["report"])
    told = defaultdict[str, float](float, report.by_name())
    return Sample(variant.name, prompt, iteration, tuple(ids), latency_s, report.text("drafter") or None, told)


def aggregate(samples: list[Sample]) -> list[Outcome]:
    """Sum up each variant, in the order of VARIANTS; those without samples are left out."""
    alone = [one for one in samples if one.variant == ALONE.name]
    truth = {one.prompt: one.ids for one in reversed(alone)}  # of the first iteration
    texts = {variant: [one for one in samples if one.variant == variant.name] for variant in VARIANTS}
    return [_outcome(variant, own, _rates(alone), truth) for variant, own in texts.items() if own]


def _outcome(
    variant: Variant, own: list[Sample], alone: dict[int, float], truth: dict[int, tuple[int, ...]]
) -> Outcome:
    rates = _rates(own)
    paired = [rate / alone[n] for n, rate in rates.items() if alone.get(n)]
    tokens = sum(len(one.ids) for one in own)
    rounds, drafted, accepted = (
        int(sum(one.report[name] for one in own)) for name in ("rounds", "drafted", "accepted")
    )
    compared = [one for one in own if one.prompt in truth]
    times = {name: fmean(one.report[name] for one in own) for name in _TIMES}
    times["latency_ms"], times["decode_ms"] = (
        fmean(one.latency_s for one in own) * 1e3,
        fmean(one.decode_s for one in own) * 1e3,
    )
    times["other_ms"] = max(times["latency_ms"] - times["verify_ms"] - times["wait_ms"], 0.0)
    return Outcome(
        variant=variant.name,
        iterations=len(rates),
        texts=len(own),
        tokens=tokens,
        rounds=rounds,
        tokens_per_second=_spread(list(rates.values())),
        speedup=_spread(paired) if paired else None,
        acceptance_rate=round(accepted / drafted, 4) if drafted else None,
        mean_draft_n=round(drafted / rounds, 4) if rounds else 0.0,
        mean_length=round(1 + accepted / rounds, 4) if rounds else 0.0,
        bytes_per_token=round(sum(one.wire_bytes for one in own) / tokens, 2) if tokens else 0.0,
        identical=sum(one.ids == truth[one.prompt] for one in compared),
        compared=len(compared),
        without_drafter=0 if variant == ALONE else sum(one.drafter is None for one in own),
        **{name: round(value, 3) for name, value in times.items()},
    )


def _rates(samples: list[Sample]) -> dict[int, float]:
    """Tokens per second by iteration."""
    rates = {}
    for iteration in sorted({one.iteration for one in samples}):
        own = [one for one in samples if one.iteration == iteration]
        seconds = sum(one.decode_s for one in own)
        rates[iteration] = sum(len(one.ids) for one in own) / seconds if seconds > 0 else 0.0
    return rates


def _spread(values: list[float]) -> Spread:
    return Spread(*(round(value, 4) for value in (median(values), min(values), max(values))))


_HEADINGS = (
    f"{'':<11}{'tokens/s':>9}{'spread':>16}{'speed-up':>10}{'accept':>8}{'drafts':>8}{'latency':>9}"
    f"{'verify':>9}{'wait':>8}{'draft':>8}{'network':>9}{'other':>8}{'B/token':>9}{'same':>8}"
)


def lines(outcomes: list[Outcome]) -> list[str]:
    told = [_HEADINGS]
    for one in outcomes:
        rate = one.tokens_per_second
        speedup = "-" if one.speedup is None else f"{one.speedup.median:.2f}x"
        acceptance = "-" if one.acceptance_rate is None else f"{one.acceptance_rate:.0%}"
        told.append(
            f"{one.variant:<11}{rate.median:>9.1f}{f'{rate.low:.1f}-{rate.high:.1f}':>16}{speedup:>10}{acceptance:>8}"
            f"{one.mean_draft_n:>8.2f}{one.latency_ms:>9.0f}{one.verify_ms:>9.0f}{one.wait_ms:>8.0f}{one.draft_ms:>8.0f}"
            f"{one.network_ms:>9.0f}{one.other_ms:>8.0f}{one.bytes_per_token:>9.1f}"
            f"{f'{one.identical}/{one.compared}':>8}"
        )
    told.append("latency and its parts: ms per text; drafts: verified per step; same: texts equal to the first alone")
    return told


@contextmanager
def bar(texts: int) -> Iterator[Callable[[], None]]:
    """A bar for `texts` texts; the function it gives is called after each."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("texts", total=texts)
        yield lambda: progress.advance(task)


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


def read_prompts(path: Path) -> list[str]:
    """One prompt per line, or, where the first line is a JSON object, JSON lines with "prompt"; empty lines left out.

    Raises ConfigError that names the file, and the line where one is wrong.
    """
    try:
        lines = [line for line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if line[1].strip()]
    except OSError as error:
        raise ConfigError(f"--prompts: {path} cannot be read ({error.strerror}): name a text file") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--prompts: {path} is not UTF-8: name a text file") from None
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
