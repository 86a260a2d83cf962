"""Measure the cost of --reproducible: steps of one row, and of the constant width, in turn.

    python bench/reproducible.py [MODEL.gguf ...] [--steps N] [--threads N]

Without a model the bundled target is taken. Each model is loaded twice, as it is and reproducible;
after a prompt of 200 ids both take single ids in turn. A plain step is the cost of the verifier
alone otherwise; a step of the width is the cost of each step now, with drafts or without.
"""

import time
from pathlib import Path
from statistics import median

from command_line import Options

from specmesh import logs
from specmesh.config import ModelSettings
from specmesh.core.events import Span
from specmesh.core.kv_orders import KVCut
from specmesh.engines.llama.engine import LlamaVerifier
from specmesh.paths import bundled

PROMPT = 200


def seconds(engine: LlamaVerifier, position: int, rows: int) -> float:
    """Return the seconds of a step of so many rows, of which one stays."""
    started = time.perf_counter()
    engine.decode([Span(0, position, (5,) * rows, logits=True)])
    taken = time.perf_counter() - started
    engine.carry_out(KVCut(0, position + 1))
    return taken


def loaded(path: Path, threads: int | None, *, constant: bool) -> LlamaVerifier:
    """Load a model and have it read the prompt. constant: all its steps have one width."""
    settings = ModelSettings(
        engine="llama",
        model=str(path),
        ctx=512,
        max_sessions=1,
        threads=threads,
        gpu_layers=-1,
        reproducible=constant,
    )
    engine = LlamaVerifier(settings)
    engine.decode([Span(0, 0, (7,) * PROMPT, logits=False)])
    return engine


def row(path: Path, threads: int | None, steps: int) -> str:
    """Measure a model; return its row."""
    plain = loaded(path, threads, constant=False)
    constant = loaded(path, threads, constant=True)
    width = constant.info.capabilities.width or 0
    ones: list[float] = []
    constants: list[float] = []
    ratios: list[float] = []
    for position in range(PROMPT, PROMPT + steps):
        ones.append(seconds(plain, position, 1))
        constants.append(seconds(constant, position, 1))
        ratios.append(constants[-1] / ones[-1])
    wide: list[float] = []
    for position in range(PROMPT + steps, PROMPT + 2 * steps):
        wide.append(seconds(plain, position, width))
    plain.close()
    constant.close()
    one_ms = f"{median(ones) * 1e3:6.2f} ms"
    step_ms = f"{median(constants) * 1e3:6.2f} ms"
    wide_ms = f"{median(wide) * 1e3:6.2f} ms"
    return f"{path.stem:<28} {one_ms} {width:>5} {step_ms} {median(ratios):5.2f}x   {wide_ms}"


def main() -> None:
    """Print a row per model."""
    parser = Options(__doc__)
    parser.add_argument("models", nargs="*", type=Path, default=[Path(bundled("target.gguf"))])
    parser.option("--steps", 60)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    logs.configure("error")
    head = f"{'model':<28} {'one row':>9} {'width':>5} {'step':>9} {'ratio':>6}"
    print(f"{head}   plain step of as many rows")
    for path in args.models:
        print(row(path, args.threads, args.steps))


if __name__ == "__main__":
    main()
