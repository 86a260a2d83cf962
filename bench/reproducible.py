"""Measure the cost of --reproducible: steps of one row, and of the constant width, in turn.

    python bench/reproducible.py [MODEL.gguf ...] [--steps N] [--threads N]

Without a model the bundled target is taken. Each model is loaded twice, as it is and reproducible;
after a prompt of 200 ids both take single ids in turn. A plain step is what the verifier alone
costs otherwise; a step of the width is what each step costs now, with drafts or without.
"""

import argparse
import time
from pathlib import Path
from statistics import median

from specmesh import logs
from specmesh.config import ModelSettings
from specmesh.core.events import Span
from specmesh.engines.llama.engine import LlamaVerifier
from specmesh.paths import bundled

PROMPT = 200


def seconds(engine: LlamaVerifier, position: int, rows: int) -> float:
    """Return the seconds of a step of so many rows, of which one stays."""
    started = time.perf_counter()
    engine.decode([Span(0, position, (5,) * rows, logits=True)])
    taken = time.perf_counter() - started
    engine.trim(0, position + 1)
    return taken


def main() -> None:
    """Print a row per model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path, default=[Path(bundled("target.gguf"))])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    logs.configure("error")
    head = f"{'model':<28} {'one row':>9} {'width':>5} {'step':>9} {'ratio':>6}"
    print(f"{head}   plain step of as many rows")
    for path in args.models:
        settings = [
            ModelSettings(
                engine="llama",
                model=str(path),
                ctx=512,
                max_sessions=1,
                threads=args.threads,
                gpu_layers=-1,
                reproducible=constant,
            )
            for constant in (False, True)
        ]
        plain, constant = (LlamaVerifier(one) for one in settings)
        width = constant.info.capabilities.width or 0
        for engine in (plain, constant):
            engine.decode([Span(0, 0, (7,) * PROMPT, logits=False)])
        runs = [
            (seconds(plain, at, 1), seconds(constant, at, 1), at)
            for at in range(PROMPT, PROMPT + args.steps)
        ]
        wide = [
            seconds(plain, at, width) for at in range(PROMPT + args.steps, PROMPT + 2 * args.steps)
        ]
        one, step = median(run[0] for run in runs), median(run[1] for run in runs)
        ratio = median(run[1] / run[0] for run in runs)
        print(
            f"{path.stem:<28} {one * 1e3:6.2f} ms {width:>5} {step * 1e3:6.2f} ms {ratio:5.2f}x   "
            f"{median(wide) * 1e3:6.2f} ms"
        )
        plain.close()
        constant.close()


if __name__ == "__main__":
    main()
