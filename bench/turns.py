"""Measure the time to the first token of a chat's turns, with the prefix cache and without.

    python bench/turns.py [--model FILE] [--drafter FILE] [--turns N] [--words N] [--tokens N]
                          [--repeats N] [--reproducible] [--chats N] [--json]

A real verifier and its drafter, one thread each. A chat is a text that grows by a question of
--words words and an answer of --tokens tokens at each turn. Each turn is asked warm and cold
(`cache_prompt` off), one after the other, the first of them alternating; the chat goes on with the
cold answer. Where the two answers differ, the target judges if they part at a near tie, as
steps of other widths may (--reproducible: none may). The time is from the request until its first
text is here, the median of the repeats, each with words of its own. With --chats so many are taken
in turn, so that others come between the turns of each. Nothing else should run meanwhile: the load
is printed.
"""

import argparse
import json
import os
import random
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from command_line import Options
from live import daemons
from referee import near_tie, referee

from specmesh import logs
from specmesh.client import Client
from specmesh.core.fields import Json, ids_at, number_at, object_at, objects_at
from specmesh.engines.llama.engine import LlamaVerifier
from specmesh.paths import bundled

WORDS = (
    "the of a file line when reads each name from list value with state open step data tree node "
    "list key set row print return class index table write path text order count test model graph "
    "queue token batch"
)
SYSTEM = "You are a careful assistant. Answer in one line.\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One request of a turn."""

    ms: float  # to its first token
    prompt: int  # tokens
    cached: int  # tokens that were in memory
    ids: tuple[int, ...]
    text: str
    asked: str


def ask(client: Client, prompt: str, tokens: int, *, cached: bool) -> Turn:
    """Generate a text after the prompt."""
    body: Json = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "cache_prompt": cached}
    text = ""
    ids: list[int] = []
    report: Json = {}
    began = time.perf_counter()
    first: float | None = None
    with closing(client.complete(body)) as chunks:
        for chunk in chunks:
            extension = object_at(chunk, "specmesh")
            if extension.get("token_ids") and first is None:
                first = time.perf_counter()
            ids += ids_at(extension, "token_ids")
            text += str(objects_at(chunk, "choices")[0]["text"])
            report = object_at(extension, "report") or report
    seconds = (first or time.perf_counter()) - began
    return Turn(
        ms=1e3 * seconds,
        prompt=int(number_at(report, "prompt_tokens")),
        cached=int(number_at(report, "cached_tokens")),
        ids=tuple(ids),
        text=text,
        asked=prompt,
    )


def outcome(warm: Turn, cold: Turn, target: LlamaVerifier) -> str:
    """Return "same", "near tie" or "different"."""
    if warm.ids == cold.ids:
        return "same"
    prompt = target.tokenizer.encode(cold.asked)
    if near_tie(target, prompt, cold.ids, warm.ids):
        return "near tie"
    return "different"


Pairs = list[tuple[Turn, Turn]]
"""Turns that were asked warm and cold."""


def chat(client: Client, options: argparse.Namespace, repeat: int) -> list[Pairs]:
    """Return the pairs of all chats, by turn. The chats take turns."""
    luck = random.Random(repeat)
    texts = [SYSTEM] * options.chats
    found: list[Pairs] = []
    for number in range(options.turns):
        warm_first = bool((repeat + number) % 2)
        pairs: Pairs = []
        for index in range(options.chats):
            question = " ".join(luck.choices(WORDS.split(), k=options.words))
            texts[index] += f"\nUser: {question}?\nAssistant:"
            asked: dict[bool, Turn] = {}
            for cached in (warm_first, not warm_first):
                asked[cached] = ask(client, texts[index], options.tokens, cached=cached)
            pairs.append((asked[True], asked[False]))
            texts[index] += asked[False].text
        found.append(pairs)
    return found


def main() -> None:
    """Run it."""
    parser = Options(__doc__)
    parser.option("--model", bundled("target.gguf"))
    parser.option("--drafter", bundled("drafter.gguf"))
    parser.option("--turns", 10)
    parser.option("--words", 60)
    parser.option("--tokens", 24)
    parser.option("--repeats", 3)
    parser.option("--chats", 1)
    parser.option("--ctx", 4096)
    parser.switch("--reproducible")
    parser.switch("--json")
    options = parser.parse_args()
    logs.configure("error")
    common = ["--threads", "1", "--ctx", str(options.ctx), "--max-sessions", "4"]
    verifier = ["--model", options.model, *common]
    if options.reproducible:
        verifier.append("--reproducible")
    drafter = ["--model", options.drafter, *common]
    with (
        tempfile.TemporaryDirectory(prefix="sm-", dir="/tmp") as folder,
        daemons(Path(folder), verifier, drafter) as client,
    ):
        ask(client, SYSTEM, 8, cached=False)
        turns: list[Pairs] = [[] for _ in range(options.turns)]
        for repeat in range(options.repeats):
            for pairs, more in zip(turns, chat(client, options, repeat), strict=True):
                pairs.extend(more)
        prefix_cache = client.get("/stats")["prefix_cache"]
    with referee(options.model, options.ctx) as target:
        rows: list[Json] = []
        for number, pairs in enumerate(turns, 1):
            rows.append(row(number, pairs, target))
    record = {
        "turns": rows,
        "prefix_cache": prefix_cache,
        "load": os.getloadavg()[0],
        "cores": os.cpu_count(),
    }
    print(json.dumps(record) if options.json else table(record))


def row(number: int, pairs: Pairs, target: LlamaVerifier) -> Json:
    """Return the row of a turn in all chats."""
    columns: dict[str, list[float]] = defaultdict(list)
    texts: Counter[str] = Counter()
    for warm, cold in pairs:
        columns["prompt"].append(cold.prompt)
        columns["cached"].append(warm.cached)
        columns["warm_ms"].append(warm.ms)
        columns["cold_ms"].append(cold.ms)
        texts[outcome(warm, cold, target)] += 1
    found: Json = {"turn": number}
    for name, values in columns.items():
        found[name] = round(median(values), 2)
    same = {"same_text": texts["same"], "near_tie": texts["near tie"]}
    return found | same | {"of": len(pairs)}


def table(record: Json) -> str:
    """Return the record as a table."""
    rows = objects_at(record, "turns")
    names = list(rows[0])
    lines = [f"| {' | '.join(names)} |", "|" + "---:|" * len(names)]
    for cells in rows:
        shown = map("{:g}".format, cells.values())
        lines.append(f"| {' | '.join(shown)} |")
    load = f"load {record['load']:.1f} of {record['cores']} cores"
    return "\n".join([*lines, "", f"{load}; {record['prefix_cache']}"])


if __name__ == "__main__":
    main()
