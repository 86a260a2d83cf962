"""Check a real vLLM with drafters of specmesh: the texts are those without speculation.

    python bench/vllm_soak.py --python PYTHON --model FOLDER [--drafter FILE] [--seconds N]
                              [--clients N] [--tokens N] [--only-soak] [--json]

PYTHON is that of an environment with vLLM, FOLDER a Hugging Face model, FILE a GGUF of its family.
First 40 prompts are answered without speculation, which is the truth. Then by a server with our
class, one after the other: beside a drafter without a model, and beside one with FILE. Last, for
N seconds, by a server that is short of everything: four rows, prompts read in parts of 96 ids, so
few blocks that rows are preempted, clients that leave in the middle. It goes on until 20 rows were
preempted, three times as long at most. Meanwhile the drafter is killed and started again, another
one lies in every draft, and a third one has a key that nobody allows. The last line has the counts.
Exit code 1 if a text differs, an answer fails, or less happened than was meant to.
"""

import argparse
import itertools
import json
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import zmq
from command_line import Options
from live import command, is_drafted, running, start, until
from vllm_server import OURS, Answer, Installed, Start, VllmServer, custom, ours, serving, texts

from specmesh.client import Client
from specmesh.core.fields import object_at, objects_at
from specmesh.core.prefix import Prefix
from specmesh.daemons.link.dealer import Route
from specmesh.errors import SpecmeshError
from specmesh.paths import bundled
from specmesh.security.keys import KeyFolder, Listing
from specmesh.wire import messages as m
from specmesh.wire.codec import decode, encode

DRAFTS = 8
ROOMY = ("--max-num-seqs", "4", "--max-model-len", "2048")
BLOCK = 32
BLOCKS = 8
SHORT = (
    "--max-num-seqs", "4", "--max-model-len", str(BLOCKS * BLOCK),
    "--max-num-batched-tokens", "96", "--enable-chunked-prefill", "--block-size", str(BLOCK),
    "--num-gpu-blocks-override", str(BLOCKS + 1), "--no-enable-prefix-caching",
)  # fmt: skip
"""A server whose rows do not all find blocks: vLLM needs as many as the longest text, and one.

Four short prompts fit into half of them, and need 20 at the end of their texts.
"""

PROMPTS = 24
LONG_PROMPT = 350
SHORT_PROMPT = 150
"""Characters of prompts of the soak, by turns: up to 145 ids, more than a step reads, and 50."""

MOST_TIMES = 3
"""Times the seconds of the soak, at most, until there were enough preemptions."""

LEAVING = 0.15
"""Share of clients that leave."""

DRAFTER_LIVES_S = 12.0
LEAST_PREEMPTIONS = 20
TRACEBACK = 4000  # characters that are printed of one
TEXT_OF_PIECE = (0, 1, 2)
"""Ids that a lying drafter drafts, again and again."""


@dataclass(slots=True, kw_only=True)
class Soak:
    """What happened. different: prompts whose text was another."""

    answers: int = 0
    left: int = 0
    kills: int = 0
    lies: int = 0
    different: list[str] = field(default_factory=list[str])
    errors: Counter[str] = field(default_factory=Counter[str])


def told(server: VllmServer, prompts: Sequence[str], tokens: int, clients: int = 1) -> list[Answer]:
    """Return the answers to all prompts, asked by so many clients at once."""
    with ThreadPoolExecutor(clients) as pool:
        return list(pool.map(lambda prompt: server.complete(prompt, tokens), prompts))


def checked(
    installed: Installed, drafters: Sequence[dict[str, object]], tokens: int
) -> list[dict[str, object]]:
    """Return how the answers beside each drafter compare with those without speculation."""
    address, variables = ours(installed.logs)
    alone = Start(name="alone", options=ROOMY)
    speculative = custom(OURS, DRAFTS)
    drafted = Start(name="beside", speculative=speculative, options=ROOMY, variables=variables)
    found: list[dict[str, object]] = []
    with serving(installed, alone, drafted) as (plain, server):
        truth = told(plain, texts(), tokens)
        for drafter in drafters:
            words = command("drafter", connect=address, **drafter)
            found.append(beside_a_drafter(installed.logs, server, truth, words, tokens))
            print(json.dumps(found[-1]), file=sys.stderr)
    return found


