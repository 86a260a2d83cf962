"""What the MLX engine costs over a bare mlx-lm step loop of the same model.

    python bench/mlx_overhead.py [--model DIR] [--chunks N] [--steps N] [--json]

Both draft greedily, one token at a time, from the same prompt: the bare loop calls the model with mlx-lm's cache, takes
the best token in MLX, evaluates it and reads it; the engine does `predict` with a sampler, as the daemon
does. They take turns, a chunk of steps each, in one process and with one copy of the weights, so that what else
the machine does hits both. Printed is the median step of each, and the median over pairs of chunks of their ratio.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any, cast

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from specmesh.config import ModelSettings
from specmesh.core.sampling.sampler import Sampler, SamplingParams
from specmesh.engines.base import Ask
from specmesh.engines.mlx import MlxDrafter
from specmesh.paths import bundled

PROMPT = [33 + index % 90 for index in range(32)]


def bare_loop(model: Any, steps: int) -> float:
    """Seconds of `steps` steps of mlx-lm alone."""
    cache = make_prompt_cache(model)
    token = _best(model(mx.array([PROMPT]), cache=cache))
    begun = time.perf_counter()
    for _ in range(steps):
        token = _best(model(mx.array([[token]]), cache=cache))
    return time.perf_counter() - begun


def _best(logits: Any) -> int:
    best = mx.argmax(logits[0, -1])
    mx.eval(best)
    return int(cast("int", best.item()))


def engine_loop(engine: MlxDrafter, steps: int) -> float:
    """Seconds of the same through the engine."""
    greedy = Sampler(SamplingParams())
    engine.trim(0, 0)
    [token] = engine.predict([Ask(0, tuple(PROMPT), greedy)])
    begun = time.perf_counter()
    for _ in range(steps):
        assert token is not None
        [token] = engine.predict([Ask(0, (token,), greedy)])
    return time.perf_counter() - begun


def measure(
    bare: Callable[[], float], ours: Callable[[], float], chunks: int
) -> tuple[list[float], list[float]]:
    """Seconds of each chunk of both, who goes first by turns."""
    times: tuple[list[float], list[float]] = ([], [])
    for chunk in range(chunks):
        pair = [(0, bare), (1, ours)]
        for index, run in reversed(pair) if chunk % 2 else pair:
            times[index].append(run())
    return times


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=bundled("drafter-hf"))
    parser.add_argument("--chunks", type=int, default=100)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    engine = MlxDrafter(
        ModelSettings("mlx", args.model, len(PROMPT) + args.steps + 1, 1, gpu_layers=-1)
    )
    model = engine._memories[0]._model  # noqa: SLF001 - the same weights for both
    bare, ours = measure(
        lambda: bare_loop(model, args.steps), lambda: engine_loop(engine, args.steps), args.chunks
    )
    result = {
        "model": engine.info.model,
        "backend": engine.info.backend,
        "bare_ms": round(statistics.median(bare) / args.steps * 1e3, 4),
        "engine_ms": round(statistics.median(ours) / args.steps * 1e3, 4),
        "overhead": round(
            statistics.median(one / two for one, two in zip(ours, bare, strict=True)) - 1, 4
        ),
        "overhead_of_fastest": round(min(ours) / min(bare) - 1, 4),
        "chunks": args.chunks,
        "steps": args.steps,
    }
    engine.close()
    print(
        json.dumps(result)
        if args.json
        else "\n".join(f"{name:20} {value}" for name, value in result.items())
    )


if __name__ == "__main__":
    main()
