"""Measure an agent's loop: ten turns over the same files, whose contents come again and again.

    python bench/agent_loop.py --models FILE,... [--llama-server FILE] [--turns N] [--tokens N]
                               [--verifier NAME=OPTIONS ...] [--types NAME,...] [--threads N]
                               [--repeats N] [--ctx N] [--no-ours] [--json]

Each turn adds a tool's result of about 500 ids to the conversation: a part of a file of bench/edits
that begins in the middle of the part before, so that half of it was shown already; after the end of
a file comes the next one, after the second the first again. The model then writes --tokens: in
every other turn it quotes the lines that it wants to change, in the others it writes freely. All
contenders get the same conversation, with the answers of the first, and keep what they have read.

Contenders and columns: as bench/edits.py, without a prediction. `none` is a verifier asked with
`draft_n` 0, `suffix` the same one asked with "auto".
"""

import argparse
import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from beside import Setting
from command_line import Options
from edits import edits
from referee import referee
from rivals import (
    TYPES,
    Contenders,
    Place,
    Text,
    Turns,
    chosen,
    contending,
    noted,
    rows,
    show,
    take_turns,
    verifiers,
)

from specmesh import logs
from specmesh.engines.llama.engine import LlamaVerifier

LINES = 50
"""Lines of a tool's result: about 500 ids."""
FILES = 2
TASK = "Find the places in which a wrong argument is not refused, and have each raise an error."


def results() -> Iterator[str]:
    """Yield the tool's results, without end: parts of files, each half of which is old."""
    files = edits()[:FILES]
    while True:
        for file in files:
            lines = file.before.splitlines(keepends=True)
            for first in range(0, len(lines) - LINES // 2, LINES // 2):
                part = "".join(lines[first : first + LINES])
                yield f"read_file {file.name}, from line {first + 1}:\n{part}"


def turn_of(number: int, result: str) -> str:
    """Return the text of a turn up to the agent's answer."""
    if number % 2:
        return f"\n\nTool: {result}\nAgent: "
    lines = result.splitlines()
    middle = len(lines) // 2
    quoted = "\n".join(lines[middle : middle + 2])
    return f"\n\nTool: {result}\nAgent: These lines change:\n{quoted}\n"


def run_loop(
    contenders: Contenders, engine: LlamaVerifier, turns: int, tokens: int
) -> tuple[Turns, list[Text]]:
    """Have all contenders do all turns; return their answers, and the text of each turn."""
    found: Turns = defaultdict(list)
    texts: list[Text] = []
    encode = engine.tokenizer.encode
    ids = encode(f"User: {TASK}")
    names = list(contenders)
    parts = results()
    for number in range(turns):
        ids = ids + encode(turn_of(number, next(parts)))
        first = number % len(names)
        rotated = names[first:] + names[:first]
        order = {name: contenders[name] for name in rotated}
        texts.append(Text(ids, tokens))
        for name, answers in take_turns(order, texts[-1:], noted).items():
            found[name] += answers
        ids = ids + found[names[0]][-1].ids
    return found, texts


def measured(args: argparse.Namespace, model: str) -> tuple[Turns, list[Text]]:
    """Return all contenders' answers, and the text of each of them."""
    setting = Setting(model, args.threads, args.ctx, slots=1)
    types = chosen(args.types, TYPES)
    turns: Turns = defaultdict(list)
    texts: list[Text] = []
    with referee(model, args.ctx) as engine:
        for _ in range(args.repeats):
            with tempfile.TemporaryDirectory() as name:
                place = Place(setting, Path(name))
                with contending(place, args, types) as contenders:
                    answers, asked = run_loop(contenders, engine, args.turns, args.tokens)
                texts += asked
                for contender, each in answers.items():
                    turns[contender] += each
    return turns, texts


def main() -> None:
    """Measure and print, model by model."""
    parser = Options(__doc__)
    verifiers(parser)
    parser.set_defaults(ctx=8192)
    parser.add_argument("--models", required=True, help="with a context of --ctx")
    parser.option("--turns", 10)
    parser.option("--tokens", 128)
    args = parser.parse_args()
    logs.configure("error")
    for model in args.models.split(","):
        turns, texts = measured(args, model)
        table = rows(turns, texts, model)
        longest = len(texts[-1].ids) + args.tokens
        if args.json:
            print(json.dumps({"model": model, "longest": longest, "rows": table}))
            continue
        title = f"{Path(model).stem}: {args.turns} turns of {args.tokens} tokens, {longest} ids"
        show(f"{title}, threads {args.threads}", table)


if __name__ == "__main__":
    main()
