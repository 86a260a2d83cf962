"""Measure drafts of specmesh for a vLLM server, beside vLLM's own n-gram method and no drafts.

    python bench/vllm.py --python PYTHON --model FOLDER [--drafter FILE] [--texts edits|prose]
                         [--clients N,...] [--tokens N] [--rounds N] [--drafts N] [--only NAME,...]
                         [--judged] [--json]

PYTHON is that of an environment with vLLM, FOLDER a Hugging Face model. Servers run side by side,
each idle while another is asked:

- none: without speculation;
- ngram: vLLM's own method, with the same number of drafts;
- empty: a `custom_class` that never drafts, which is the price of the runner it needs;
- suffix: ours without a drafter: what a text repeats;
- ours-ngram, ours-llama: the same server with one drafter daemon, without a model or with FILE.

Texts are greedy; those of prose have a penalty, so that they repeat nothing. Prompts are read
before, and stay in each server's prefix cache. In each round each contender answers the same texts,
asked by so many clients at once, in an order that rotates.
`of none` is the median over rounds of tokens per second over those of `none` in the same round, so
are the others. `same` counts texts with the ids that `none`, or without it the first contender,
gave in the same round. A drafter runs while its contender is asked. If no other contender needs
that server it stays, as a drafter of a team would.

--judged measures the ratios that have a bar, and prints them with those of each round: edits by one
client, without a drafter, over `none` and `ngram`; prose, with a drafter that does not pay, over
`empty`, at each number of clients. That drafter is `ours-llama` with --drafter: a model on the
server's own cores. Without it, it is `ours-ngram`.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from command_line import Options, numbers
from live import command, is_drafted, running, until
from prose import prompts
from vllm_server import (
    EMPTY,
    OURS,
    Answer,
    Installed,
    Start,
    VllmServer,
    custom,
    ours,
    repeated_texts,
    serving,
)

from specmesh.client import Client

NONE = "none"
NGRAM = "ngram"
EMPTY_NAME = "empty"
SUFFIX = "suffix"
DRAFTERS = (SUFFIX, "ours-ngram", "ours-llama")
OTHERS = (NONE, NGRAM, EMPTY_NAME)
NAMES = (*OTHERS, *DRAFTERS)
EDITS = "edits"
PROSE = "prose"
TEXTS: dict[str, Callable[[], list[str]]] = {
    EDITS: repeated_texts,
    PROSE: lambda: [*prompts().values()],
}
NO_REPEATS = 1.3
"""Penalty with which prose repeats nothing. Without one a small model soon repeats a sentence."""
BARS = {(EDITS, NONE): 3.0, (EDITS, NGRAM): 1.0, (PROSE, EMPTY_NAME): 0.97}
"""Least ratio of ours to another contender, by kind of text."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Contenders that answer texts of a kind, by so many clients at once."""

    texts: str
    names: tuple[str, ...]
    clients: int

    @property
    def penalty(self) -> float:
        """Return the penalty of ids that repeat."""
        return NO_REPEATS if self.texts == PROSE else 1.0

    @property
    def drafters(self) -> tuple[str, ...]:
        """Return the contenders that our server is."""
        return tuple(name for name in self.names if name in DRAFTERS)


@dataclass(frozen=True, slots=True)
class Run:
    """A contender's answers to all texts, one round. seconds: until the last one ended."""

    answers: tuple[Answer, ...]
    seconds: float
    drafted: int
    accepted: int

    @property
    def tokens_per_second(self) -> float:
        """Return the tokens of all answers by the time that they took together."""
        return sum(len(answer.ids) for answer in self.answers) / self.seconds


@dataclass(slots=True)
class Servers:
    """The servers by contender; those of DRAFTERS are one."""

    by_name: dict[str, VllmServer] = field(default_factory=dict[str, VllmServer])
    address: str = ""
    socket: Path = Path()


