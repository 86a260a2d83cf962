"""Compute the acceptance of each strategy from both models' distributions over sampled texts.

    python bench/acceptance.py [--temperature T] [--top-k K] [--top-p P] [--prompts N]
                               [--tokens N] [--json]

The models are the bundled pair unless --target and --drafter name others. The texts are the
target's own samples of N tokens for each prompt, pieces of held-out modules (bench/held_out.py).
Both distributions are known at each position, so nothing is drawn. Printed are means of
probabilities, for one draft at a time; later drafts of a block are accepted more often.

- best: 1 less the total variation of the two distributions, the most that is possible.
- coupled: both choose by the same noise, as `deterministic` does.
- probabilistic: the draft is sampled from the proposal of DRAFT_PROBS, which is cut and rounded.
- independent: both choose by noise of their own.
- likeliest: the draft is the draft model's likeliest token.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from command_line import Options
from held_out import prompts
from numpy.typing import NDArray
from referee import referee

from specmesh import logs
from specmesh.core.events import Span
from specmesh.core.kv_orders import KVCut
from specmesh.core.sampling.proposal import MAX_PROPOSAL, SampledDraft, proposal_of
from specmesh.core.sampling.sampler import Sampler, SamplingParams
from specmesh.engines.llama.engine import LlamaVerifier
from specmesh.paths import bundled

Probs = NDArray[np.float64]
Row = NDArray[np.float32]


def coupled(p: Probs, q: Probs) -> float:
    """Return the probability that both distributions choose the same token by the same noise.

    It is the sum over tokens i of 1 / sum over j of max(p_j / p_i, q_j / q_i), after Daliri, Musco
    and Suresh (arXiv:2408.07978). In the order of q / p, tokens up to i have the first ratio, the
    others the second.
    """
    both = np.flatnonzero((p > 0) & (q > 0))
    ratio = np.full_like(p, np.inf)
    np.divide(q, p, out=ratio, where=p > 0)
    order = np.argsort(ratio, kind="stable")
    place = np.empty(len(p), np.int64)
    place[order] = np.arange(len(p))
    at = place[both]
    up_to = np.cumsum(p[order])[at]
    second = np.cumsum(q[order])
    after = second[-1] - second[at]
    shares = 1 / (up_to / p[both] + after / q[both])
    return float(shares.sum())


def row(engine: LlamaVerifier, ids: list[int], held: int) -> Row:
    """Return the logits after the last id. `held` ids are in memory already."""
    for at in range(held, len(ids), 16):
        part = tuple(ids[at : at + 16])
        [logits] = engine.decode([Span(0, at, part, logits=True)])
    assert logits is not None
    last: Row = logits[-1]
    return last


def both_rows(
    target: LlamaVerifier, drafter: LlamaVerifier, prompt: str, tokens: int, sampler: Sampler
) -> Iterator[tuple[Row, Row]]:
    """Yield the logits of both models at each position of a sampled text."""
    ids = target.tokenizer.encode(prompt)
    held = 0
    for _ in range(tokens):
        truth = row(target, ids, held)
        yield truth, row(drafter, ids, held)
        held = len(ids)
        ids.append(sampler.choose(truth, len(ids)))


def figures(truth: Row, guess: Row, sampler: Sampler) -> dict[str, float]:
    """Return the figures of a position."""
    p = sampler.distribution(truth)
    q = sampler.distribution(guess)
    head, shares = sampler.likeliest(guess, MAX_PROPOSAL)
    draft = int(head[0])
    proposal = proposal_of(head.tolist(), shares)
    support, weights = SampledDraft(draft, proposal).shares()
    return {
        "best": np.minimum(p, q).sum(),
        "coupled": coupled(p, q),
        "probabilistic": np.minimum(p[support], weights).sum(),
        "independent": p @ q,
        "likeliest": p[draft],
        "tokens_of_a_proposal": len(support),
        "bytes_of_a_draft": 6 + 6 * len(support),
        "distribution_in_the_proposal": q[support].sum(),
    }


def measure(args: argparse.Namespace) -> dict[str, float]:
    """Return the means."""
    sums: dict[str, float] = defaultdict(float)
    params = SamplingParams(temperature=args.temperature, top_k=args.top_k, top_p=args.top_p)
    with (
        referee(args.target, gpu_layers=-1) as target,
        referee(args.drafter, gpu_layers=-1) as drafter,
    ):
        for number, prompt in enumerate(prompts(args.prompts)):
            sampler = Sampler(replace(params, seed=number))
            for truth, guess in both_rows(target, drafter, prompt, args.tokens, sampler):
                for name, value in figures(truth, guess, sampler).items():
                    sums[name] += float(value)
            target.carry_out(KVCut(0, 0))
            drafter.carry_out(KVCut(0, 0))
    positions = args.prompts * args.tokens
    return {name: total / positions for name, total in sums.items()}


def main() -> None:
    """Print the means."""
    parser = Options(__doc__)
    parser.option("--temperature", 0.8)
    parser.option("--top-k", 0)
    parser.option("--top-p", 1.0)
    parser.option("--prompts", 10)
    parser.option("--tokens", 100)
    parser.option("--target", bundled("target.gguf"))
    parser.option("--drafter", bundled("drafter.gguf"))
    parser.switch("--json")
    args = parser.parse_args()
    logs.configure("error")
    means = measure(args)
    if args.json:
        print(json.dumps(means))
        return
    print(f"temperature {args.temperature:g}, top-k {args.top_k}, top-p {args.top_p:g}")
    for name, value in means.items():
        label = f"{name.replace('_', ' '):<22}"
        if value <= 1:
            print(f"{label}{value:>9.4f}{value / means['best']:>8.3f} of the best")
        else:
            print(f"{label}{value:>9.1f}")


if __name__ == "__main__":
    main()
