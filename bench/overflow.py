"""Do long texts that do not fit the cells together all end, with the text that each has alone?

Sessions of `--ids` ids each ask at once for `--tokens` more, greedy, on a pool with half of the
cells that all of them need. Then each is asked for alone, on a verifier that has read nothing.
Two texts may differ at a near tie: where they part, the log probabilities of both tokens are at
most `--tie` nats apart, as steps of different widths round differently. How much that may be is the
model's: with --reproducible both verifiers round alike, and texts have to be the same.
"""

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from urllib.request import Request, urlopen

from beside import OURS, Json, Server, started
from live import command, free_port

from specmesh.client import Client

HOURS_S = 4 * 3600.0
TOP_LOGPROBS: Json = {"logprobs": 5}  # they go by their texts, which several tokens may share


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request got.

    ids: of its text. margins: how far the second best token is behind, in nats, for each.
    """

    ids: list[int]
    margins: list[float]


@contextmanager
def verifier(words: Sequence[str], folder: Path) -> Iterator[tuple[Server, Client]]:
    """Run a verifier; yield it and its client. words: its options, defaults besides."""
    port = free_port()
    socket_path = folder / f"{port}.sock"
    place = command(
        "verifier",
        http=f"127.0.0.1:{port}",
        bind=f"tcp://127.0.0.1:{free_port()}",
        socket=socket_path,
        log_level="warning",
    )
    log = folder / "verifier.log"
    with started([*place, "--insecure-no-auth", *words], port, log) as (pid, _):
        yield Server(OURS, pid, port), Client(socket_path)


def post(server: Server, body: Json) -> Json:
    """Return what a server answers to a body."""
    request = Request(  # of this machine
        f"http://127.0.0.1:{server.port}{server.dialect.path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urlopen(request, timeout=HOURS_S) as answer:  # noqa: S310
        document: Json = json.load(answer)
    return document


def answer_in(document: Json) -> Answer:
    """Return the answer in a document of ours, which was asked for with TOP_LOGPROBS."""
    margins: list[float] = []
    for best in document["choices"][0]["logprobs"]["top_logprobs"]:
        first, *others = sorted(best.values(), reverse=True)
        margins.append(first - others[0] if others else inf)
    return Answer(document["specmesh"]["token_ids"], margins)


def ask(server: Server, ids: Sequence[int], tokens: int) -> Answer:
    """Return the greedy answer to a prompt of ids."""
    body: Json = {"prompt": list(ids), "max_tokens": tokens, "temperature": 0}
    return answer_in(post(server, body | {"ignore_eos": True} | TOP_LOGPROBS))


def compared(together: Answer, alone: Answer, tie: float) -> str:
    """Return how two answers to one prompt differ."""
    for i, (one, other) in enumerate(zip(together.ids, alone.ids, strict=True)):
        if one != other:
            margin = alone.margins[i]
            kind = "a near tie" if margin <= tie else "DIFFERENT"
            return f"{kind}, at token {i}, {margin:.3f} nats"
    return "same"


def prompts(sessions: int, ids: int, vocabulary: int) -> list[list[int]]:
    """Return prompts that share nothing: pieces of a few hundred ids, again and again."""
    found = []
    for seed in range(sessions):
        chosen = random.Random(seed)
        piece = [chosen.randrange(1000, vocabulary) for _ in range(300)]
        text: list[int] = []
        while len(text) < ids:
            begin = chosen.randrange(200)
            text += piece[begin : begin + chosen.randrange(20, 100)]
        found.append(text[:ids])
    return found


def main() -> None:
    """Run both, and print a line for each session."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--ids", type=int, default=20_000)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--vocabulary", type=int, default=40_000)
    parser.add_argument("--tie", type=float, default=0.1)
    parser.add_argument("--reproducible", action="store_true")
    asked = parser.parse_args()
    texts = prompts(asked.sessions, asked.ids, asked.vocabulary)
    cells = asked.sessions * asked.ids // 2
    words = ["--model", str(asked.model), "--kv-cache", str(cells)]
    if asked.reproducible:
        words.append("--reproducible")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with verifier(words, folder) as (server, client):
            began = time.perf_counter()
            with ThreadPoolExecutor(asked.sessions) as pool:
                together = list(pool.map(lambda text: ask(server, text, asked.tokens), texts))
            print(f"together: {time.perf_counter() - began:.0f} s", flush=True)
            print(json.dumps(client.get("/stats").get("kv_cache")), flush=True)
        with verifier(words, folder) as (server, _):
            for i, text in enumerate(texts):
                alone = ask(server, text, asked.tokens)
                print(f"session {i}: {compared(together[i], alone, asked.tie)}", flush=True)


if __name__ == "__main__":
    main()