@contextmanager
def all_servers(args: argparse.Namespace, folder: Path, names: Sequence[str]) -> Iterator[Servers]:
    """Run all servers that these contenders need."""
    installed = Installed(args.python, args.model, folder)
    options = ("--max-num-seqs", "8", "--max-model-len", str(args.ctx))
    found = Servers()
    own_ngram = {
        "method": "ngram",
        "num_speculative_tokens": args.drafts,
        "prompt_lookup_min": 3,
        "prompt_lookup_max": 12,
    }
    plain = {NONE: None, NGRAM: own_ngram, EMPTY_NAME: custom(EMPTY, args.drafts)}
    starts: dict[str, Start] = {}
    for name, speculative in plain.items():
        if name in names:
            starts[name] = Start(name=name, speculative=speculative, options=options)
    if set(DRAFTERS) & set(names):
        found.address, variables = ours(folder)
        found.socket = folder / "vllm.sock"
        speculative = custom(OURS, args.drafts)
        starts["ours"] = Start(
            name="ours", speculative=speculative, options=options, variables=variables
        )
    with serving(installed, *starts.values()) as running_servers:
        found.by_name = dict(zip(starts, running_servers, strict=True))
        if "ours" in found.by_name:
            found.by_name |= dict.fromkeys(DRAFTERS, found.by_name.pop("ours"))
        yield found


@contextmanager
def drafter_of(name: str, found: Servers, args: argparse.Namespace, folder: Path) -> Iterator[None]:
    """Run the drafter daemon of a contender, if it has one, and wait until it is attached."""
    if name not in ("ours-ngram", "ours-llama"):
        yield
        return
    options: dict[str, object] = {"engine": "ngram"}
    if name == "ours-llama":
        options = {"model": args.drafter, "threads": 1}
    words = command(
        "drafter",
        connect=found.address,
        socket=folder / "d.sock",
        log_level="error",
        **options,
    )
    client = Client(found.socket)
    with running(words, log=folder / f"{name}.log"):
        until(lambda: is_drafted(client))
        yield
    until(lambda: not is_drafted(client))


def asked(server: VllmServer, texts: Sequence[str], tokens: int, comparison: Comparison) -> Run:
    """Return the answers to all texts."""

    def answer(text: str) -> Answer:
        return server.complete(text, tokens, penalty=comparison.penalty)

    before = server.drafts()
    with ThreadPoolExecutor(comparison.clients) as pool:
        begun = time.monotonic()
        answers = tuple(pool.map(answer, texts))
        seconds = time.monotonic() - begun
    drafted, accepted = server.drafts_since(before)
    return Run(answers, seconds, drafted, accepted)


Runs = dict[str, list[Run]]
"""Those of each contender, by round."""


def measured(
    found: Servers, args: argparse.Namespace, comparison: Comparison, folder: Path
) -> Runs:
    """Return the rounds of each contender."""
    names = comparison.names
    texts = TEXTS[comparison.texts]()
    for name in names:
        for text in texts:
            found.by_name[name].complete(text, 1)
    runs: Runs = defaultdict(list)
    lasting = comparison.drafters[0] if len(comparison.drafters) == 1 else SUFFIX
    with drafter_of(lasting, found, args, folder):
        for number in range(args.rounds):
            first = number % len(names)
            for name in (*names[first:], *names[:first]):
                drafter = SUFFIX if name == lasting else name
                with drafter_of(drafter, found, args, folder):
                    run = asked(found.by_name[name], texts, args.tokens, comparison)
                runs[name].append(run)
                speed = f"{run.tokens_per_second:.1f} tokens/s"
                drafts = f"{run.accepted} of {run.drafted} drafts"
                place = f"{comparison.texts}, round {number + 1}, {comparison.clients} clients"
                print(f"{place}, {name}: {speed}, {drafts}", file=sys.stderr)
    return runs


