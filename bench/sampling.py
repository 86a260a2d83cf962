"""Measure the choice of tokens: one step's rows through the sampler, for several ways of sampling.

    python bench/sampling.py [--vocab N] [--rows N] [--seconds S] [--json]

Logits are random and peaked as a language model's are. Each way's steps are interleaved with the
others'; the table has the median and the 90th percentile in milliseconds per step.
"""

import json
import time
from collections import defaultdict
from functools import partial

import numpy as np
from command_line import Options

from specmesh.core.sampling.sampler import Penalties, Sampler, SamplingParams

sampled = partial(SamplingParams, temperature=0.8)
WAYS: dict[str, SamplingParams] = {
    "greedy": SamplingParams(),
    "greedy, penalties": SamplingParams(penalties=Penalties(repeat=1.1)),
    "top-k 40": sampled(top_k=40),
    "top-k 40, top-p 0.95": sampled(top_k=40, top_p=0.95),
    "top-k 40, top-p 0.95, min-p 0.05": sampled(top_k=40, top_p=0.95, min_p=0.05),
    "top-p 0.95": sampled(top_p=0.95),
    "min-p 0.05": sampled(min_p=0.05),
    "nothing but temperature": sampled(),
}


def steps(vocab: int, rows: int, seconds: float) -> dict[str, list[float]]:
    """Return the milliseconds of each step, by way."""
    rng = np.random.default_rng(1)
    logits = rng.gumbel(0, 2.0, (rows, vocab)).astype(np.float32)
    before = rng.integers(0, vocab, 64).tolist()
    taken: dict[str, list[float]] = defaultdict(list)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, params in WAYS.items():
            started = time.perf_counter()
            for position in range(rows):
                sampler = Sampler(params).after(before)
                sampler.choose(logits[position], position)
            seconds_taken = time.perf_counter() - started
            taken[name].append(seconds_taken * 1e3)
    return taken


def main() -> None:
    """Print the table."""
    parser = Options(__doc__)
    parser.option("--vocab", 128_256)
    parser.option("--rows", 9)
    parser.option("--seconds", 10.0)
    parser.switch("--json")
    args = parser.parse_args()
    taken = steps(args.vocab, args.rows, args.seconds)
    table: dict[str, dict[str, float]] = {}
    for name, ms in taken.items():
        median, p90 = np.percentile(ms, [50, 90]).tolist()
        table[name] = {"median_ms": median, "p90_ms": p90}
    if args.json:
        print(json.dumps({"vocab": args.vocab, "rows": args.rows, "ways": table}))
        return
    print(f"{args.rows} rows of {args.vocab} logits")
    for name, row in table.items():
        print(f"{name:<34}{row['median_ms']:>8.3f}{row['p90_ms']:>8.3f}")


if __name__ == "__main__":
    main()
