"""Measure the processor time that our engine adds to a step of mlx-lm's model, in 49,152 ids.

    python bench/mlx_step.py [--model DIR] [--rounds N] [--kind llama|sliding|hybrid]

These take turns, step by step, in one process: `bare` calls `model(ids, cache)`, evaluates the
logits, and takes the rows but the first back by mlx-lm's own trimming where it can; `ours` is our
engine's `decode`, a greedy choice for each row, and a KVCut. The least time of all rounds counts.
Without --model the model is a random one that is written first.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
from command_line import Options
from mlx_lm.models.cache import can_trim_prompt_cache, make_prompt_cache, trim_prompt_cache

from specmesh.config import ModelSettings
from specmesh.core.events import Span
from specmesh.core.kv_orders import KVCut
from specmesh.engines.mlx.model import MlxModel
from specmesh.engines.mlx.verifier import MlxVerifier

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from harness.tiny_hf import write

SIZES: dict[str, Any] = {"vocab_size": 49_152, "hidden_size": 16, "intermediate_size": 32}
"""Small but for the ids: the less the model takes, the less noise is in the difference."""

HELD = 32
ROWS = (1, 2, 4, 8, 16)

now = time.process_time


def bare_step(module: Any, rows: int) -> Callable[[], float]:
    """Return steps of the model itself, of so many rows after HELD ids."""
    cache = make_prompt_cache(module)
    module(mx.array([[5] * HELD]), cache=cache)
    ids = list(range(40, 40 + rows))

    def step() -> float:
        nonlocal cache
        started = now()
        logits = module(mx.array([ids]), cache=cache)
        mx.eval(logits)
        if can_trim_prompt_cache(cache):
            trim_prompt_cache(cache, rows - 1)
        return now() - started

    return step


def our_step(engine: MlxVerifier, seq: int, rows: int) -> Callable[[], float]:
    """Return steps of our engine that do the same, and choose."""
    engine.decode([Span(seq, 0, (5,) * HELD, logits=False)])
    held = HELD
    ids = tuple(range(40, 40 + rows))

    def step() -> float:
        nonlocal held
        started = now()
        [logits] = engine.decode([Span(seq, held, ids, logits=True)])
        assert logits is not None, "they were asked for"
        for row in logits:
            int(row.argmax())
        held += 1
        if rows > 1:
            engine.carry_out(KVCut(seq, held))
        return now() - started

    return step


def main() -> None:
    """Print the times of all numbers of rows."""
    parser = Options(__doc__)
    parser.option("--model", "", "a Hugging Face folder")
    parser.option("--kind", "llama", "of the random model")
    parser.option("--rounds", 1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.model or str(write(Path(folder) / "model", options.kind, **SIZES))
        n_ctx = HELD + options.rounds + max(ROWS)
        settings = ModelSettings(engine="mlx", model=path, ctx=n_ctx, max_sessions=len(ROWS))
        engine = MlxVerifier(settings)
        module = MlxModel(settings).module
    print(f"{engine.info.model}, {engine.info.backend}, {options.rounds} rounds")
    print("rows    bare ms    ours ms    added ms a row")
    for seq, rows in enumerate(ROWS):
        steps = (bare_step(module, rows), our_step(engine, seq, rows))
        least = [float("inf")] * 2
        for _ in range(options.rounds):
            for which, step in enumerate(steps):
                least[which] = min(least[which], step())
        bare, ours = (seconds * 1e3 for seconds in least)
        print(f"{rows:4} {bare:10.3f} {ours:10.3f} {(ours - bare) / rows:14.4f}")
    engine.close()


if __name__ == "__main__":
    main()