def beside_a_drafter(
    folder: Path, server: VllmServer, truth: Sequence[Answer], words: list[str], tokens: int
) -> dict[str, object]:
    """Return how the answers beside a drafter compare with the truth. words: its command."""
    kind = "model" if "--model" in words else "ngram"
    client = Client(folder / "vllm.sock")
    before = server.drafts()
    with running([*words, "--socket", str(folder / "d.sock")], log=folder / f"{kind}.log"):
        until(lambda: is_drafted(client))
        answers = told(server, texts(), tokens)
        stats = client.get("/stats")
    until(lambda: not is_drafted(client))
    drafted, accepted = server.drafts_since(before)
    same = sum(one.ids == other.ids for one, other in zip(answers, truth, strict=True))
    return {
        "drafter": kind,
        "texts": len(answers),
        "same": same,
        "drafted": drafted,
        "accepted": accepted,
        "accepted_by_source_so_far": object_at(stats, "totals.accepted_by_source"),
    }


# --- faults


@contextmanager
def dying_drafter(words: list[str], log: Path, soak: Soak) -> Iterator[None]:
    """Run a drafter that is killed, and started again, again and again."""
    over = threading.Event()

    def live() -> None:
        while not over.is_set():
            process = start(words, log=log)
            over.wait(DRAFTER_LIVES_S)
            process.send_signal(signal.SIGKILL)
            process.wait()
            soak.kills += 1

    yield from _meanwhile(live, over)


@contextmanager
def lying_drafter(address: str, keys: KeyFolder, soak: Soak) -> Iterator[None]:
    """Run a drafter that names each prefix rightly, and drafts what is wrong."""
    over = threading.Event()

    def lie() -> None:
        dealer = Route(zmq.Context(), address, keys=keys).open()
        with suppress(zmq.ZMQError):
            Liar(dealer, soak).lie_until(over)

    yield from _meanwhile(lie, over)


class Liar:
    """Attaches as a good drafter does, keeps the truth of each session, and drafts other ids."""

    def __init__(self, dealer: "zmq.Socket[bytes]", soak: Soak) -> None:
        """Begin without sessions."""
        self._dealer = dealer
        self._soak = soak
        self._truth: dict[int, list[int]] = {}
        self._ids = itertools.cycle(TEXT_OF_PIECE)

    def lie_until(self, over: threading.Event) -> None:
        """Answer all that comes."""
        hello = m.Hello(
            drafter="liar", engine="none", model="none", vocab_fingerprint="", n_vocab=0, n_ctx=8192
        )
        self._dealer.poll(10_000, zmq.POLLOUT)
        self._dealer.send(encode(hello))
        while not over.is_set():
            if self._dealer.poll(100):
                self._answer(decode(self._dealer.recv()))

    def _answer(self, message: m.Message) -> None:
        match message:
            case m.Ping(number):
                self._dealer.send(encode(m.Pong(number)))
            case m.Sync(session, base, _, ids) | m.Truth(session, base, _, ids):
                truth = self._truth.setdefault(session, [])
                del truth[base:]
                truth += ids
                if message.draft_n:
                    self._draft(session, truth)
            case _:
                pass

    def _draft(self, session: int, truth: list[int]) -> None:
        ids = tuple(next(self._ids) for _ in range(4))
        self._dealer.send(encode(m.Draft(session, len(truth), Prefix(truth).crc, ids)))
        self._soak.lies += 1


def _meanwhile(work: object, over: threading.Event) -> Iterator[None]:
    assert callable(work), "it is a function"
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30)


# --- the soak


def soaked_prompts() -> list[str]:
    """Return prompts that need all blocks, or few of them at first."""
    prompts: list[str] = []
    for number, text in enumerate(texts()[:PROMPTS]):
        prompts.append(text[: SHORT_PROMPT if number % 2 else LONG_PROMPT])
    return prompts


def soaked(
    installed: Installed, drafter: dict[str, object], args: argparse.Namespace
) -> dict[str, object]:
    """Return what a server that is short of everything has answered, and whether it was right."""
    folder = installed.logs
    prompts = soaked_prompts()
    keys = KeyFolder(folder / "keys")
    address, variables = ours(folder, keys.path)
    public = keys.new().public.hex()
    options: list[list[str]] = []
    for name in ("dying", "lying", "stranger"):
        own = KeyFolder(folder / f"keys-{name}")
        key = own.new().public.hex()
        own.allow(Listing.VERIFIERS, public, address)
        if name != "stranger":
            keys.allow(Listing.DRAFTERS, key, name)
        words = command("drafter", connect=address, socket=folder / f"{name}.sock", **drafter)
        options.append([*words, "--keys", str(own.path)])
    dying, _, stranger = options
    soak = Soak()
    speculative = custom(OURS, DRAFTS)
    starts = (
        Start(name="truth", options=SHORT),
        Start(name="soak", speculative=speculative, options=SHORT, variables=variables),
    )
    with serving(installed, *starts) as (plain, server):
        truth = told(plain, prompts, args.tokens, args.clients)
        client = Client(folder / "vllm.sock")
        with (
            dying_drafter(dying, folder / "dying.log", soak),
            lying_drafter(address, KeyFolder(folder / "keys-lying"), soak),
            running(stranger, log=folder / "stranger.log"),
        ):
            known = list(zip(prompts, truth, strict=True))
            for _ in range(MOST_TIMES):
                _ask_for(args.seconds, server, known, soak, args)
                if server.count("num_preemptions") >= LEAST_PREEMPTIONS:
                    break
        stats = client.get("/stats")
        preemptions = server.count("num_preemptions")
        drafted, accepted = server.drafts()
        alive = server.answers()
        # Before it is stopped: then vLLM may report its own engine as dead.
        found = tracebacks(server.log.read_text(errors="replace"))
    print("\n".join(found), file=sys.stderr)
    return {
        "answers": soak.answers,
        "different": len(soak.different),
        "left": soak.left,
        "preemptions": preemptions,
        "kills": soak.kills,
        "lies": soak.lies,
        "drafters": [peer["drafter"] for peer in objects_at(stats, "peers")],
        "drafted": drafted,
        "accepted": accepted,
        "errors": dict(soak.errors),
        "alive": alive,
        "tracebacks": len(found),
    }