def rows(runs: Runs, comparison: Comparison) -> list[dict[str, object]]:
    """Return a row of the table for each contender."""
    table: list[dict[str, object]] = []
    truth = runs[NONE] if NONE in runs else runs[comparison.names[0]]
    for name in comparison.names:
        own = runs[name]
        row: dict[str, object] = {
            "texts": comparison.texts,
            "clients": comparison.clients,
            "contender": name,
            "tokens/s": round(median(run.tokens_per_second for run in own), 1),
        }
        for other in OTHERS:
            if other in runs:
                row[f"of {other}"] = round(median(ratios(own, runs[other])), 3)
        row["accepted"] = sum(run.accepted for run in own)
        row["drafted"] = sum(run.drafted for run in own)
        row["same"] = _same(own, truth)
        table.append(row)
    return table


def judged(runs: Runs, comparison: Comparison) -> list[str]:
    """Return a line for each bar: the median ratio, the bar, and the ratio of each round."""
    lines: list[str] = []
    [ours_name] = comparison.drafters
    for other in OTHERS:
        bar = BARS.get((comparison.texts, other))
        if bar is None or other not in runs:
            continue
        found = ratios(runs[ours_name], runs[other])
        ratio = median(found)
        verdict = "reached" if ratio >= bar else "missed"
        what = f"{comparison.texts}, {comparison.clients} clients: {ours_name} of {other}"
        each = " ".join(f"{one:.3f}" for one in found)
        lines.append(f"{what} {ratio:.3f}, at least {bar}: {verdict} (rounds: {each})")
    return lines


def ratios(own: Sequence[Run], others: Sequence[Run]) -> list[float]:
    """Return the ratio of speeds in each round."""
    pairs = zip(own, others, strict=True)
    return [one.tokens_per_second / other.tokens_per_second for one, other in pairs]


def _same(own: Sequence[Run], others: Sequence[Run]) -> str:
    """Return how many texts have the same ids, of how many."""
    texts = 0
    same = 0
    for one, other in zip(own, others, strict=True):
        texts += len(one.answers)
        same += sum(a.ids == b.ids for a, b in zip(one.answers, other.answers, strict=True))
    return f"{same}/{texts}"


def comparisons(args: argparse.Namespace) -> list[Comparison]:
    """Return the comparisons of the options."""
    clients = numbers(args.clients)
    if args.judged:
        drafter = "ours-llama" if args.drafter else "ours-ngram"
        found = [Comparison(EDITS, (NONE, NGRAM, SUFFIX), 1)]
        return found + [Comparison(PROSE, (EMPTY_NAME, drafter), count) for count in clients]
    names = [name for name in args.only.split(",") if name != "ours-llama" or args.drafter]
    return [Comparison(args.texts, tuple(names), count) for count in clients]


def main() -> None:
    """Measure and print."""
    parser = Options(__doc__)
    parser.option("--python", Path(sys.executable), "Python of an environment with vLLM.")
    parser.option("--model", Path(), "folder of a Hugging Face model.")
    parser.option("--drafter", "", "GGUF file of ours-llama.")
    parser.add_argument("--texts", choices=TEXTS, default=EDITS)
    parser.option("--clients", "1,4,8")
    parser.option("--tokens", 96)
    parser.option("--rounds", 3)
    parser.option("--drafts", 8)
    parser.option("--ctx", 2048)
    parser.option("--only", ",".join(NAMES))
    parser.switch("--judged", "measure the ratios that have a bar")
    parser.switch("--json")
    args = parser.parse_args()
    planned = comparisons(args)
    names = sorted({name for one in planned for name in one.names})
    table: list[dict[str, object]] = []
    verdicts: list[str] = []
    with tempfile.TemporaryDirectory() as folder, all_servers(args, Path(folder), names) as found:
        for one in planned:
            runs = measured(found, args, one, Path(folder))
            table += rows(runs, one)
            if args.judged:
                verdicts += judged(runs, one)
    if args.json:
        print(json.dumps({"rows": table, "judged": verdicts}))
        return
    for row in table:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    for line in verdicts:
        print(line)


if __name__ == "__main__":
    main()
