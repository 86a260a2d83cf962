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
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import zmq
from command_line import Options
from live import Process, command, free_port, start, until

from specmesh.client import Client
from specmesh.core.fields import Json, ids_at, number_at, object_at, objects_at
from specmesh.core.prefix import Prefix
from specmesh.daemons.link.dealer import Route
from specmesh.wire import messages as m
from specmesh.wire.codec import decode, encode

Actions = dict[int, Callable[[], object]]
"""Actions in the middle of a text, by the number of its tokens."""

BEST = "draft_ms=2,alpha=0.8"
OTHER = "draft_ms=3,alpha=0.75"
WRONG = "draft_ms=1,alpha=0"
PROMPT = "a pool of drafters"
BEHIND = 8
"""Ids between the end of a text and a late draft for it."""


def echo(address: str) -> None:
    """Be a drafter whose drafts are wrong, but for late ones that are copied, until killed."""
    dealer = Route(zmq.Context(), address).open()
    dealer.poll(10_000, zmq.POLLOUT)
    hello = m.Hello(
        drafter="liar", engine="none", model="none", vocab_fingerprint="", n_vocab=0, n_ctx=8192
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
            case m.Truth() | m.Sync():
                text = texts.setdefault(message.session, Prefix())
                answer = answer_to(message, text)
                if answer is not None:
                    dealer.send(encode(answer))
            case _:
                pass


def answer_to(message: m.Truth | m.Sync, text: Prefix) -> m.Message | None:
    """Bring a text up to date; return a wrong draft if one is wanted, else a late one."""
    session = message.session
    if message.base > len(text):
        return m.Nack(session, len(text), text.crc)
    text.truncate(message.base)
    text.extend(message.ids)
    if message.draft_n:
        return m.Draft(session, len(text), text.crc, (0,) * message.draft_n)
    at = len(text) - BEHIND
    if at <= 0:
        return None
    return m.Draft(session, at, text.crc_at(at), tuple(text[at : len(text)]))


class Pool:
    """A verifier, and the drafters that a text is to have."""

    def __init__(self, folder: Path, step_ms: float, liar: str) -> None:
        self._folder = folder
        self._liar = liar
        self._address = f"tcp://127.0.0.1:{free_port()}"
        path = folder / "v.sock"
        words = command(
            "verifier",
            engine="sim",
            model=f"step_ms={step_ms},row_ms=0.5",
            bind=self._address,
            socket=path,
            log_level="error",
        )
        self._process = start(words)
        self._client = Client(path)
        until(lambda: "peers" in self._client.get("/stats"))
        self._drafters: dict[str, Process] = {}

    def attach(self, name: str) -> None:
        """Start a drafter, by its settings or as the liar."""
        model = WRONG if name == "liar" else name
        words = command(
            "drafter",
            engine="sim",
            model=model,
            connect=self._address,
            socket=self._folder / f"{time.monotonic_ns()}.sock",
            log_level="error",
        )
        if name == "liar" and self._liar == "echo":
            words = [sys.executable, __file__, "--be-liar", self._address]
        self._drafters[name] = start(words)

    def kill(self, name: str) -> None:
        """End a drafter at once."""
        process = self._drafters.pop(name)
        process.kill()
        process.wait()

    def alone(self, *names: str) -> None:
        """Have exactly these drafters."""
        for name in set(self._drafters) - set(names):
            self.kill(name)
        for name in names:
            if name not in self._drafters:
                self.attach(name)
        until(lambda: len(objects_at(self._client.get("/stats"), "peers")) == len(names))

    def close(self) -> None:
        """End all of it."""
        self.alone()
        self._process.terminate()
        self._process.wait(15)

    def text(self, tokens: int, actions: Actions) -> tuple[float, list[int]]:
        """Return the tokens per second of one text, and its ids, with actions in the middle."""
        ids: list[int] = []
        waiting = sorted(actions.items())
        body: Json = {"prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "draft_n": "auto"}
        for chunk in self._client.complete(body):
            extension = object_at(chunk, "specmesh")
            ids += ids_at(extension, "token_ids")
            while waiting and len(ids) >= waiting[0][0]:
                _, act = waiting.pop(0)
                act()
            if "report" in extension:
                return number_at(extension, "report.tokens_per_second"), ids
        raise SystemExit("the verifier did not report")


def measure(pool: Pool, tokens: int, repeats: int) -> dict[str, object]:
    """Return the numbers."""
    ratios: list[float] = []
    speeds: list[float] = []
    texts: list[list[int]] = []
    for _ in range(repeats):
        pool.alone(BEST)
        best, ids = pool.text(tokens, {})
        texts.append(ids)
        pool.alone(BEST, OTHER, "liar")
        actions: Actions = {}
        for name, at in ((BEST, tokens // 4), (OTHER, tokens // 2)):
            actions[at] = partial(pool.kill, name)
            actions[at + tokens // 20] = partial(pool.attach, name)
        speed, ids = pool.text(tokens, actions)
        texts.append(ids)
        speeds.append(best)
        ratios.append(speed / best)
    equal = all(ids == texts[0] for ids in texts)
    return {
        "best_alone": round(median(speeds), 2),
        "ratio": round(median(ratios), 4),
        "lowest": round(min(ratios), 4),
        "texts_equal": equal and len(texts[0]) == tokens,
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
            found = measure(pool, args.tokens, args.repeats)
        finally:
            pool.close()
    if args.json:
        print(json.dumps(found))
        return
    print(f"the best alone: {found['best_alone']} tokens/s")
    print(f"the pool: {found['ratio']} times that, lowest {found['lowest']}")
    print(f"every text the target's own: {found['texts_equal']}")


if __name__ == "__main__":
    main()
