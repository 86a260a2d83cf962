"""Measure what `propose` of specmesh.vllm costs the worker of a vLLM server, without a vLLM.

    python bench/vllm_propose.py [--ids N] [--steps N] [--repeats N] [--rows LIST] [--json]

Rows of N ids grow by an id a step. Printed are microseconds of processor time of a call, on the
thread of the caller: of `propose` as a whole, and of what is beside the core's own step (its
`finish`, `next_step` and `handle`). They are medians over the steps, and the least of the repeats.
What the clocks themselves take, 4 to 7 us, is measured with a core that does nothing, and is left
out. More rows than the settings allow show what a call costs that does nothing.
"""

import json
import time
from collections.abc import Callable
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
from command_line import Options
from live import free_port

from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.vllm import Proposer
from specmesh.vllm.allowance import MOST_SAVED
from specmesh.vllm.settings import ProposerSettings

N_VOCAB = 49_152
MOST_IDS = 4096
LIMIT = 16  # rows that are drafted for


STEP_S = 1e-3
"""Seconds between calls, in which the thread of the frames works, as it does while vLLM does."""


class NoCore:
    """A core that does nothing."""

    def finish(self) -> None:
        """Do nothing."""

    next_step = handle = finish


class CoreTime:
    """Seconds of processor time that a core takes in its own methods, and how many calls."""

    def __init__(self, core: Any) -> None:
        """Count from now on."""
        self.seconds = 0.0
        self.calls = 0
        for name in ("finish", "next_step", "handle"):
            setattr(core, name, self._timed(getattr(core, name)))

    def _timed(self, method: Callable[..., object]) -> Callable[..., object]:
        def timed(*args: object, **options: object) -> object:
            self.calls += 1
            started = time.thread_time()
            try:
                return method(*args, **options)
            finally:
                self.seconds += time.thread_time() - started

        return timed


def clocks_us(calls: int, steps: int) -> float:
    """Return microseconds that a step seems to take in which a core is called, and nothing done."""
    nothing = NoCore()
    core = CoreTime(nothing)
    seen: list[float] = []
    for _ in range(steps):
        time.sleep(STEP_S)
        before = core.seconds
        started = time.thread_time()
        for _ in range(calls):
            nothing.finish()
        spent = time.thread_time() - started
        seen.append((spent - core.seconds + before) * 1e6)
    return median(seen)


def proposer() -> Proposer:
    """Return a proposer at a free port of this machine."""
    config = SimpleNamespace(
        model_config=SimpleNamespace(
            model="bench",
            served_model_name=None,
            max_model_len=MOST_IDS,
            get_vocab_size=lambda: N_VOCAB,
        ),
        speculative_config=SimpleNamespace(method="custom_class", num_speculative_tokens=8),
        parallel_config=SimpleNamespace(tensor_parallel_size=1, rank=0, data_parallel_rank=0),
    )
    settings = ProposerSettings(bind=f"tcp://127.0.0.1:{free_port()}", insecure=True, rows=LIMIT)
    pieces = tuple(str(number).encode() for number in range(N_VOCAB))
    made = Proposer(config, settings=settings, vocabulary=Vocabulary(pieces, frozenset({0})))
    made.load_model()
    return made


def call_us(made: Proposer, rows: int, length: int, steps: int) -> tuple[float, float]:
    """Return microseconds of a call, and of its part beside the core, for rows of random ids."""
    random = np.random.default_rng(1)
    ids = random.integers(1, N_VOCAB, (max(rows, 1), MOST_IDS), np.int32)
    lengths = np.full(rows, length, np.int32)
    assert made.service is not None, "it has loaded"
    drafting = made.service.drafting
    for _ in range(rows):  # texts are opened, a few in each call
        made.propose([[]] * rows, lengths, ids)
    core = CoreTime(drafting._core)  # noqa: SLF001 - the bench looks inside
    whole: list[float] = []
    own: list[float] = []
    for _ in range(steps):
        lengths += 1
        new = [[int(ids[row, lengths[row] - 1])] for row in range(rows)]
        time.sleep(STEP_S)
        # Calls here follow each other too fast to be paid for.
        drafting._allowance.left = MOST_SAVED  # noqa: SLF001
        before = core.seconds
        started = time.thread_time()
        made.propose(new, lengths, ids)
        spent = time.thread_time() - started
        whole.append(spent * 1e6)
        own.append((spent - core.seconds + before) * 1e6)
    return median(whole), median(own) - clocks_us(core.calls // steps, steps)


def main() -> None:
    """Run and print."""
    parser = Options(__doc__)
    parser.option("--ids", 2000)
    parser.option("--steps", 200)
    parser.option("--repeats", 5)
    parser.option("--rows", "1,2,4,8,16,17,64")
    parser.switch("--json")
    args = parser.parse_args()
    results: dict[int, tuple[float, float]] = {}
    for rows in map(int, args.rows.split(",")):
        measured: list[tuple[float, float]] = []
        for _ in range(args.repeats):
            made = proposer()
            measured.append(call_us(made, rows, args.ids, args.steps))
            made.close()
        results[rows] = min(whole for whole, _ in measured), min(own for _, own in measured)
    if args.json:
        print(json.dumps(results))
        return
    for rows, (whole, own) in results.items():
        print(f"{rows:3} rows: {whole:7.1f} us, {own:7.1f} us beside the core's step")


if __name__ == "__main__":
    main()
