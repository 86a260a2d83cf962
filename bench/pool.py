"""Measure a pool of three drafters, of which two die and one lies, beside the best by itself.

    python bench/pool.py [--step-ms MS] [--tokens N] [--repeats N] [--liar wrong|echo] [--json]

A real verifier whose engine sleeps for MS per step, and drafters that sleep too, as processes of
their own. Each repeat has one text with the best drafter alone, and one with the pool: the best,
one that is slower and less often right, and a liar. In the middle of the second text the best is
killed, and started again; then the other one is. A ratio is of the two texts of one repeat. The
liar is always wrong; with `echo` it also sends late drafts that are always right, as they are
copied from the text that it is told. Printed are the medians, the lowest ratio, and whether every
text is the target's own.
"""

import argparse
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import zmq
from command_line import Options
from live import start, until

from specmesh.client import Client
from specmesh.core.prefix import Prefix
from specmesh.daemons.link.dealer import Route
from specmesh.wire import messages as m
from specmesh.wire.codec import decode, encode

BEST = "draft_ms=2,alpha=0.8"
OTHER = "draft_ms=3,alpha=0.75"
WRONG = "draft_ms=1,alpha=0"
RUN = [sys.executable, "-m", "specmesh"]
PROMPT = "a pool of drafters"


def echo(address: str) -> None:
    """Be a drafter whose drafts are wrong, but for late ones that are copied, until killed."""
    dealer = Route(zmq.Context(), address).open()
    dealer.poll(10_000, zmq.POLLOUT)
    hello = m.Hello(
        drafter="liar",
        engine="none",
        model="none",
        vocab_fingerprint="",
        n_vocab=0,
        n_ctx=8192,
    )
    dealer.send(encode(hello))
    texts: dict[int, Prefix] = {}
    while True:
        message = decode(dealer.recv())
        match message:
            case m.Ping(number):
                dealer.send(encode(m.Pong(number)))
            case m.Opened(session):
                texts[session] = Prefix()
            case m.Truth(session, base, _, ids, draft_n) | m.Sync(session, base, _, ids, draft_n):
                text = texts.setdefault(session, Prefix())
                if base > len(text):
                    dealer.send(encode(m.Nack(session, len(text), text.crc)))
                    continue
                text.truncate(base)
                text.extend(ids)
                if draft_n:
                    dealer.send(encode(m.Draft(session, len(text), text.crc, (0,) * draft_n)))
                elif len(text) > 8:
                    at = len(text) - 8
                    dealer.send(
                        encode(m.Draft(session, at, text.crc_at(at), tuple(text[at : len(text)])))
                    )
            case _:
                pass


class Pool:
    """A verifier and whichever drafters a text is to have."""

    def __init__(
        self, folder: Path, step_ms: float, liar: str = "wrong", *options: str, row_ms: float = 0.5
    ) -> None:
        self._folder, self._liar = folder, liar
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        model = f"step_ms={step_ms},row_ms={row_ms}"
        verifier = ["verifier", "--engine", "sim", "--model", model, "--bind", self.address]
        self.process = start(
            [*RUN, *verifier, *options, "--socket", str(folder / "v.sock"), "--log-level", "error"]
        )
        self.client = Client(folder / "v.sock")
        until(lambda: "peers" in self.client.get("/stats"))
        self.drafters: dict[str, int] = {}

    def attach(self, name: str) -> None:
        """Start a drafter, by its settings or as the liar."""
        if name == "liar" and self._liar == "echo":
            process = start([sys.executable, __file__, "--be-liar", self.address])
        else:
            options = [
                "--engine",
                "sim",
                "--model",
                WRONG if name == "liar" else name,
                "--connect",
                self.address,
            ]
            path = self._folder / f"{time.monotonic_ns()}.sock"
            process = start(
                [*RUN, "drafter", *options, "--socket", str(path), "--log-level", "error"]
            )
        self.drafters[name] = process.pid

    def kill(self, name: str) -> None:
        """End a drafter at once."""
        pid = self.drafters.pop(name)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def alone(self, *names: str) -> None:
        """Have exactly these drafters."""
        for name in set(self.drafters) - set(names):
            self.kill(name)
        for name in names:
            if name not in self.drafters:
                self.attach(name)
        until(lambda: len(self._peers()) == len(names))

    def _peers(self) -> list[object]:
        peers = self.client.get("/stats")["peers"]
        assert isinstance(peers, list)
        return peers

    def close(self) -> None:
        """End all of it."""
        self.alone()
        self.process.terminate()
        self.process.wait(15)

    def text(self, tokens: int, when: dict[int, Callable[[], None]]) -> tuple[float, list[int]]:
        """Return tokens per second of one text, and its ids. when: actions by number of tokens."""
        ids: list[int] = []
        waiting = sorted(when.items())
        body = {"prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "draft_n": "auto"}
        for chunk in self.client.complete(body):
            told = chunk["specmesh"]
            assert isinstance(told, dict)
            new = told.get("token_ids", [])
            ids += new if isinstance(new, list) else []
            while waiting and len(ids) >= waiting[0][0]:
                waiting.pop(0)[1]()
            if "report" in told:
                return float(told["report"]["tokens_per_second"]), ids
        raise SystemExit("the verifier did not report")


def measure(pool: Pool, tokens: int, repeats: int) -> dict[str, object]:
    """The numbers."""
    ratios: list[float] = []
    speeds: list[float] = []
    texts: list[list[int]] = []
    for _ in range(repeats):
        pool.alone(BEST)
        best, ids = pool.text(tokens, {})
        texts.append(ids)
        pool.alone(BEST, OTHER, "liar")
        events: dict[int, Callable[[], None]] = {}
        for name, at in ((BEST, tokens // 4), (OTHER, tokens // 2)):
            events[at] = lambda name=name: pool.kill(name)  # type: ignore[misc]
            events[at + tokens // 20] = lambda name=name: pool.attach(name)  # type: ignore[misc]
        speed, ids = pool.text(tokens, events)
        texts.append(ids)
        speeds.append(best)
        ratios.append(speed / best)
    return {
        "best_alone": round(median(speeds), 2),
        "ratio": round(median(ratios), 4),
        "lowest": round(min(ratios), 4),
        "texts_equal": all(ids == texts[0] and len(ids) == tokens for ids in texts),
    }


def main() -> None:
    """Run and print."""
    parser = Options(__doc__)
    parser.option("--step-ms", 20.0)
    parser.option("--tokens", 2000)
    parser.option("--repeats", 3)
    parser.add_argument("--liar", choices=["wrong", "echo"], default="wrong")
    parser.switch("--json")
    parser.add_argument("--be-liar", metavar="ADDRESS", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.be_liar:
        echo(args.be_liar)
    with tempfile.TemporaryDirectory() as name:
        pool = Pool(Path(name), args.step_ms, args.liar)
        try:
            told = measure(pool, args.tokens, args.repeats)
        finally:
            pool.close()
    if args.json:
        print(json.dumps(told))
        return
    print(f"the best alone: {told['best_alone']} tokens/s")
    print(f"the pool: {told['ratio']} times that, lowest {told['lowest']}")
    print(f"every text the target's own: {told['texts_equal']}")


if __name__ == "__main__":
    main()
