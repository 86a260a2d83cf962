"""Does a temperature of its own help the drafter? Acceptance of coupled drafts, by the drafter's temperature.

    python bench/draft_temperature.py [--temperatures 0.6,0.8,1.0] [--texts N] [--tokens N]

The target samples texts at each temperature. At every position of theirs the drafter, which has read the same ids,
chooses with the same noise at several times that temperature; what is counted is how often it chooses the target's
token. One prefix, one choice each: no daemons, no timing. 1-TV is what no scheme can exceed; +- is one standard error
of the difference to a factor of 1.
"""

import argparse
from collections.abc import Iterator

import numpy as np
from held_out import prompts
from numpy.typing import NDArray

from specmesh import logs
from specmesh.config import ModelSettings
from specmesh.core.events import Span
from specmesh.core.sampling.sampler import Sampler, SamplingParams
from specmesh.engines.llama import LlamaVerifier
from specmesh.paths import bundled

FACTORS = (0.0, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)
ROWS = 128

Rows = NDArray[np.float32]


def engine(path: str) -> LlamaVerifier:
    """A model that gives the logits of ROWS rows at once."""
    return LlamaVerifier(
        ModelSettings("llama", path, ctx=1024, max_sessions=1, threads=1), max_draft=ROWS - 1
    )


def sampled(target: LlamaVerifier, ids: list[int], sampler: Sampler, tokens: int) -> Iterator[int]:
    """The target's own text after these ids."""
    target.trim(0, 0)
    target.decode([Span(0, 0, tuple(ids[:-1]), logits=False)])
    token = ids[-1]
    for position in range(len(ids), len(ids) + tokens):
        rows = target.decode([Span(0, position - 1, (token,), logits=True)])[0]
        assert rows is not None
        token = sampler.choose(rows[0], position)
        if token in target.vocabulary.end_ids:
            return
        yield token


def rows_of(model: LlamaVerifier, ids: list[int]) -> Rows:
    """The row after each id."""
    model.trim(0, 0)
    found = []
    for at in range(0, len(ids), ROWS):
        rows = model.decode([Span(0, at, tuple(ids[at : at + ROWS]), logits=True)])[0]
        assert rows is not None
        found.append(rows.copy())
    return np.concatenate(found)


def shared(target: Rows, drafter: Rows, temperature: float) -> float:
    """1 - the total variation between the two distributions, averaged over rows."""
    both = []
    for rows in (target, drafter):
        scores = np.exp((rows - rows.max(axis=1, keepdims=True)).astype(np.float64) / temperature)
        both.append(scores / scores.sum(axis=1, keepdims=True))
    return float(np.minimum(*both).sum(axis=1).mean())


def main() -> None:
    """Run and print a row per temperature."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--temperatures", default="0.6,0.8,1.0")
    parser.add_argument("--texts", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=200)
    args = parser.parse_args()
    logs.configure("error")
    target, drafter = engine(bundled("target.gguf")), engine(bundled("drafter.gguf"))
    for temperature in map(float, args.temperatures.split(",")):
        stood: list[NDArray[np.bool_]] = []
        common = []
        for seed, prompt in enumerate(prompts(args.texts)):
            ids = target.tokenizer.encode(prompt)
            begin = len(ids)
            own = Sampler(SamplingParams(temperature=temperature, seed=seed))
            ids += sampled(target, ids, own, args.tokens)
            if len(ids) == begin:
                continue
            true, guessed = (
                rows_of(target, ids[:-1])[begin - 1 :],
                rows_of(drafter, ids[:-1])[begin - 1 :],
            )
            samplers = [
                Sampler(SamplingParams(temperature=temperature * factor, seed=seed))
                for factor in FACTORS
            ]
            chosen = [
                [one.choose(row, begin + at) for at, row in enumerate(guessed)] for one in samplers
            ]
            stood.append(np.array(chosen) == np.array(ids[begin:]))
            common.append((shared(true, guessed, temperature), len(ids) - begin))
        all_stood = np.concatenate(stood, axis=1)
        base = all_stood[FACTORS.index(1.0)].astype(float)
        limit = sum(value * count for value, count in common) / sum(count for _, count in common)
        print(f"temperature {temperature:g}, {all_stood.shape[1]} positions, 1-TV {limit:.3f}")
        for factor, row in zip(FACTORS, all_stood, strict=True):
            error = (row - base).std() / np.sqrt(len(base))
            print(
                f"  {factor:4g} x: {row.mean():.3f}  {row.mean() - base.mean():+.3f} +- {error:.3f}"
            )


if __name__ == "__main__":
    main()
