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
import itertools
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from operator import truediv
from pathlib import Path
from statistics import median

import zmq
from command_line import Options
from live import ADDRESS, command, is_drafted, running, until

from specmesh.bench.texts import generate
from specmesh.client import Client
from specmesh.core.fields import Json, number_at, object_at
from specmesh.daemons.link.dealer import Route
from specmesh.security.keys import KeyFolder, Listing
from specmesh.wire import messages as m
from specmesh.wire.codec import decode, encode

HELLO = m.Hello(
    drafter="hostile", engine="none", model="none", vocab_fingerprint="", n_vocab=0, n_ctx=8192
)
IDS = tuple(range(65, 97))
OPTIONS: Json = {"max_tokens": 1, "temperature": 1.0, "seed": 1, "draft_n": 0}
LONG_DRAFT = m.Draft(0, 40, 0, IDS)
SHORT_DRAFT = m.Draft(0, 40, 0, IDS[:8])
UNKNOWN_IDS = m.Open(ref=1, prompt="", options=OPTIONS, ids=[2**31] * 1000)
FLOODS: dict[str, list[m.Message]] = {
    "drafts": [LONG_DRAFT, SHORT_DRAFT],
    "nacks": [m.Nack(0, 0, 0)],
    "hellos": [HELLO, m.Bye()],
    "vocab": [m.Vocab(0)],
    "opens": [UNKNOWN_IDS],
}
"""Frames that are sent as fast as the connection takes them; a session's number is filled in.

The request of OPEN cannot be served: a served client is no flood.
"""

WITHIN = {"drafts": 990, "nacks": 99}
"""Frames per second of a peer that is never cut off."""

KINDS = ("wrong", *FLOODS, "junk", "drafts within limits", "nacks within limits")

Table = dict[str, dict[str, object]]


def peer(kind: str, keys: KeyFolder | None) -> None:
    """Be hostile until killed."""
    os.nice(19)
    dealer = Route(zmq.Context(), ADDRESS, keys=keys).open()
    name, within, _ = kind.partition(" within")
    frames = [b"junk"]
    if name in FLOODS:
        frames = list(map(encode, FLOODS[name]))
    interval = 0.0
    if within:
        interval = 1 / WITHIN[name]
    session = 0
    dealer.poll(10_000, zmq.POLLOUT)
    dealer.send(encode(HELLO))
    due = time.monotonic()
    for frame in itertools.cycle(frames):
        if dealer.poll(0):
            message = decode(dealer.recv())
            if isinstance(message, m.Opened):
                session = message.session
            reply(dealer, message)
        wait = due - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        due = max(due + interval, time.monotonic() - 0.1)
        with suppress(zmq.Again):
            dealer.send(of_session(frame, session), zmq.NOBLOCK)


def reply(dealer: zmq.Socket[bytes], message: m.Message) -> None:
    """Answer a message without which the verifier would end the connection."""
    answer: m.Message
    match message:
        case m.Ping(number):
            answer = m.Pong(number)
        case m.Error(code="hello"):
            answer = HELLO
        case _:
            return
    with suppress(zmq.Again):
        dealer.send(encode(answer), zmq.NOBLOCK)


def of_session(frame: bytes, session: int) -> bytes:
    """Return a frame with the number of a session, if it is of a type that has one."""
    if frame[:1] == b"S" and frame[3] < 16:
        return frame[:4] + session.to_bytes(4, "little") + frame[8:]
    return frame


def speed(client: Client, tokens: int) -> float:
    """Return the tokens per second of one text."""
    body: Json = {"prompt": "overhead", "max_tokens": tokens, "temperature": 0, "draft_n": "auto"}
    text = generate(client, body)
    return number_at(text.report, "tokens_per_second")


@contextmanager
def beside(
    kind: str | None, client: Client, folder: Path, keys: Iterator[list[str]]
) -> Iterator[None]:
    """Run a peer of this kind, with a key of its own if any; None: no peer."""
    if kind is None:
        yield
        return
    words = [sys.executable, __file__, "--peer", kind]
    if kind == "wrong":
        words = command(
            "drafter",
            engine="sim",
            model="alpha=0,draft_ms=1",
            connect=ADDRESS,
            socket=folder / "d.sock",
            log_level="error",
        )
    before = _received(client)
    with running([*words, *next(keys)]):
        until(lambda: _received(client) > before)
        yield
    until(lambda: not is_drafted(client))