def tracebacks(log: str) -> list[str]:
    """Return the tracebacks of a log, each with the lines behind it."""
    return [each[:TRACEBACK] for each in log.split("Traceback")[1:]]


def _ask_for(
    seconds: float,
    server: VllmServer,
    known: list[tuple[str, Answer]],
    soak: Soak,
    args: argparse.Namespace,
) -> None:
    """Ask by several clients at once until the time is over."""
    end = time.monotonic() + seconds
    lock = threading.Lock()

    def client(number: int) -> None:
        choice = random.Random(number)
        while time.monotonic() < end:
            prompt, truth = choice.choice(known)
            leaving = choice.random() < LEAVING
            leave_after = choice.randint(1, max(args.tokens // 2, 1)) if leaving else 0
            try:
                answer = server.complete(prompt, args.tokens, leave_after)
            except (OSError, SystemExit) as error:
                with lock:
                    soak.errors[f"{type(error).__name__}: {error}"[:200]] += 1
                continue
            right = answer == truth
            if leaving:
                right = answer.ids == truth.ids[: len(answer.ids)]
            with lock:
                soak.answers += 1
                soak.left += leaving
                if not right:
                    soak.different.append(prompt)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(args.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def failed(report: dict[str, object], checks: Sequence[dict[str, object]]) -> list[str]:
    """Return what is not as it must be."""
    found: list[str] = []
    for check in checks:
        if check["same"] != check["texts"]:
            found.append(f"{check['drafter']}: {check['same']} of {check['texts']} texts the same")
        if not check["accepted"]:
            found.append(f"{check['drafter']}: no draft was accepted")
    for name in ("different", "errors", "tracebacks"):
        if report[name]:
            found.append(f"the soak has {name}: {report[name]}")
    if not report["alive"]:
        found.append("the server is dead")
    preemptions = report["preemptions"]
    assert isinstance(preemptions, int), "it is counted"
    if preemptions < LEAST_PREEMPTIONS:
        found.append(f"only {preemptions} preemptions")
    return found


def in_a_line(report: dict[str, object]) -> str:
    """Return the counts, for people."""
    counts = [f"{name} {report[name]}" for name in ("different", "preemptions", "kills", "lies")]
    up = "up" if report["alive"] else "down"
    return f"soak: {report['answers']} texts, {', '.join(counts)}, server {up}"


def main() -> None:
    """Check, soak and print."""
    parser = Options(__doc__)
    parser.option("--python", Path(sys.executable), "Python of an environment with vLLM.")
    parser.option("--model", Path(), "folder of a Hugging Face model.")
    parser.option("--drafter", bundled("drafter.gguf"), "GGUF file of a model of its family.")
    parser.option("--seconds", 100.0)
    parser.option("--clients", 5)
    parser.option("--tokens", 96)
    parser.switch("--only-soak", "leave out the texts beside drafters that live")
    parser.switch("--json")
    args = parser.parse_args()
    with_model: dict[str, object] = {"model": args.drafter, "threads": 1}
    with tempfile.TemporaryDirectory() as folder:
        installed = Installed(args.python, args.model, Path(folder))
        try:
            checks: list[dict[str, object]] = []
            if not args.only_soak:
                drafters: list[dict[str, object]] = [{"engine": "ngram"}, with_model]
                checks = checked(installed, drafters, args.tokens)
            report = soaked(installed, with_model, args)
        except SpecmeshError as error:
            raise SystemExit(f"vllm_soak: {error}") from None
    print(json.dumps({"checks": checks, "soak": report}, indent=None if args.json else 2))
    print(in_a_line(report), file=sys.stderr)
    raise SystemExit("\n".join(failed(report, checks)) or 0)


if __name__ == "__main__":
    main()
