"""Measure many clients at specmesh and at llama-server, on the same files, slots and cores.

    python bench/load.py --llama-server PATH [--target FILE] [--drafter FILE] [--sessions 1,4,16]
                         [--slots 16] [--tokens N] [--characters N] [--repeats N] [--threads N]
                         [--cores 0,1] [--only NAME,...] [--json]

All servers may use the same cores, with as many threads for the target each; idle ones wait on a
socket. The contenders take turns at each count of clients, in rotating order. The clients
(specmesh.bench.load) are the same. Each has a new prompt in each turn (bench/held_out.py), so that
no cache helps. Texts are greedy and equally long.

- specmesh auto, specmesh alone: one pair, `draft_n` "auto" and 0; the drafter has one thread, or
  its default;
- llama-server alone, llama-server drafts: without a draft model, and with it at its own settings.

The work of other programs is printed with the numbers, and the clients' own work is part of all of
them. bench/README.md has the commands that build llama-server; without it its rows are left out.
"""

import argparse
import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, islice, product
from pathlib import Path
from statistics import fmean
from typing import Any

from command_line import Options, numbers
from foreign import Foreign
from held_out import prompts
from live import daemons, llama_server

from specmesh import logs
from specmesh.bench.load import Texts, level, run_clients
from specmesh.bench.texts import requests_of
from specmesh.cli.options import columns
from specmesh.client import Client
from specmesh.core.fields import Json, at, number_at, objects_at
from specmesh.errors import SpecmeshError
from specmesh.paths import bundled

CTX = 1024
PORT = 7450

Runs = dict[str, list[Texts]]
"""The texts of each contender, for each count of clients and turn."""


class Server(Client):
    """Another server, on a port of this machine."""

    def __init__(self, port: int) -> None:
        """Connect to nothing yet."""
        super().__init__(f"http://127.0.0.1:{port}")

    def model(self) -> str:
        """Return the name of its first model."""
        models: Any = self.get("/v1/models")
        return str(models["data"][0]["id"])

    def complete(self, body: Json) -> Generator[Json, None, None]:
        """Yield chunks in the form of ours.

        A chunk with text counts as a token until `usage` has the number of all.
        """
        known = 0
        for chunk in super().complete(body | {"stream_options": {"include_usage": True}}):
            text = ""
            for choice in objects_at(chunk, "choices"):
                text += str(choice["text"])
            count = int(number_at(chunk, "usage.completion_tokens", 0)) - known
            if text:
                count = max(count, 1)
            count = max(count, 0)
            known += count
            extension: Json = {"token_ids": [0] * count}
            if "timings" in chunk:
                extension["report"] = {
                    "drafted": at(chunk, "timings.draft_n"),
                    "accepted": at(chunk, "timings.draft_n_accepted"),
                }
            yield {"choices": [{"text": text}], "specmesh": extension}


@dataclass(frozen=True, slots=True)
class Contender:
    """A server, and the fields of its requests."""

    source: Client
    body: Json


Contenders = dict[str, Contender]


@contextmanager
def specmesh(args: argparse.Namespace, folder: Path, body: Json) -> Iterator[Contenders]:
    """Run one pair, asked with adaptive drafts and without drafts."""
    common = f"--ctx {CTX} --max-sessions {args.slots} --gpu-layers 0".split()
    verifier = ["--model", args.target, "--max-queue", "64", *common]
    drafter = ["--model", args.drafter, "--engine", "llama", *common]
    if args.threads:
        verifier += ["--threads", str(args.threads)]
        drafter += ["--threads", "1"]
    with daemons(folder, verifier, drafter, (args.cores, args.cores)) as client:
        auto = Contender(client, body | {"draft_n": "auto"})
        alone = Contender(client, body | {"draft_n": 0})
        yield {"specmesh auto": auto, "specmesh alone": alone}


@contextmanager
def other_server(
    args: argparse.Namespace, folder: Path, body: Json, drafts: bool
) -> Iterator[Contenders]:
    """Run one llama-server with as many slots."""
    name = "llama-server alone"
    port = PORT
    drafting: list[str] = []
    if drafts:
        name = "llama-server drafts"
        port += 1
        drafting = ["--spec-draft-model", args.drafter]
        drafting += ["--spec-type", "draft-simple", "--spec-draft-ngl", "0"]
    threads = args.threads or len(args.cores)
    options = f"--host 127.0.0.1 --port {port} --threads {threads} --threads-batch {threads}"
    slots = f"--ctx-size {CTX * args.slots} --parallel {args.slots} --gpu-layers 0"
    words = [str(args.llama_server), "--model", args.target]
    words += [*options.split(), *slots.split(), *drafting]
    log = folder / f"llama-server-{port}.log"
    server = Server(port)
    with llama_server(words, args.cores, log, lambda: _up(server)):
        yield {name: Contender(server, body | {"model": server.model()})}


