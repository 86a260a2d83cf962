"""Count the ids of a next prompt that a verifier has in its cache, and compare with llama-server.

    python bench/prefixes.py --llama-server FILE --models FILE,... [--vocabulary N] [--threads N]
                             [--tie NATS] [--reproducible] [--json]

A prompt of 700 random ids is answered with 16 tokens. Then one more prompt is asked, of one of five
shapes, each for a first prompt of its own:

- again: the same one
- next turn: it, its answer, and 60 ids
- edited: its first 650 ids, and 60 others
- other end: its first 690 ids, and 10 others
- dropped: it and its answer without the last 3 ids, as when a template drops the thoughts

Two conversations ask in turn for a first turn, then a second one. Each last
answer of ours is compared with one without the cache. They may differ at a near tie: the second
token is at most NATS behind the first. The prompts are drawn from the ids 40 .. N - 1.
"""

import json
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path

from beside import Json, Server, Setting, ours, theirs
from command_line import Options
from overflow import TOP_LOGPROBS, Answer, answer_in, compared, post

PROMPT = 700
TOKENS = 16
LEAST_ID = 40
ALONE: Json = {"cache_prompt": False}

SHAPES = ("again", "next turn", "edited", "other end", "dropped")


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, and how many ids of its prompt were in the cache."""

    answer: Answer
    cached: int


def next_prompt(shape: str, prompt: list[int], answer: list[int], more: list[int]) -> list[int]:
    """Return a prompt of a shape. more: 60 other ids."""
    text = prompt + answer
    match shape:
        case "again":
            return prompt
        case "next turn":
            return text + more
        case "edited":
            return prompt[:650] + more
        case "other end":
            return prompt[:690] + more[:10]
        case _:
            return text[:-3]


def ask(server: Server, ids: list[int], more: Json | None = None) -> Reply:
    """Ask for TOKENS more. more: fields of the body."""
    body = server.dialect.wish(ids, TOKENS) | {"stream": False} | (more or {})
    if server.name == "theirs":
        document = post(server, body)
        return Reply(Answer(document["tokens"], []), document["timings"]["cache_n"])
    document = post(server, body | TOP_LOGPROBS)
    cached = document["usage"]["prompt_tokens_details"]["cached_tokens"]
    return Reply(answer_in(document), cached)


def cached_ids(server: Server, vocabulary: int) -> tuple[dict[str, int], list[list[int]]]:
    """Return the ids from the cache by shape, and the prompts that were asked last."""
    found: dict[str, int] = {}
    prompts: list[list[int]] = []
    for seed, shape in enumerate(SHAPES):
        rng = random.Random(seed)
        drawn = [rng.randrange(LEAST_ID, vocabulary) for _ in range(PROMPT + 60)]
        prompt = drawn[:PROMPT]
        first = ask(server, prompt)
        prompts.append(next_prompt(shape, prompt, first.answer.ids, drawn[PROMPT:]))
        found[shape] = ask(server, prompts[-1]).cached
    rng = random.Random(len(SHAPES))
    turns: list[list[int]] = []
    for _ in "AB":
        turns.append([rng.randrange(LEAST_ID, vocabulary) for _ in range(PROMPT)])
    answers = [ask(server, turn).answer.ids for turn in turns]
    for number in range(2):
        prompts.append(turns[number] + answers[number] + turns[number][:60])
        found[f"in turn, {'AB'[number]}"] = ask(server, prompts[-1]).cached
    return found, prompts


def differences(server: Server, prompts: list[list[int]], tie: float) -> list[str]:
    """Return how each answer from the cache differs from the one without, near ties apart."""
    found: list[str] = []
    for prompt in prompts:
        warm = ask(server, prompt)
        cold = ask(server, prompt, ALONE)
        found.append(compared(warm.answer, cold.answer, tie))
    return found


def count_same(server: Server, prompts: list[list[int]]) -> int:
    """Return how many answers from the cache are those without."""
    same = 0
    for prompt in prompts:
        warm = ask(server, prompt)
        same += warm.answer.ids == ask(server, prompt, ALONE).answer.ids
    return same


def main() -> None:
    """Count, and print a line for each model and server."""
    parser = Options(__doc__)
    parser.add_argument("--llama-server", type=Path, required=True)
    parser.add_argument("--models", required=True)
    parser.option("--vocabulary", 40_000)
    parser.option("--threads", 2)
    parser.option("--tie", 0.1)
    parser.switch("--reproducible")
    parser.switch("--json")
    args = parser.parse_args()
    options = ["--reproducible"] if args.reproducible else []
    for model in args.models.split(","):
        setting = Setting(model, args.threads, ctx=1024, slots=8)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            with (
                ours(setting, folder, options) as (us, _),
                theirs(args.llama_server, setting, folder) as (
                    them,
                    _,
                ),
            ):
                found, prompts = cached_ids(us, args.vocabulary)
                rival, _ = cached_ids(them, args.vocabulary)
                texts = differences(us, prompts, args.tie)
                their_same = count_same(them, prompts)
        if args.json:
            print(json.dumps({"model": model, "ours": found, "theirs": rival, "texts": texts}))
            continue
        print(f"\n{Path(model).stem}; ids from the cache, ours and theirs")
        for (shape, cached), text in zip(found.items(), texts, strict=True):
            print(f"{shape:12} {cached:4} {rival[shape]:4}  our text: {text}")
        print(f"llama-server's texts: {their_same} the same", flush=True)


if __name__ == "__main__":
    main()
