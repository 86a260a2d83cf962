"""Drafts over a pool of llama.cpp's RPC servers, where a step costs the network.

    make models
    python bench/rpc.py [--delay MS] [--texts N] [--tokens N] [--target M --drafter M] [--json]

Two `specmesh rpc-server` on loopback, each behind a proxy that delays each direction by MS (1, 5
and 20 by default), hold the target's layers; a drafter by llama.cpp runs beside. SmolLM2's F16
target and Q4_0 draft model, unless others are named. Each text is written twice in turn, without
drafts and with `draft_n: auto`, by the same daemons. Printed are tokens per second of both, their
ratio, the acceptance rate, drafts per round, the milliseconds of a step of both, and how many texts
were the same. Nothing else may run on the machine.
"""

import argparse
import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

sys.path.append(str(Path(__file__).parents[1] / "tools"))

from held_out import prompts
from live import daemons, free_port, start, until
from real_models import path as real_model

from specmesh.client import Client
from specmesh.core.fields import Json, object_at

RUN = [sys.executable, "-m", "specmesh"]
DELAYS = (1.0, 5.0, 20.0)  # milliseconds, each way
WARM_UP = 32  # tokens, before anything is measured


@dataclass(slots=True, kw_only=True)
class Measured:
    """The texts over a pool with one delay.

    alone, drafted: tokens per second of each text.
    step_alone, step_drafted: milliseconds of a step of each text.
    verified, accepted, rounds: sums over the texts with drafts.
    same: texts that drafts did not change.
    """

    delay_ms: float
    alone: list[float] = field(default_factory=list)
    drafted: list[float] = field(default_factory=list)
    step_alone: list[float] = field(default_factory=list)
    step_drafted: list[float] = field(default_factory=list)
    verified: int = 0
    accepted: int = 0
    rounds: int = 0
    same: int = 0

    def add(self, alone: Json, drafted: Json, *, same: bool) -> None:
        """Add the reports of one text, without drafts and with them."""
        self.alone.append(number_at(alone, "tokens_per_second"))
        self.drafted.append(number_at(drafted, "tokens_per_second"))
        self.step_alone.append(number_at(alone, "verify_ms") / number_at(alone, "rounds"))
        self.step_drafted.append(number_at(drafted, "verify_ms") / number_at(drafted, "rounds"))
        self.verified += int(number_at(drafted, "drafted"))
        self.accepted += int(number_at(drafted, "accepted"))
        self.rounds += int(number_at(drafted, "rounds"))
        self.same += same

    @property
    def ratio(self) -> float:
        """Return the median of the ratios of each text."""
        pairs = zip(self.drafted, self.alone, strict=True)
        return median(drafted / alone for drafted, alone in pairs)

    def row(self) -> str:
        """Return the line of a table."""
        return (
            f"{self.delay_ms:8.0f} {median(self.alone):7.2f} {median(self.drafted):8.2f}"
            f" {self.ratio:6.2f} {self.accepted / max(self.verified, 1):11.2f}"
            f" {self.verified / self.rounds:9.2f} {median(self.step_alone):10.1f}"
            f" {median(self.step_drafted):12.1f}  {self.same}/{len(self.alone)}"
        )


def number_at(report: Json, key: str) -> float:
    """Return a number of a report."""
    value = report[key]
    assert isinstance(value, int | float)
    return float(value)


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False


@contextmanager
def pool(delay_ms: float) -> Iterator[str]:
    """Run two RPC servers behind proxies, and yield what `--rpc` takes."""
    proxy = str(Path(__file__).with_name("delay_proxy.py"))
    addresses = list[str]()
    with ExitStack() as stack:
        for _ in range(2):
            port = free_port()
            server = start([*RUN, "rpc-server", "--bind", f"127.0.0.1:{port}", "--threads", "1"])
            stack.callback(server.wait, 15)
            stack.callback(server.kill)
            until(lambda port=port: _listens(port))  # type: ignore[misc]
            near = stack.enter_context(_proxy([proxy, str(port), str(delay_ms / 1e3), "0"]))
            addresses.append(f"127.0.0.1:{near}")
        yield ",".join(addresses)


@contextmanager
def _proxy(words: list[str]) -> Iterator[int]:
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def write(client: Client, prompt: str, tokens: int, draft_n: object) -> tuple[list[int], Json]:
    """Return the ids of a text, and its report."""
    body: Json = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "draft_n": draft_n}
    ids: list[int] = []
    for chunk in client.complete(body):
        part = object_at(chunk, "specmesh")
        new = part.get("token_ids", [])
        assert isinstance(new, list)
        ids += new
        if "report" in part:
            return ids, object_at(part, "report")
    raise SystemExit("the verifier did not report")


def measure(delay_ms: float, args: argparse.Namespace) -> Measured:
    """Write each text without drafts and with them, in turn."""
    measured = Measured(delay_ms=delay_ms)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = stack.enter_context(pool(delay_ms))
        common = ["--engine", "llama", "--threads", "1", "--ctx", "2048", "--max-sessions", "1"]
        verifier = [*common, "--model", args.target, "--rpc", servers, "--gpu-layers", "99"]
        drafter = [*common, "--model", args.drafter]
        client = stack.enter_context(daemons(folder, verifier, drafter))
        write(client, "Warm up", args.warm_up, "auto")
        for number, prompt in enumerate(prompts(args.texts)):
            ways: list[object] = [0, "auto"]
            if number % 2:
                ways.reverse()
            texts = {way: write(client, prompt, args.tokens, way) for way in ways}
            alone, drafted = texts[0], texts["auto"]
            measured.add(alone[1], drafted[1], same=alone[0] == drafted[0])
    return measured


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--delay", type=float, action="append", help="milliseconds, each way")
    parser.add_argument("--texts", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--warm-up", type=int, default=WARM_UP)
    parser.add_argument("--target", default="")
    parser.add_argument("--drafter", default="")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    args.target = args.target or str(real_model("smollm2-f16.gguf"))
    args.drafter = args.drafter or str(real_model("smollm2-q4_0.gguf"))
    rows = [measure(delay, args) for delay in args.delay or DELAYS]
    if args.json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    print("delay ms   alone  drafted  ratio  acceptance  drafts/r  step alone  step drafted  same")
    for row in rows:
        print(row.row())


if __name__ == "__main__":
    main()
