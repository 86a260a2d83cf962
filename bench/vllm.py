"""Measure drafts of specmesh for a vLLM server, beside vLLM's own n-gram method and no drafts.

    python bench/vllm.py --python PYTHON --model FOLDER [--drafter FILE] [--texts edits|prose]
                         [--clients N,...] [--tokens N] [--rounds N] [--drafts N] [--only NAME,...]
                         [--json]

PYTHON is that of an environment with vLLM, FOLDER a Hugging Face model. Servers run side by side,
each idle while another is asked:

- none: without speculation;
- ngram: vLLM's own method, with the same number of drafts;
- empty: a `custom_class` that never drafts, which is the price of the runner it needs;
- suffix: ours without a drafter: what a text repeats;
- ours-ngram, ours-llama: the same server with one drafter daemon, without a model or with FILE.

Texts are greedy. Prompts are read before, and stay in each server's prefix cache. In each round
each contender answers the same texts, asked by so many clients at once, in an order that rotates.
`ratio` is the median over rounds of tokens per second over those of `none` in the same round, `of
empty` the same over `empty`. `same` counts texts with the ids that `none` gave in the same round.
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
EMPTY_NAME = "empty"
DRAFTERS = ("suffix", "ours-ngram", "ours-llama")
NAMES = (NONE, "ngram", EMPTY_NAME, *DRAFTERS)
TEXTS: dict[str, Callable[[], list[str]]] = {
    "edits": repeated_texts,
    "prose": lambda: [*prompts().values()],
}


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
    plain = {NONE: None, "ngram": own_ngram, EMPTY_NAME: custom(EMPTY, args.drafts)}
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


def asked(server: VllmServer, texts: Sequence[str], clients: int, tokens: int) -> Run:
    """Return the answers to all texts, by so many clients at once."""
    before = server.drafts()
    with ThreadPoolExecutor(clients) as pool:
        begun = time.monotonic()
        answers = tuple(pool.map(lambda text: server.complete(text, tokens), texts))
        seconds = time.monotonic() - begun
    drafted, accepted = server.drafts_since(before)
    return Run(answers, seconds, drafted, accepted)


def measured(
    found: Servers, args: argparse.Namespace, clients: int, names: Sequence[str], folder: Path
) -> dict[str, list[Run]]:
    """Return the rounds of each contender with so many clients."""
    texts = TEXTS[args.texts]()
    for server in {id(one): one for one in found.by_name.values()}.values():
        for text in texts:
            server.complete(text, 1)
    runs: dict[str, list[Run]] = defaultdict(list)
    for number in range(args.rounds):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            with drafter_of(name, found, args, folder):
                run = asked(found.by_name[name], texts, clients, args.tokens)
            runs[name].append(run)
            speed = f"{run.tokens_per_second:.1f} tokens/s, {run.accepted} of {run.drafted} drafts"
            print(f"round {number + 1}, {clients} clients, {name}: {speed}", file=sys.stderr)
    return runs


def rows(runs: dict[str, list[Run]], clients: int) -> list[dict[str, object]]:
    """Return a row of the table for each contender."""
    table: list[dict[str, object]] = []
    for name in NAMES:
        if name not in runs:
            continue
        own = runs[name]
        drafted = sum(run.drafted for run in own)
        table.append(
            {
                "clients": clients,
                "contender": name,
                "tokens/s": round(median(run.tokens_per_second for run in own), 1),
                "ratio": _ratio(own, runs.get(NONE)),
                "of empty": _ratio(own, runs.get(EMPTY_NAME)),
                "accepted": sum(run.accepted for run in own),
                "drafted": drafted,
                "same": _same(own, runs.get(NONE)),
            }
        )
    return table


def _ratio(own: Sequence[Run], others: Sequence[Run] | None) -> float | None:
    """Return the median ratio of speeds in the same rounds."""
    if others is None:
        return None
    pairs = zip(own, others, strict=True)
    return round(median(one.tokens_per_second / other.tokens_per_second for one, other in pairs), 3)


def _same(own: Sequence[Run], others: Sequence[Run] | None) -> str | None:
    """Return how many texts have the same ids, of how many."""
    if others is None:
        return None
    texts = 0
    same = 0
    for one, other in zip(own, others, strict=True):
        texts += len(one.answers)
        same += sum(a.ids == b.ids for a, b in zip(one.answers, other.answers, strict=True))
    return f"{same}/{texts}"


def main() -> None:
    """Measure and print."""
    parser = Options(__doc__)
    parser.option("--python", Path(sys.executable), "Python of an environment with vLLM.")
    parser.option("--model", Path(), "folder of a Hugging Face model.")
    parser.option("--drafter", "", "GGUF file of ours-llama.")
    parser.add_argument("--texts", choices=TEXTS, default="edits")
    parser.option("--clients", "1,4,8")
    parser.option("--tokens", 96)
    parser.option("--rounds", 3)
    parser.option("--drafts", 8)
    parser.option("--ctx", 2048)
    parser.option("--only", ",".join(NAMES))
    parser.switch("--json")
    args = parser.parse_args()
    names = [name for name in args.only.split(",") if name != "ours-llama" or args.drafter]
    table: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder, all_servers(args, Path(folder), names) as found:
        for clients in numbers(args.clients):
            runs = measured(found, args, clients, names, Path(folder))
            table += rows(runs, clients)
    if args.json:
        print(json.dumps(table))
        return
    for row in table:
        print("  ".join(f"{key} {value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
