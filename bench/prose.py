"""Measure ordinary prose and code: a drafter daemon, and what drafts without one.

    python bench/prose.py --models TARGET --drafter FILE [--llama-server FILE] [--tokens N]
                          [--verifier NAME=OPTIONS ...] [--types NAME,...] [--threads N]
                          [--repeats N] [--ctx N] [--no-ours] [--json]

Ten prompts of bench/prose.toml. `none` is a verifier asked with `draft_n` 0, `suffix` the same one
asked with "auto", `drafter` one with a drafter daemon of one thread attached. llama-server has the
same target and threads: without drafts, by type of n-gram, and `draft-simple` with the same draft
model, at its default and with --spec-draft-n-max 1 to 8. The last table has the acceptance of each
prompt at `draft-simple 1`, the part of the target's tokens that the draft model has right.
"""

import argparse
import json
import tomllib
from pathlib import Path

from beside import Setting
from command_line import Options
from referee import referee
from rivals import TYPES, Text, Turns, answers_of, chosen, rows, show, verifiers

from specmesh import logs
from specmesh.bench.texts import ratio
from specmesh.paths import bundled

PROMPTS = Path(__file__).with_suffix(".toml")
DEFAULT = "ngram-mod,draft-simple,draft-simple 1,draft-simple 4"
ONE_DRAFT = "draft-simple 1"


def types_of(drafter: str, threads: int) -> dict[str, str]:
    """Return llama-server's options, by name, those with the draft model too."""
    model = f"--spec-type draft-simple --spec-draft-model '{drafter}' --spec-draft-ngl 0"
    words = f"{model} --spec-draft-threads {threads} --spec-draft-threads-batch {threads}"
    types = dict(TYPES)
    types["draft-simple"] = words
    for most in range(1, 9):
        types[f"draft-simple {most}"] = f"{words} --spec-draft-n-max {most}"
    return types


def prompts() -> dict[str, str]:
    """Return the prompts by name."""
    table = tomllib.loads(PROMPTS.read_text(encoding="utf-8"))
    return {each["name"]: each["text"] for each in table["prompt"]}


def texts_of(model: str, tokens: int) -> list[Text]:
    """Return the prompts as texts of a model's ids."""
    texts: list[Text] = []
    with referee(model) as engine:
        for prompt in prompts().values():
            texts.append(Text(engine.tokenizer.encode(prompt), tokens))
    return texts


def measured(args: argparse.Namespace, model: str, texts: list[Text]) -> Turns:
    """Return all contenders' answers."""
    setting = Setting(model, args.threads, args.ctx, slots=1)
    types = chosen(args.types, types_of(args.drafter, args.threads))
    return answers_of(args, setting, types, texts)


def acceptance(turns: Turns) -> dict[str, float | None]:
    """Return the acceptance of single drafts, by prompt; nothing if these were not measured."""
    found: dict[str, float | None] = {}
    for name, answer in zip(prompts(), turns.get(ONE_DRAFT, []), strict=False):
        found[name] = ratio(answer.accepted, answer.drafted, 2)
    return found


def main() -> None:
    """Measure and print, model by model."""
    parser = Options(__doc__)
    verifiers(parser)
    parser.set_defaults(types=DEFAULT, ctx=1024)
    parser.option("--models", bundled("target.gguf"))
    parser.option("--drafter", bundled("drafter.gguf"))
    parser.option("--tokens", 128)
    args = parser.parse_args()
    logs.configure("error")
    for model in args.models.split(","):
        texts = texts_of(model, args.tokens)
        turns = measured(args, model, texts)
        table = rows(turns, texts, model)
        single = acceptance(turns)
        if args.json:
            print(json.dumps({"model": model, "acceptance": single, "rows": table}))
            continue
        show(f"{Path(model).stem}, {args.tokens} tokens, threads {args.threads}", table)
        for name, part in single.items():
            print(f"{name:14} {part} accepted")


if __name__ == "__main__":
    main()
