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
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from command_line import Options
from held_out import prompts
from numpy.typing import NDArray

from specmesh import logs
from specmesh.config import ModelSettings
from specmesh.core.events import Span
from specmesh.core.kv_slots import KVCut
from specmesh.core.sampling.proposal import MAX_PROPOSAL, SampledDraft, proposal_of
from specmesh.core.sampling.sampler import Sampler, SamplingParams
from specmesh.engines.llama.engine import LlamaVerifier
from specmesh.paths import bundled

Probs = NDArray[np.float64]


def coupled(p: Probs, q: Probs) -> float:
    """Return the probability that both distributions choose the same token by the same noise.

    It is the sum over tokens i of 1 / sum over j of max(p_j / p_i, q_j / q_i), after Daliri, Musco
    and Suresh (arXiv:2408.07978). In the order of q / p, tokens up to i have the first ratio, the
    others the second.
    """
    both = np.flatnonzero((p > 0) & (q > 0))
    ratio = np.divide(q, p, out=np.full_like(p, np.inf), where=p > 0)
    order = np.argsort(ratio, kind="stable")
    place = np.empty(len(p), np.int64)
    place[order] = np.arange(len(p))
    first, second = np.cumsum(p[order]), np.cumsum(q[order])
    at = place[both]
    return float((1 / (first[at] / p[both] + (second[-1] - second[at]) / q[both])).sum())


def rows(engine: LlamaVerifier, ids: list[int], held: int) -> NDArray[np.float32]:
    """Return the logits after the last id. `held` ids are in memory already."""
    for at in range(held, len(ids), 16):
        part = tuple(ids[at : min(at + 16, len(ids))])
        logits = engine.decode([Span(0, at, part, logits=True)])[0]
    assert logits is not None
    row: NDArray[np.float32] = logits[-1]
    return row


def distributions(
    target: LlamaVerifier, drafter: LlamaVerifier, prompt: str, tokens: int, sampler: Sampler
) -> Iterator[tuple[Probs, Probs, NDArray[np.int64], Probs]]:
    """Yield both models' distributions at each position, and the head of the drafter's."""
    ids = target.tokenizer.encode(prompt)
    held = 0
    for _ in range(tokens):
        truth, guess = rows(target, ids, held), rows(drafter, ids, held)
        yield (
            sampler.distribution(truth),
            sampler.distribution(guess),
            *sampler.likeliest(guess, MAX_PROPOSAL),
        )
        held = len(ids)
        ids.append(sampler.choose(truth, len(ids)))
    target.carry_out(KVCut(0, 0))
    drafter.carry_out(KVCut(0, 0))


def measure(args: argparse.Namespace) -> dict[str, float]:
    """Return the means."""
    found: dict[str, list[float]] = {}
    target, drafter = (
        LlamaVerifier(
            ModelSettings(
                engine="llama", model=str(path), ctx=1024, max_sessions=1, threads=1, gpu_layers=-1
            )
        )
        for path in (args.target, args.drafter)
    )
    for number, prompt in enumerate(prompts(args.prompts)):
        params = SamplingParams(temperature=args.temperature, top_k=args.top_k, top_p=args.top_p)
        sampler = Sampler(replace(params, seed=number))
        for p, q, head, shares in distributions(target, drafter, prompt, args.tokens, sampler):
            proposal = proposal_of(head.tolist(), shares)
            support, weights = SampledDraft(int(head[0]), proposal).shares()
            for name, value in {
                "best": np.minimum(p, q).sum(),
                "coupled": coupled(p, q),
                "probabilistic": np.minimum(p[support], weights).sum(),
                "independent": p @ q,
                "likeliest": p[int(head[0])],
                "tokens_of_a_proposal": len(support),
                "bytes_of_a_draft": 6 + 6 * len(support),
                "distribution_in_the_proposal": q[support].sum(),
            }.items():
                found.setdefault(name, []).append(float(value))
    for engine in (target, drafter):
        engine.close()
    return {name: float(np.mean(values)) for name, values in found.items()}


def main() -> None:
    """Print the means."""
    parser = Options(__doc__)
    parser.option("--temperature", 0.8)
    parser.option("--top-k", 0)
    parser.option("--top-p", 1.0)
    parser.option("--prompts", 10)
    parser.option("--tokens", 100)
    parser.option("--target", Path(bundled("target.gguf")))
    parser.option("--drafter", Path(bundled("drafter.gguf")))
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
