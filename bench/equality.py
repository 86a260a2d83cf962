"""Greedy text with and without a drafter: the same token ids, or a near tie shown as such.

    python bench/equality.py [--prompts N] [--tokens N] [--draft-n auto|N] [--target FILE] [--drafter FILE] [--json]

Real daemons, real models (the bundled pair unless told otherwise). Prompts are cut from modules of the standard library
that the bundled pair was not trained on. Where two texts differ, the target is asked again at that place, one row at a
time: the difference counts as a near tie when the two ids are its first two choices and lie closer than --margin, the
most that kernels of different row widths were seen to differ. Anything else is an error, and the exit status 1.
"""

import argparse
import json
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specmesh import logs
from specmesh.client import Client
from specmesh.engines.base import Span
from specmesh.engines.llama import LlamaSettings, LlamaVerifier
from specmesh.paths import bundled

sys.path.insert(0, str(Path(__file__).parent))
from live import live_pair

HELD_OUT = ("textwrap", "heapq", "shelve", "fractions", "csv", "queue", "sched", "bisect", "calendar", "cmd")


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two texts part: position in the generated ids, both ids, and the target's own margin between them."""

    prompt: int
    position: int
    alone: int
    drafted: int
    margin: float
    near_tie: bool


def prompts(count: int) -> Iterator[str]:
    """`count` pieces of source text of about 300 characters, from as many places."""
    library = Path(sysconfig.get_path("stdlib"))
    texts = [path.read_text() for name in HELD_OUT if (path := library / f"{name}.py").is_file()]
    for index in range(count):
        text = texts[index % len(texts)]
        at = (index // len(texts) * 1777 + 900) % max(len(text) - 400, 1)
        start = text.find("\n", at) + 1
        yield text[start : start + 300]


def ids(
    client: Client, prompt: str, tokens: int, *, draft_n: int | str
) -> tuple[list[int], list[int], dict[str, object]]:
    """(prompt ids, generated ids, report) of one greedy generation."""
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "draft_n": draft_n}
    generated: list[int] = []
    last: dict[str, object] = {}
    for chunk in client.complete(body):
        last = chunk["specmesh"]  # type: ignore[assignment]
        if "token_ids" in last:
            generated += last["token_ids"]  # type: ignore[operator, arg-type]
    return last["prompt_token_ids"], generated, last["report"]  # type: ignore[return-value]


def judge(target: LlamaVerifier, prefix: list[int], alone: int, drafted: int, most: float) -> tuple[float, bool]:
    """The target's margin between two ids after `prefix`, decoded anew in one row, and whether it is a near tie."""
    target.trim(0, 0)
    target.decode([Span(0, 0, tuple(prefix[:-1]), logits=False)])
    row = target.decode([Span(0, len(prefix) - 1, (prefix[-1],), logits=True)])[0]
    assert row is not None
    margin = float(abs(row[0][alone] - row[0][drafted]))
    first_two = set(np.argsort(row[0])[-2:].tolist())
    return margin, {alone, drafted} == first_two and margin < most


@contextmanager
def referee(path: str) -> Iterator[LlamaVerifier]:
    """The target once more, in this process."""
    engine = LlamaVerifier(LlamaSettings(Path(path), n_ctx=1024, n_seq=1, threads=1, gpu_layers=0, n_batch=1024))
    try:
        yield engine
    finally:
        engine.close()


def main() -> None:
    """Run, print, exit 1 on an error."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--target", default=bundled("target.gguf"))
    parser.add_argument("--drafter", default=bundled("drafter.gguf"))
    parser.add_argument(
        "--draft-n", default="4", help="auto, or drafts in every step (the default, 4, drafts for sure)"
    )
    parser.add_argument("--margin", type=float, default=0.05)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    logs.configure("error", "console")
    draft_n = args.draft_n if args.draft_n == "auto" else int(args.draft_n)
    differences: list[Difference] = []
    drafted = accepted = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        live_pair(Path(folder), args.target, args.drafter) as client,
        referee(args.target) as target,
    ):
        for number, prompt in enumerate(prompts(args.prompts)):
            prompt_ids, alone, _ = ids(client, prompt, args.tokens, draft_n=0)
            _, with_drafts, report = ids(client, prompt, args.tokens, draft_n=draft_n)
            drafted += int(report["drafted"])  # type: ignore[call-overload]
            accepted += int(report["accepted"])  # type: ignore[call-overload]
            at = next((i for i, (a, b) in enumerate(zip(alone, with_drafts, strict=False)) if a != b), None)
            if at is not None:
                margin, tie = judge(target, prompt_ids + alone[:at], alone[at], with_drafts[at], args.margin)
                differences.append(Difference(number, at, alone[at], with_drafts[at], round(margin, 6), tie))
            elif len(alone) != len(with_drafts):
                raise SystemExit(f"prompt {number}: {len(alone)} ids alone, {len(with_drafts)} drafted")
    errors = [difference for difference in differences if not difference.near_tie]
    result = {
        "prompts": args.prompts,
        "tokens": args.tokens,
        "identical": args.prompts - len(differences),
        "near_ties": len(differences) - len(errors),
        "errors": len(errors),
        "drafted": drafted,
        "accepted": accepted,
        "acceptance_rate": round(accepted / drafted, 4) if drafted else None,
    }
    if args.json:
        print(json.dumps(result))
    else:
        print(result)
        for difference in differences:
            print("near tie" if difference.near_tie else "ERROR   ", difference)
    raise SystemExit(1 if errors else 0)


if __name__ == "__main__":
    main()