def _up(server: Server) -> bool:
    try:
        chunks = list(server.complete({"prompt": "a", "max_tokens": 1}))
    except SpecmeshError:
        return False
    return bool(chunks)


def measure(contenders: Contenders, sessions: list[int], repeats: int, characters: int) -> Runs:
    """Run every contender at every count `repeats` times, after an uncounted text of each.

    characters: of each prompt.
    """
    names = list(contenders)
    runs: Runs = defaultdict(list)
    fresh = prompts(10**6)

    def texts(name: str, count: int) -> Texts:
        contender = contenders[name]
        cut: list[str] = []
        for prompt in islice(fresh, count):
            cut.append(prompt[:characters])
        bodies = requests_of(cut, contender.body)
        return run_clients(contender.source, bodies, 1, count, lambda: None)

    for name in names:
        texts(name, 1)
    for count, turn in product(sessions, range(repeats)):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            generated = texts(name, count)
            runs[name].append(generated)
            found = level(generated)
            speed = f"{found['tokens_per_second']:8.1f} tokens/s, {found['fairness']:.2f}"
            print(f"{name:20} {count:3} sessions {speed}", file=sys.stderr, flush=True)
    return runs


def ratios(runs: Runs) -> list[dict[str, object]]:
    """Return a row for each count of clients.

    It has the mean tokens per second, specmesh's over the better llama-server's, and the lowest
    fairness.
    """
    rows: list[dict[str, object]] = []
    all_texts = chain.from_iterable(runs.values())
    for count in dict.fromkeys(map(len, all_texts)):
        speeds: dict[str, float] = {}
        fairness: dict[str, float] = {}
        for name, run in runs.items():
            rates: list[float] = []
            shares: list[float] = []
            for texts in run:
                if len(texts) == count:
                    found = level(texts)
                    rates.append(number_at(found, "tokens_per_second"))
                    shares.append(number_at(found, "fairness"))
            speeds[name] = round(fmean(rates), 2)
            fairness[name] = min(shares)
        row: dict[str, object] = {"sessions": count, "tokens_per_second": speeds}
        row["over_llama_server"] = _over_llama_server(speeds)
        row["fairness"] = fairness
        rows.append(row)
    return rows


def _over_llama_server(speeds: dict[str, float]) -> float | None:
    ours = speeds.get("specmesh auto")
    theirs: list[float] = []
    for name, speed in speeds.items():
        if name.startswith("llama-server"):
            theirs.append(speed)
    if ours is None or not theirs:
        return None
    return round(ours / max(theirs), 3)


def _arguments() -> argparse.Namespace:
    parser = Options(__doc__)
    parser.option("--target", bundled("target.gguf"))
    parser.option("--drafter", bundled("drafter.gguf"))
    parser.add_argument("--llama-server", type=Path, help="the program to compare with")
    parser.add_argument("--sessions", type=numbers, default=[1, 4, 16], help="clients at once")
    parser.option("--slots", 16, "sessions that each server holds")
    parser.option("--tokens", 64)
    parser.option("--characters", 300, "of each prompt, at most 300")
    parser.option("--repeats", 3)
    parser.option("--threads", 2, "of the target; 0: what each takes by itself")
    parser.add_argument("--cores", type=numbers, default=[0, 1])
    parser.option("--only", "", "contenders whose names begin so")
    parser.switch("--json")
    args = parser.parse_args()
    args.cores = set(args.cores)
    return args


def main() -> None:
    """Start everything, measure, and print."""
    args = _arguments()
    logs.configure("error")
    body: Json = {"max_tokens": args.tokens, "temperature": 0, "ignore_eos": True}
    foreign = Foreign()
    before = os.getloadavg()[0]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        contenders = dict(stack.enter_context(specmesh(args, folder, body)))
        if args.llama_server:
            for drafts in (False, True):
                contenders |= stack.enter_context(other_server(args, folder, body, drafts))
        for name in list(contenders):
            if not name.startswith(tuple(args.only.split(","))):
                del contenders[name]
        runs = measure(contenders, args.sessions, args.repeats, args.characters)
    found: dict[str, list[Json]] = {}
    for name, run in runs.items():
        found[name] = list(map(level, run))
    machine = {"foreign_cores": foreign.cores(), "load_before": round(before, 2)}
    if args.json:
        print(json.dumps({"machine": machine, "contenders": found, "ratios": ratios(runs)}))
        return
    for name, levels in found.items():
        print(f"\n{name}")
        print("\n".join(columns(levels)))
    print(f"\nother programs kept {machine['foreign_cores']} cores busy")
    for row in ratios(runs):
        print(json.dumps(row))


if __name__ == "__main__":
    main()
