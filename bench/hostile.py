"""Measure a verifier's speed beside each kind of hostile drafter, over its speed by itself.

    python bench/hostile.py [--step-ms MS] [--tokens N] [--repeats N] [--keys] [--json]

A real verifier whose engine sleeps for MS per step, and one peer at a time, as a process of its
own, that is always wrong, floods, or keeps just within the limits for ever. Each repeat has a text
with nobody attached, then one beside each peer, in an order that rotates; a ratio is of two texts
of one repeat. Printed are the medians, the lowest ratio, how much of a core the verifier's process
used, and how many frames it dropped. The peer is polite to the processor (nice), because a remote
one takes none of it. With --keys the wire is encrypted, and who was cut off stays out for a while.
"""

import argparse
import contextlib
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import zmq
from command_line import Options
from live import ADDRESS, start, until

from specmesh.client import Client
from specmesh.core.fields import number_at, object_at
from specmesh.daemons.link.dealer import Route
from specmesh.security.keys import KeyFolder, Listing
from specmesh.wire import messages as m
from specmesh.wire.codec import decode, encode

HELLO = m.Hello(
    drafter="hostile",
    engine="none",
    model="none",
    vocab_fingerprint="",
    n_vocab=0,
    n_ctx=8192,
)
IDS = tuple(range(65, 97))
FLOODS: dict[str, list[m.Message]] = {
    "drafts": [m.Draft(0, 40, 0, IDS), m.Draft(0, 40, 0, IDS[:8])],
    "nacks": [m.Nack(0, 0, 0)],
    "hellos": [HELLO, m.Bye()],
    "vocab": [m.Vocab(0)],
    "opens": [
        m.Open(
            ref=1,
            prompt="",
            options={"max_tokens": 1, "temperature": 1.0, "seed": 1, "draft_n": 0},
            ids=[2**31] * 1000,
        )
    ],
}
"""Frames that are sent as fast as the connection takes them; a session's number is filled in.

The request of OPEN cannot be served: a served client is no flood.
"""

WITHIN = {"drafts": 990, "nacks": 99}
"""Frames per second of a peer that is never cut off."""

Table = dict[str, dict[str, object]]

KINDS = ("wrong", *FLOODS, "junk", *(f"{name} within limits" for name in WITHIN))


def peer(kind: str, keys: KeyFolder | None) -> None:
    """Be hostile until killed."""
    os.nice(19)
    dealer = Route(zmq.Context(), ADDRESS, keys=keys).open()
    name, within, _ = kind.partition(" within")
    session, interval = 0, 1 / WITHIN[name] if within else 0.0
    frames = itertools.cycle(
        [b"junk"] if name == "junk" else [encode(message) for message in FLOODS[name]]
    )
    dealer.poll(10_000, zmq.POLLOUT)
    dealer.send(encode(HELLO))
    due = time.monotonic()
    while True:
        if dealer.poll(0):
            message = decode(dealer.recv())
            if isinstance(message, m.Opened):
                session = message.session
            answer: m.Message | None = (
                m.Pong(message.number) if isinstance(message, m.Ping) else None
            )
            answer = HELLO if isinstance(message, m.Error) and message.code == "hello" else answer
            if answer is not None:
                with contextlib.suppress(zmq.Again):
                    dealer.send(encode(answer), zmq.NOBLOCK)
        frame = next(frames)
        if frame[:1] == b"S" and frame[3] < 16:
            frame = frame[:4] + session.to_bytes(4, "little") + frame[8:]
        if time.monotonic() < due:
            time.sleep(max(due - time.monotonic(), 0.0))
        due = max(due + interval, time.monotonic() - 0.1)
        with contextlib.suppress(zmq.Again):
            dealer.send(frame, zmq.NOBLOCK)


def speed(client: Client, tokens: int) -> float:
    """Tokens per second of one text."""
    for chunk in client.complete(
        {"prompt": "overhead", "max_tokens": tokens, "temperature": 0, "draft_n": "auto"}
    ):
        told = chunk["specmesh"]
        if isinstance(told, dict) and "report" in told:
            return float(told["report"]["tokens_per_second"])
    raise SystemExit("the verifier did not report")


@contextlib.contextmanager
def beside(
    kind: str | None, client: Client, folder: Path, keys: "Iterator[list[str]]"
) -> Iterator[None]:
    """While such a peer is there, with a key of its own if any."""
    if kind is None:
        yield
        return
    own = next(keys)
    before = number_at(client.get("/stats"), "wire.frames_received")
    run = [
        sys.executable,
        "-m",
        "specmesh",
        "drafter",
        "--engine",
        "sim",
        "--model",
        "alpha=0,draft_ms=1",
    ]
    wrong = [
        *run,
        "--connect",
        ADDRESS,
        "--socket",
        str(folder / "d.sock"),
        "--log-level",
        "error",
        *own,
    ]
    process = start(wrong if kind == "wrong" else [sys.executable, __file__, "--peer", kind, *own])
    try:
        until(lambda: number_at(client.get("/stats"), "wire.frames_received") > before)
        yield
    finally:
        process.terminate()
        process.wait()
        until(lambda: not client.get("/stats")["peers"])


