"""Measure many clients at a verifier without drafters, beside llama-server's types of drafts.

    python bench/crowd.py --target FILE [--llama-server FILE] [--sessions 1,2,4,8,16] [--edits]
                          [--verifier OPTIONS] [--types NAME,...] [--texts N] [--tokens N]
                          [--slots N] [--repeats N] [--threads N] [--json]

All servers may use the same cores, with as many threads and slots. They take turns at each count of
clients, in an order that rotates; each client has --texts new greedy texts, one after the other.
Texts are pieces of Python's standard library, which drafts at the target help least, or, with
--edits, those of bench/edits.py, whose files stand in the prompt; each then begins with a number of
its own.

- none, all: one verifier with the --verifier options, asked with `draft_n` 0 and "auto";
- llama-server, ngram-...: without drafts, and with each of --types (bench/rivals.py).

The table has tokens per second of all clients together, from the first request to the last token.
In brackets are medians over turns, both over `none` in the same turn: of these tokens per second,
and of the mean of the clients' own ones. The former count the time in which some clients are done
and others not yet, so drafts that end some texts sooner do not show in them; the more texts each
client has, the less that matters.
"""

import argparse
import json
import shlex
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count, islice
from pathlib import Path
from statistics import median
from typing import NamedTuple

from beside import Setting, ours, theirs
from command_line import Options, numbers
from edits import edits
from foreign import Foreign
from held_out import prompts
from load import Contender, Contenders, Server
from rivals import NONE, PLAIN, TYPES, chosen

from specmesh import logs
from specmesh.bench.load import level, run_clients
from specmesh.bench.texts import requests_of
from specmesh.client import Client
from specmesh.core.fields import Json, number_at


class Speed(NamedTuple):
    """Tokens per second of all clients together, and the mean of their own ones."""

    together: float
    own: float


Speeds = dict[str, dict[int, list[Speed]]]
"""The speed of each contender, by count of clients and turn."""


@contextmanager
def contenders(args: argparse.Namespace, body: Json) -> Iterator[Contenders]:
    """Run all servers."""
    setting = Setting(args.target, args.threads, args.ctx, args.slots)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        more = ["--max-queue", "64", *shlex.split(args.verifier)]
        server, _ = stack.enter_context(ours(setting, folder, more))
        client = Client(f"http://127.0.0.1:{server.port}")
        found = {
            NONE: Contender(client, body | {"draft_n": 0}),
            "all": Contender(client, body | {"draft_n": "auto"}),
        }
        if args.llama_server:
            types = {PLAIN: "", **chosen(args.types, TYPES)}
            for kind, words in types.items():
                started = theirs(args.llama_server, setting, folder, shlex.split(words))
                server, _ = stack.enter_context(started)
                other = Server(server.port)
                found[kind] = Contender(other, body | {"model": other.model()})
        yield found


def texts(of_edits: bool) -> Iterator[str]:
    """Yield prompts without end, none of which comes twice."""
    if not of_edits:
        yield from prompts(10**6)
        return
    files = edits()
    for number in count():
        edit = files[number % len(files)]
        yield f"No. {number}\n\n{edit.prompt}"


def speed(contender: Contender, prompts: Iterable[str], clients: int, each: int) -> Speed:
    """Have so many clients at once ask for `each` texts in a row; return their speed."""
    bodies = requests_of(prompts, contender.body)
    generated = run_clients(contender.source, bodies, each, clients, lambda: None)
    found = level(generated)
    return Speed(number_at(found, "tokens_per_second"), number_at(found, "mean"))


def measure(found: Contenders, args: argparse.Namespace) -> Speeds:
    """Run every contender at every count of clients, after an uncounted text of each."""
    names = list(found)
    speeds: Speeds = defaultdict(lambda: defaultdict(list))
    fresh = texts(args.edits)
    for contender in found.values():
        speed(contender, islice(fresh, 1), 1, 1)
    for clients in args.sessions:
        for turn in range(args.repeats):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                new = islice(fresh, clients * args.texts)
                one = speed(found[name], new, clients, args.texts)
                speeds[name][clients].append(one)
                line = f"{name:20} {clients:3} clients {one.together:8.1f} tokens/s"
                print(line, file=sys.stderr, flush=True)
    return speeds


def row(name: str, speeds: Speeds) -> dict[str, object]:
    """Return a contender's row: by count of clients, the speed and its ratios to none's."""
    found: dict[str, object] = {"contender": name}
    for clients, turns in speeds[name].items():
        together: list[float] = []
        own: list[float] = []
        for one, other in zip(turns, speeds[NONE][clients], strict=True):
            together.append(one.together / other.together)
            own.append(one.own / other.own)
        rate = median(turn.together for turn in turns)
        found[str(clients)] = f"{rate:.1f} ({median(together):.3f}, {median(own):.3f})"
    return found


def main() -> None:
    """Start everything, measure, and print."""
    parser = Options(__doc__)
    parser.add_argument("--target", required=True, help="with a context of --ctx")
    parser.add_argument("--llama-server", type=Path, help="the program to compare with")
    parser.add_argument("--sessions", type=numbers, default=[1, 2, 4, 8, 16], help="clients")
    parser.option("--verifier", "", "options of the verifier")
    parser.option("--types", "ngram-mod,ngram-simple", "of llama-server")
    parser.switch("--edits")
    parser.option("--texts", 3, "of each client")
    parser.option("--tokens", 64)
    parser.option("--ctx", 2048)
    parser.option("--slots", 16, "sessions that each server holds")
    parser.option("--repeats", 3)
    parser.option("--threads", 2)
    parser.switch("--json")
    args = parser.parse_args()
    logs.configure("error")
    body: Json = {"max_tokens": args.tokens, "temperature": 0, "ignore_eos": True}
    foreign = Foreign()
    with contenders(args, body) as found:
        speeds = measure(found, args)
    machine = {"foreign_cores": foreign.cores()}
    if args.json:
        print(json.dumps({"machine": machine, "speeds": speeds}))
        return
    table = [row(name, speeds) for name in speeds]
    names = list(table[0])
    print(" ".join(f"{name:>21}" for name in names))
    for cells in table:
        print(" ".join(f"{cells[name]!s:>21}" for name in names))
    print(f"other programs kept {machine['foreign_cores']} cores busy")


if __name__ == "__main__":
    main()
