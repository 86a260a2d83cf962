"""Many clients at once: specmesh beside llama-server's parallel slots, on the same files, slots and cores.

    python bench/load.py --llama-server PATH [--target FILE] [--drafter FILE] [--sessions 1,4,16] [--slots 16]
                         [--tokens N] [--characters N] [--repeats N] [--threads N] [--cores 0,1] [--only NAME,...]
                         [--json]

All servers may use the same cores, with as many threads for the target each; those not asked wait
on a socket. The contenders take turns at each count of clients: who begins moves on by one each
time. The clients (specmesh.bench.load) are the same; each of each turn has a prompt of its own
(bench/held_out.py), so that nobody has read it before. Texts are greedy and all as long.

- specmesh auto, specmesh alone: one pair, `draft_n` "auto" and 0; the drafter has one thread, or
  what it takes;
- llama-server alone, llama-server drafts: without a draft model, and with it at its own settings.

How busy other programs kept the machine is told with the numbers, and the clients' own work is
part of all of them. bench/README.md says how to build llama-server; without one its rows are left
out.
"""

import argparse
import http.client
import json
import os
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from foreign import Foreign
from held_out import prompts
from live import LOADING_S, daemons, start, until

from specmesh import logs
from specmesh.bench.load import Texts, level, run_clients
from specmesh.cli.options import columns
from specmesh.client import Client
from specmesh.core.fields import Json, at, number_at, objects_at
from specmesh.errors import DaemonUnreachable, SpecmeshError
from specmesh.paths import bundled

CTX = 1024
PORT = 7450
DRAFTS = {"drafted": "draft_n", "accepted": "draft_n_accepted"}

Runs = dict[str, list[Texts]]
"""What each contender was measured with: the texts for each count of clients and turn."""


class Server(Client):
    """Another server, on a port of this machine."""

    def __init__(self, port: int) -> None:
        """Connect to nothing yet."""
        super().__init__()
        self._port = port

    def model(self) -> str:
        """Return the name of the first that it serves."""
        told: Any = self.get("/v1/models")
        return str(told["data"][0]["id"])

    def complete(self, body: Json) -> Generator[Json, None, None]:
        """Yield chunks as ours are. One with text counts as a token until `usage` has their number; `timings` has
        llama-server's drafts."""
        known = 0
        for chunk in super().complete(body | {"stream_options": {"include_usage": True}}):
            text = "".join(str(choice["text"]) for choice in objects_at(chunk, "choices"))
            count = max(
                int(number_at(chunk, "usage.completion_tokens", 0)) - known, int(bool(text))
            )
            known += count
            drafts = {ours: at(chunk, f"timings.{theirs}") for ours, theirs in DRAFTS.items()}
            report = {"report": drafts} if "timings" in chunk else {}
            yield {"choices": [{"text": text}], "specmesh": {"token_ids": [0] * count, **report}}

    def _connect(self, *, waits: bool) -> http.client.HTTPConnection:  # noqa: ARG002  (there is only one)
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        try:
            connection.connect()
        except OSError as error:
            raise DaemonUnreachable(f"no server answers at {self._port} ({error})") from None
        return connection


@dataclass(frozen=True, slots=True)
class Contender:
    """A server, and what it is asked for."""

    source: Client
    body: Json


@contextmanager
def specmesh(args: argparse.Namespace, folder: Path, body: Json) -> Iterator[dict[str, Contender]]:
    """One pair: with as many drafts as it thinks pay, and without."""
    common = ["--ctx", str(CTX), "--max-sessions", str(args.slots), "--gpu-layers", "0"]
    ours, theirs = (
        (["--threads", str(args.threads)], ["--threads", "1"]) if args.threads else ([], [])
    )
    verifier = ["--model", args.target, "--max-queue", "64", *ours, *common]
    drafter = ["--model", args.drafter, "--engine", "llama", *theirs, *common]
    with daemons(folder, verifier, drafter, (args.cores, args.cores)) as client:
        yield {
            f"specmesh {name}": Contender(client, body | {"draft_n": draft_n})
            for name, draft_n in (("auto", "auto"), ("alone", 0))
        }


@contextmanager
def llama_server(
    args: argparse.Namespace, folder: Path, body: Json, drafts: bool
) -> Iterator[dict[str, Contender]]:
    """One llama-server with as many slots."""
    port = PORT + drafts
    threads = str(args.threads or len(args.cores))
    options = ["--model", args.target, "--threads", threads, "--threads-batch", threads]
    options += [
        "--ctx-size",
        str(CTX * args.slots),
        "--parallel",
        str(args.slots),
        "--gpu-layers",
        "0",
    ]
    if drafts:
        options += [
            "--spec-draft-model",
            args.drafter,
            "--spec-type",
            "draft-simple",
            "--spec-draft-ngl",
            "0",
        ]
    command = [str(args.llama_server), *options, "--host", "127.0.0.1", "--port", str(port)]
    log = folder / f"llama-server-{port}.log"
    server = Server(port)
    process = start(command, args.cores, log)
    try:
        until(lambda: process.poll() is not None or _up(server), LOADING_S)
        if process.poll() is not None:
            raise SystemExit(f"llama-server ended:\n{log.read_text(errors='replace')[-2000:]}")
        name = "llama-server drafts" if drafts else "llama-server alone"
        yield {name: Contender(server, body | {"model": server.model()})}
    finally:
        process.terminate()
        process.wait(15)