def busy(process: int) -> float:
    """Processor seconds that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(
    client: Client, process: int, args: argparse.Namespace, folder: Path, keys: Iterator[list[str]]
) -> Table:
    """The numbers, by the kind of peer."""
    kinds: tuple[str | None, ...] = (None, *KINDS)
    ratios: dict[str, list[float]] = {kind: [] for kind in KINDS}
    dropped: dict[str, int] = dict.fromkeys(KINDS, 0)
    used: dict[str | None, list[float]] = {kind: [] for kind in kinds}
    speeds: list[float] = []
    for repeat in range(args.repeats):
        found: dict[str | None, float] = {}
        for kind in kinds[repeat % len(kinds) :] + kinds[: repeat % len(kinds)]:
            before = _rejected(client)
            with beside(kind, client, folder, keys):
                begun, cpu = time.monotonic(), busy(process)
                found[kind] = speed(client, args.tokens)
                used[kind].append((busy(process) - cpu) / (time.monotonic() - begun))
            if kind is not None:
                dropped[kind] += _rejected(client) - before
        speeds.append(found[None])
        for kind in KINDS:
            ratios[kind].append(found[kind] / found[None])
    told: Table = {
        "alone": {
            "tokens_per_second": round(median(speeds), 2),
            "cores": round(median(used[None]), 3),
        }
    }
    for kind in KINDS:
        told[kind] = {
            "ratio": round(median(ratios[kind]), 4),
            "lowest": round(min(ratios[kind]), 4),
            "cores": round(median(used[kind]), 3),
            "frames_dropped": dropped[kind],
        }
    return told


def allowed(folder: Path, count: int) -> tuple[list[str], Iterator[list[str]]]:
    """Options with the verifier's keys, and those of so many peers that it allows."""
    verifier = KeyFolder(folder / "keys")
    server = verifier.new().public.hex()
    options: list[list[str]] = []
    for number in range(count):
        one = KeyFolder(folder / f"keys{number}")
        verifier.allow(Listing.DRAFTERS, one.new().public.hex(), f"peer{number}")
        one.allow(Listing.VERIFIERS, server, ADDRESS)
        options.append(["--keys", str(one.path)])
    return ["--keys", str(verifier.path)], iter(options)


def _rejected(client: Client) -> int:
    rejected = object_at(client.get("/stats"), "wire.rejected")
    return int(sum(number_at(rejected, reason) for reason in rejected))


def main() -> None:
    """Run and print."""
    parser = Options(__doc__)
    parser.option("--step-ms", 20.0)
    parser.option("--tokens", 200)
    parser.option("--repeats", 5)
    parser.add_argument("--keys", nargs="?", const="")
    parser.switch("--json")
    parser.add_argument("--peer", choices=[*FLOODS, *KINDS], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        peer(args.peer, KeyFolder(Path(args.keys)) if args.keys else None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        own, keys = (
            allowed(folder, args.repeats * len(KINDS))
            if args.keys is not None
            else ([], itertools.repeat([]))
        )
        command = [
            sys.executable,
            "-m",
            "specmesh",
            "verifier",
            "--engine",
            "sim",
            "--bind",
            ADDRESS,
            *own,
        ]
        settings = [
            "--model",
            f"step_ms={args.step_ms}",
            "--socket",
            str(folder / "v.sock"),
            "--log-level",
            "error",
        ]
        process = start([*command, *settings])
        try:
            client = Client(folder / "v.sock")
            until(lambda: "peers" in client.get("/stats"))
            told = measure(client, process.pid, args, folder, keys)
        finally:
            process.terminate()
            process.wait(15)
    if args.json:
        print(json.dumps(told))
        return
    alone = told["alone"]
    cores = f"{alone['cores']} cores of {os.cpu_count()}"
    print(f"alone {alone['tokens_per_second']} tokens/s with {cores}")
    for kind in KINDS:
        row = told[kind]
        speed = f"{row['ratio']:7.3f} lowest {row['lowest']:6.3f}"
        drops = f"frames dropped {row['frames_dropped']}"
        print(f"{kind:22} {speed} with {row['cores']:.3f} cores, {drops}")


if __name__ == "__main__":
    main()
