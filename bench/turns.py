"""What a turn of a chat costs: its time to the first token, with what earlier turns left in memory and without.

    python bench/turns.py [--model FILE] [--drafter FILE] [--turns N] [--words N] [--tokens N] [--repeats N]
                          [--reproducible] [--chats N] [--json]

A real verifier and its drafter, one thread each. A chat is a text that grows by a question of --words words and an
answer of --tokens tokens at each turn. Each turn is asked warm and cold (`cache_prompt` off), one after the other, the
first of them alternating; the chat goes on with the cold answer. Where the two answers differ, the target says whether
they part at a near tie, as steps of other widths may (--reproducible: none may). The time is from the request until its
first text is here, the median of the repeats, each with words of its own. With --chats so many are taken in turn, so
that others come between the turns of each. Nothing else should run meanwhile: the load is printed.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from specmesh.client import Client
from specmesh.core.fields import Json, ids_at, number_at, object_at, objects_at
from specmesh.engines.llama import LlamaVerifier
from specmesh.paths import bundled

sys.path.insert(0, str(Path(__file__).parent))
from live import daemons
from referee import near_tie, referee

WORDS = (
    "the of a file line when reads each name from list value with state open step data tree node list key set row "
    "print return class index table write path text order count test model graph queue token batch"
)
SYSTEM = "You are a careful assistant. Answer in one line.\n"


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn, asked once: milliseconds to its first text, its prompt's tokens, those found in memory, and its ids."""

    ms: float
    prompt: int
    cached: int
    ids: tuple[int, ...]
    text: str
    asked: str


def ask(client: Client, prompt: str, tokens: int, *, cached: bool) -> Turn:
    """Have a text written after the prompt."""
    body: Json = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "cache_prompt": cached}
    began, first, text, ids, report = time.perf_counter(), None, "", list[int](), Json()
    with closing(client.complete(body)) as chunks:
        for chunk in chunks:
            told = object_at(chunk, "specmesh")
            if told.get("token_ids") and first is None:
                first = time.perf_counter()
            ids += ids_at(told, "token_ids")
            text += str(objects_at(chunk, "choices")[0]["text"])
            report = object_at(told, "report") or report
    ms = 1e3 * ((first or time.perf_counter()) - began)
    prompt_tokens, cached_tokens = (
        int(number_at(report, f"{one}_tokens")) for one in ("prompt", "cached")
    )
    return Turn(ms, prompt_tokens, cached_tokens, tuple(ids), text, prompt)


def outcome(warm: Turn, cold: Turn, target: LlamaVerifier) -> str:
    """same, near tie or different."""
    if warm.ids == cold.ids:
        return "same"
    at = next((i for i, (a, b) in enumerate(zip(warm.ids, cold.ids, strict=False)) if a != b), None)
    if at is None:
        return "different"
    prefix = [*target.tokenizer.encode(cold.asked), *cold.ids[:at]]
    return "near tie" if near_tie(target, prefix, {warm.ids[at], cold.ids[at]}) else "different"


def chat(client: Client, options: argparse.Namespace, repeat: int) -> list[list[tuple[Turn, Turn]]]:
    """Chats taken in turn; by chat and turn how it went warm and cold."""
    luck, words = random.Random(repeat), WORDS.split()
    texts = [SYSTEM] * options.chats
    found: list[list[tuple[Turn, Turn]]] = [[] for _ in texts]
    for number in range(options.turns):
        for index, turns in enumerate(found):
            texts[index] += (
                "\nUser: " + " ".join(luck.choices(words, k=options.words)) + "?\nAssistant:"
            )
            ways = (True, False) if (repeat + number) % 2 else (False, True)
            asked = {
                cached: ask(client, texts[index], options.tokens, cached=cached) for cached in ways
            }
            turns.append((asked[True], asked[False]))
            texts[index] += asked[False].text
    return found


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default=bundled("target.gguf"))
    parser.add_argument("--drafter", default=bundled("drafter.gguf"))
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--words", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--chats", type=int, default=1)
    parser.add_argument("--ctx", type=int, default=4096)
    parser.add_argument("--reproducible", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    common = ["--threads", "1", "--ctx", str(options.ctx), "--max-sessions", "4"]
    verifier = [
        "--model",
        options.model,
        *common,
        *(["--reproducible"] if options.reproducible else []),
    ]
    drafter = ["--model", options.drafter, *common]
    with (
        tempfile.TemporaryDirectory(prefix="sm-", dir="/tmp") as folder,
        daemons(Path(folder), verifier, drafter) as client,
    ):
        ask(client, SYSTEM, 8, cached=False)
        chats = [one for repeat in range(options.repeats) for one in chat(client, options, repeat)]
        prefix_cache = client.get("/stats")["prefix_cache"]
    with referee(options.model, options.ctx) as target:
        rows = [
            row(number + 1, [one[number] for one in chats], target)
            for number in range(options.turns)
        ]
    record = {
        "turns": rows,
        "prefix_cache": prefix_cache,
        "load": os.getloadavg()[0],
        "cores": os.cpu_count(),
    }
    print(json.dumps(record) if options.json else table(record))


def row(number: int, asked: list[tuple[Turn, Turn]], target: LlamaVerifier) -> Json:
    """What came of a turn in all chats."""
    texts = Counter(outcome(warm, cold, target) for warm, cold in asked)
    return {
        "turn": number,
        "prompt": median(cold.prompt for _, cold in asked),
        "cached": median(warm.cached for warm, _ in asked),
        "warm_ms": round(median(warm.ms for warm, _ in asked), 2),
        "cold_ms": round(median(cold.ms for _, cold in asked), 2),
        "same_text": texts["same"],
        "near_tie": texts["near tie"],
        "of": len(asked),
    }


def table(record: Json) -> str:
    """The same for people."""
    names = ("turn", "prompt", "cached", "warm_ms", "cold_ms", "same_text", "near_tie", "of")
    rows = objects_at(record, "turns")
    lines = ["| " + " | ".join(names) + " |", "|" + "---:|" * len(names)]
    lines += ["| " + " | ".join(f"{one[name]:g}" for name in names) + " |" for one in rows]
    return "\n".join(
        [
            *lines,
            "",
            f"load {record['load']:.1f} of {record['cores']} cores; {record['prefix_cache']}",
        ]
    )


if __name__ == "__main__":
    main()