def _up(server: Server) -> bool:
    try:
        return any(True for _ in server.complete({"prompt": "a", "max_tokens": 1}))
    except SpecmeshError:
        return False


def measure(
    contenders: dict[str, Contender], sessions: tuple[int, ...], repeats: int, characters: int
) -> Runs:
    """Every contender at every count, `repeats` times, after a text of each that is not counted. characters: of each
    prompt."""
    names = list(contenders)
    runs: Runs = {name: [] for name in names}
    fresh = prompts(10**6)

    def texts(name: str, count: int) -> Texts:
        one = contenders[name]
        bodies = [one.body | {"prompt": prompt[:characters]} for prompt in islice(fresh, count)]
        return run_clients(one.source, bodies, 1, count, lambda: None)

    for name in names:
        texts(name, 1)
    for count, turn in product(sessions, range(repeats)):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            runs[name].append(texts(name, count))
            found = level(runs[name][-1])
            said = f"{name:20} {count:3} sessions {found['tokens_per_second']:8.1f} tokens/s, {found['fairness']:.2f}"
            print(said, file=sys.stderr, flush=True)
    return runs


def ratios(runs: Runs) -> list[dict[str, object]]:
    """By count: tokens per second, means over its turns; specmesh over the better of llama-server's; fairness, the
    lowest."""
    told: list[dict[str, object]] = []
    for count in dict.fromkeys(len(one) for run in runs.values() for one in run):
        of_count = {
            name: [level(one) for one in run if len(one) == count] for name, run in runs.items()
        }
        speeds = {
            name: fmean(number_at(one, "tokens_per_second") for one in found)
            for name, found in of_count.items()
        }
        theirs = max(
            (speed for name, speed in speeds.items() if name.startswith("llama-server")),
            default=None,
        )
        told.append(
            {
                "sessions": count,
                "tokens_per_second": {name: round(speed, 2) for name, speed in speeds.items()},
                "over_llama_server": _over(speeds.get("specmesh auto"), theirs),
                "fairness": {
                    name: min(number_at(one, "fairness") for one in found)
                    for name, found in of_count.items()
                },
            }
        )
    return told


def _over(ours: float | None, theirs: float | None) -> float | None:
    return None if ours is None or theirs is None else round(ours / theirs, 3)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default=bundled("target.gguf"))
    parser.add_argument("--drafter", default=bundled("drafter.gguf"))
    parser.add_argument("--llama-server", type=Path, help="the program to compare with")
    parser.add_argument("--sessions", type=_counts, default=(1, 4, 16), help="clients at once")
    parser.add_argument("--slots", type=int, default=16, help="sessions that each server holds")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--characters", type=int, default=300, help="of each prompt, at most 300")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--threads", type=int, default=2, help="of the target; 0: what each takes by itself"
    )
    parser.add_argument("--cores", type=lambda text: set(_counts(text)), default={0, 1})
    parser.add_argument(
        "--only", type=lambda text: text.split(","), help="contenders whose names begin so"
    )
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _counts(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def main() -> None:
    """Start everything, measure, tell."""
    args = _arguments()
    logs.configure("error")
    body: Json = {"max_tokens": args.tokens, "temperature": 0, "ignore_eos": True}
    foreign, before = Foreign(), os.getloadavg()[0]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        contenders = dict(stack.enter_context(specmesh(args, folder, body)))
        for drafts in (False, True) if args.llama_server else ():
            contenders |= stack.enter_context(llama_server(args, folder, body, drafts))
        if args.only:
            contenders = {
                name: one for name, one in contenders.items() if name.startswith(tuple(args.only))
            }
        runs = measure(contenders, args.sessions, args.repeats, args.characters)
    found = {name: [level(one) for one in run] for name, run in runs.items()}
    machine = {"foreign_cores": foreign.cores(), "load_before": round(before, 2)}
    if args.json:
        print(json.dumps({"machine": machine, "contenders": found, "ratios": ratios(runs)}))
        return
    for name, run in found.items():
        print("\n".join([f"\n{name}", *columns(run)]))
    print(f"\nother programs kept {machine['foreign_cores']} cores busy")
    for one in ratios(runs):
        print(json.dumps(one))


if __name__ == "__main__":
    main()
