"""Compute the acceptance rate of a draft model that has read a window of a text, or all of it.

    python bench/windows.py --target FILE --drafter FILE [--lengths N,...] [--texts N]
                            [--tokens N] [--sizes N,...] [--draft-n N] [--same] [--json]

The texts are Python modules of the standard library; the target continues each greedily after its
first ids, as many as a length; with --same, after as many as the longest length, of which the draft
model gets the last. It drafts in chains of `draft_n` after the true ids. It has read the whole
text, or a window of the given sizes from half a window back, with and without the model's BOS in
front.
"""

import json
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from command_line import Options, numbers

from specmesh import logs
from specmesh.config import ModelSettings
from specmesh.core.events import Span
from specmesh.core.kv_orders import KVCut
from specmesh.core.sampling.sampler import Sampler, SamplingParams
from specmesh.engines.base import Ask
from specmesh.engines.llama.engine import LlamaDrafter, LlamaVerifier

GREEDY = Sampler(SamplingParams())
PART = 256  # ids of a prompt that are read at once
MODULES = ("argparse", "inspect", "pathlib", "tarfile", "typing", "doctest", "difflib", "pdb")


def texts(count: int) -> Iterator[str]:
    """Yield texts of a hundred thousand letters and more."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    for name in MODULES[:count]:
        path = folder / f"{name}.py"
        if not path.exists():
            path = folder / name / "__init__.py"
        yield path.read_text(encoding="utf-8")


def continued(target: LlamaVerifier, ids: Sequence[int], tokens: int) -> list[int]:
    """Return the ids by which the target goes on greedily."""
    target.carry_out(KVCut(0, 0))
    for start in range(0, len(ids) - 1, PART):
        part = tuple(ids[start:-1][:PART])
        target.decode([Span(0, start, part, logits=False)])
    last = ids[-1]
    generated: list[int] = []
    first = len(ids) - 1
    for position in range(first, first + tokens):
        [logits] = target.decode([Span(0, position, (last,), logits=True)])
        assert logits is not None
        last = int(logits[-1].argmax())
        generated.append(last)
    return generated


def verified(
    drafter: LlamaDrafter, read: Sequence[int], generated: Sequence[int], draft_n: int
) -> Counter[str]:
    """Return how many drafts the generated ids verify, and how many they accept.

    read: ids that the draft model has read before them.
    """
    drafter.carry_out(KVCut(0, 0))
    for start in range(0, len(read) - 1, PART):
        part = tuple(read[start:-1][:PART])
        drafter.predict([Ask(0, part, None)])
    text = (*read, *generated)
    counts: Counter[str] = Counter()
    held = len(read) - 1
    end = len(read)
    while end < len(text):
        new = text[held:end]
        read_to = end + draft_n - 1  # it does not read its last draft
        right = True
        for at in range(end, min(end + draft_n, len(text))):
            [draft] = drafter.predict([Ask(0, new, GREEDY)])
            assert draft is not None
            new = (draft,)
            right = right and draft == text[at]
            counts["drafted"] += 1
            counts["accepted"] += right
            end += right
        held = min(end, read_to)
        drafter.carry_out(KVCut(0, held))
        end += 1
    return counts


Ids = Sequence[int]


def windows(ids: Ids, sizes: list[int], bos: int | None) -> Iterator[tuple[str, Ids]]:
    """Yield each way to read a text: its name, and the ids that are read."""
    yield "whole", ids
    for size in sizes:
        back = size // 2
        if back >= len(ids):
            continue
        yield f"window {size}", ids[-back:]
        if bos is not None:
            yield f"window {size} with BOS", (bos, *ids[-back:])


def main() -> None:
    """Print the rates of each length."""
    parser = Options(__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--drafter", required=True)
    parser.option("--lengths", "1000,3000,6000,7500")
    parser.option("--sizes", "512,1024,2048")
    parser.option("--texts", 5)
    parser.option("--tokens", 160)
    parser.option("--draft-n", 1)
    parser.switch("--same")
    parser.add_argument("--threads", type=int)
    parser.switch("--json")
    given = parser.parse_args()
    logs.configure("error")
    lengths = numbers(given.lengths)
    sizes = numbers(given.sizes)
    ctx = max(lengths) + given.tokens + 1
    options = {"engine": "llama", "ctx": ctx, "max_sessions": 1, "threads": given.threads}
    target = LlamaVerifier(ModelSettings(model=given.target, **options))
    drafter = LlamaDrafter(ModelSettings(model=given.drafter, **options))
    rates: dict[str, dict[str, float]] = {}
    counts: dict[int, dict[str, Counter[str]]] = {}
    for text in texts(given.texts):
        whole = target.tokenizer.encode(text)[: max(lengths)]
        generated = continued(target, whole, given.tokens) if given.same else []
        for length in lengths:
            ids = whole[-length:]
            if not given.same:
                ids = whole[:length]
                generated = continued(target, ids, given.tokens)
            of_length = counts.setdefault(length, {})
            for name, read in windows(ids, sizes, drafter.info.bos):
                found = verified(drafter, read, generated, given.draft_n)
                of_length[name] = of_length.get(name, Counter()) + found
    for length, of_length in counts.items():
        rate = {name: round(n["accepted"] / n["drafted"], 4) for name, n in of_length.items()}
        rates[str(length)] = rate
        if not given.json:
            drafts = {name: n["drafted"] for name, n in of_length.items()}
            print(f"{length} ids: {rate}, of {drafts}")
    if given.json:
        print(json.dumps(rates))


if __name__ == "__main__":
    main()