def _received(client: Client) -> float:
    return number_at(client.get("/stats"), "wire.frames_received")


def _rejected(client: Client) -> int:
    rejected = object_at(client.get("/stats"), "wire.rejected")
    total = 0.0
    for reason in rejected:
        total += number_at(rejected, reason)
    return int(total)


def processor_seconds(process: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Tally:
    """The measurements beside one kind of peer, one of each repeat. dropped: frames of all."""

    speeds: list[float] = field(default_factory=list[float])
    cores: list[float] = field(default_factory=list[float])
    dropped: int = 0


def measure(
    client: Client, process: int, args: argparse.Namespace, folder: Path, keys: Iterator[list[str]]
) -> Table:
    """Return the numbers, by the kind of peer."""
    kinds = (None, *KINDS)
    tallies: dict[str | None, Tally] = defaultdict(Tally)
    for repeat in range(args.repeats):
        first = repeat % len(kinds)
        for kind in kinds[first:] + kinds[:first]:
            tally = tallies[kind]
            rejected = _rejected(client)
            with beside(kind, client, folder, keys):
                begun = time.monotonic()
                used = processor_seconds(process)
                tally.speeds.append(speed(client, args.tokens))
                used = processor_seconds(process) - used
                tally.cores.append(used / (time.monotonic() - begun))
            tally.dropped += _rejected(client) - rejected
    alone = tallies[None]
    tokens_per_second = round(median(alone.speeds), 2)
    cores = round(median(alone.cores), 3)
    table: Table = {"alone": {"tokens_per_second": tokens_per_second, "cores": cores}}
    for kind in KINDS:
        tally = tallies[kind]
        ratios = list(map(truediv, tally.speeds, alone.speeds))
        table[kind] = {
            "ratio": round(median(ratios), 4),
            "lowest": round(min(ratios), 4),
            "cores": round(median(tally.cores), 3),
            "frames_dropped": tally.dropped,
        }
    return table


def allowed(folder: Path, count: int) -> tuple[list[str], Iterator[list[str]]]:
    """Return options with the verifier's keys, and those of so many peers that it allows."""
    verifier = KeyFolder(folder / "keys")
    server = verifier.new().public.hex()
    options: list[list[str]] = []
    for number in range(count):
        own = KeyFolder(folder / f"keys{number}")
        verifier.allow(Listing.DRAFTERS, own.new().public.hex(), f"peer{number}")
        own.allow(Listing.VERIFIERS, server, ADDRESS)
        options.append(["--keys", str(own.path)])
    return ["--keys", str(verifier.path)], iter(options)


def _arguments() -> argparse.Namespace:
    parser = Options(__doc__)
    parser.option("--step-ms", 20.0)
    parser.option("--tokens", 200)
    parser.option("--repeats", 5)
    parser.add_argument("--keys", nargs="?", const="")
    parser.switch("--json")
    parser.add_argument("--peer", choices=[*FLOODS, *KINDS], help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Run and print."""
    args = _arguments()
    if args.peer:
        peer(args.peer, KeyFolder(Path(args.keys)) if args.keys else None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        own: list[str] = []
        keys: Iterator[list[str]] = itertools.repeat([])
        if args.keys is not None:
            own, keys = allowed(folder, args.repeats * len(KINDS))
        words = command(
            "verifier",
            engine="sim",
            model=f"step_ms={args.step_ms}",
            bind=ADDRESS,
            socket=folder / "v.sock",
            log_level="error",
        )
        with running([*words, *own]) as process:
            client = Client(folder / "v.sock")
            until(lambda: "peers" in client.get("/stats"))
            table = measure(client, process.pid, args, folder, keys)
    if args.json:
        print(json.dumps(table))
        return
    alone = table["alone"]
    cores = f"{alone['cores']} cores of {os.cpu_count()}"
    print(f"alone {alone['tokens_per_second']} tokens/s with {cores}")
    for kind in KINDS:
        row = table[kind]
        speeds = f"{row['ratio']:7.3f} lowest {row['lowest']:6.3f}"
        drops = f"frames dropped {row['frames_dropped']}"
        print(f"{kind:22} {speeds} with {row['cores']:.3f} cores, {drops}")


if __name__ == "__main__":
    main()
