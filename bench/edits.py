"""Measure edits: a file is given and written again with one function renamed.

    python bench/edits.py --models FILE,... [--llama-server FILE] [--edits N] [--tokens N]
                          [--verifier NAME=OPTIONS ...] [--types NAME,...] [--threads N]
                          [--repeats N] [--ctx N] [--no-ours] [--json]

Ten files of bench/edits: two versions of each, between which a function was renamed, are about
1,000 ids of a prompt; it ends with the first lines of the third version, and the model goes on for
--tokens. The prediction is version 2. `shared` is the part of the target's own greedy output whose
ids are the prediction's, in order: it says how much of an answer can be drafted. The prompts are
made for SmolLM2-135M, which copies well and often forgets to rename. With less than .8 shared a
table proves little.

- none, suffix, prediction: one verifier without drafters, asked with `draft_n` 0, without the
  prediction, and with it;
- a name of --verifier: a verifier with these options, asked with the prediction;
- llama-server, ngram-...: without drafts, with its defaults, and with other sizes of n-grams.
"""

import argparse
import json
import re
import tomllib
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from beside import Answer, Setting
from command_line import Options
from referee import referee
from rivals import TYPES, Text, Turns, answers_of, chosen, rows, show, verifiers

from specmesh import logs

FOLDER = Path(__file__).parent / "edits"
ENOUGH = 0.8
"""Least part of an answer that should be the prediction's."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A file before its last renaming, and the prompt that has it written again."""

    name: str
    before: str
    prompt: str


def edits() -> list[Edit]:
    """Return all edits of the folder."""
    found: list[Edit] = []
    table = tomllib.loads((FOLDER / "edits.toml").read_text(encoding="utf-8"))
    for each in table["edit"]:
        before = (FOLDER / each["file"]).read_text(encoding="utf-8")
        name = each["file"].removesuffix(".txt")
        prompt = prompt_of(name, before, each["names"], each["lines"])
        found.append(Edit(name, before, prompt))
    return found


def prompt_of(name: str, second: str, names: list[str], lines: int) -> str:
    """Return versions 1 and 2 of a file, and the first lines of version 3.

    names: those of the function in each version.
    """
    former, old, new = names
    first = renamed(second, old, former)
    third = renamed(second, old, new).splitlines(keepends=True)
    versions = [
        f"{name}, version 1\n\n{first}",
        f"{name}, version 2: {former} is now {old}\n\n{second}",
        f"{name}, version 3: {old} is now {new}\n\n" + "".join(third[:lines]),
    ]
    return "\n".join(versions)


def renamed(text: str, old: str, new: str) -> str:
    """Return a text with another name in place of a whole word."""
    return re.sub(rf"\b{old}\b", new, text)


def texts_of(model: str, found: list[Edit], tokens: int) -> tuple[list[Text], list[list[int]]]:
    """Return the edits as texts of a model's ids, and their predictions' ids."""
    texts: list[Text] = []
    predictions: list[list[int]] = []
    with referee(model) as engine:
        encode = engine.tokenizer.encode
        for edit in found:
            texts.append(Text(encode(edit.prompt), tokens, edit.before))
            predictions.append(encode(edit.before))
    return texts, predictions


def shared(ids: list[int], prediction: list[int]) -> float:
    """Return the part of `ids` that are those of the prediction, in its order."""
    matcher = SequenceMatcher(None, ids, prediction, autojunk=False)
    count = sum(block.size for block in matcher.get_matching_blocks())
    return round(count / len(ids), 3)


def shares(answers: list[Answer], predictions: list[list[int]]) -> list[float]:
    """Return the shared part of each answer."""
    found: list[float] = []
    for answer, prediction in zip(answers, predictions, strict=True):
        found.append(shared(answer.ids, prediction))
    return found


def measured(
    args: argparse.Namespace, model: str, texts: list[Text], predictions: list[list[int]]
) -> tuple[Turns, list[float]]:
    """Return all contenders' answers, and the shared part of each text's first one."""
    setting = Setting(model, args.threads, args.ctx, slots=1)
    types = chosen(args.types, TYPES)
    turns = answers_of(args, setting, types, texts, predicts=True)
    first = next(iter(turns.values()))
    return turns, shares(first[: len(texts)], predictions)


def show_shares(found: list[Edit], texts: list[Text], parts: list[float]) -> None:
    """Print the shared part of each edit."""
    for edit, text, part in zip(found, texts, parts, strict=True):
        note = "" if part >= ENOUGH else "  too little"
        print(f"{edit.name:14} {len(text.ids):5} ids given  {part:.3f} shared{note}")


def main() -> None:
    """Measure and print, model by model."""
    parser = Options(__doc__)
    verifiers(parser)
    parser.add_argument("--models", required=True, help="with a context of --ctx")
    parser.option("--edits", 10)
    parser.option("--tokens", 300)
    args = parser.parse_args()
    logs.configure("error")
    found = edits()[: args.edits]
    for model in args.models.split(","):
        texts, predictions = texts_of(model, found, args.tokens)
        turns, parts = measured(args, model, texts, predictions)
        table = rows(turns, texts, model)
        if args.json:
            print(json.dumps({"model": model, "shared": parts, "rows": table}))
            continue
        show_shares(found, texts, parts)
        show(f"{Path(model).stem}, {args.tokens} tokens, threads {args.threads}", table)


if __name__ == "__main__":
    main()
