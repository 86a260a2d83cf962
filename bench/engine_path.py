"""Measure the time that our engine and core add to llama_decode, on a model of 128,000 ids.

    python bench/engine_path.py [--model FILE] [--rounds N] [--busy] [--switch S] [--gpu-layers N]

These take turns, step by step, in one process: `bare` calls llama_decode with a batch that is
filled before; `engine` cuts as a session would and calls our engine's `decode`; `core` runs a
VerifierCore's sessions on it; `guess` is a drafter's. The shapes: one row; eight rows of one
sequence, as with drafts; eight sequences of a row each. `around` is a turn without llama_decode
and llama_synchronize, which waits for a GPU, and without `choose`: a greedy argmax, or next_step
and finish of a core. With --busy another thread computes in Python all the while.
"""

import logging
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import llama_cpp as lib
import numpy as np
import structlog
from command_line import Options

from specmesh.config import ModelSettings
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.events import Span, Step
from specmesh.core.kv_orders import KVCut
from specmesh.core.kv_slots import KVSlots
from specmesh.core.requests import Request
from specmesh.core.sampling.sampler import Sampler, SamplingParams
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.core.verifier.core import VerifierCore
from specmesh.core.verifier.events import Opening
from specmesh.core.verifier.target import Target
from specmesh.engines.base import Ask
from specmesh.engines.llama.engine import LlamaDrafter, LlamaVerifier

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from harness.tiny_gguf import TinyModel, write

N_VOCAB = 128_000
N_CTX = 1024
N_SEQ = 8
FULL = N_CTX - 64
SHAPES = {"1 row": (1, 1), "8 rows": (1, 8), "8 sequences": (8, 1)}  # sequences, rows of each

Turn = Callable[[], float]
"""One step; returns the seconds of choosing."""

now = time.perf_counter
inside = 0.0


def timed(call: Any) -> Any:
    """Return a function of llama.cpp that adds its time to `inside`."""

    def measuring(*arguments: Any) -> Any:
        global inside  # noqa: PLW0603
        started = now()
        result = call(*arguments)
        inside += now() - started
        return result

    return measuring


class Bare:
    """The same context and batch with nothing around them."""

    def __init__(self, model: Any, sequences: int, rows: int) -> None:
        self._sequences = sequences
        self._rows = rows
        self._held = 0
        params = lib.llama_context_default_params()
        params.n_ctx = N_CTX * N_SEQ
        params.n_seq_max = N_SEQ
        params.n_batch = 512
        params.n_ubatch = 512
        params.n_threads = params.n_threads_batch = 1
        params.kv_unified = params.swa_full = params.no_perf = True
        self._context = lib.llama_init_from_model(model, params)
        self._memory = lib.llama_get_memory(self._context)
        self._batch = batch = lib.llama_batch_init(512, 0, 1)
        batch.n_tokens = sequences * rows
        for row in range(batch.n_tokens):
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = row // rows
            batch.logits[row] = 1
            batch.token[row] = 40 + row

    def prepare(self) -> None:
        """Go on by a row."""
        for seq in range(self._sequences):
            lib.llama_memory_seq_rm(self._memory, seq, self._held, -1)
        for row in range(self._batch.n_tokens):
            self._batch.pos[row] = self._held + row % self._rows
        self._held = (self._held + 1) % FULL

    def __call__(self) -> float:
        """Decode it."""
        lib.llama_cpp.llama_decode(self._context, self._batch)
        lib.llama_cpp.llama_synchronize(self._context)
        lib.llama_get_logits(self._context)
        return 0.0


def engine_turn(engine: LlamaVerifier, sequences: int, rows: int) -> Turn:
    """Return steps of our engine, cut as a session would."""
    held = 0
    sampler = Sampler(SamplingParams())
    ids = tuple(range(40, 40 + rows))

    def turn() -> float:
        nonlocal held
        if rows > 1 or held == 0:
            for seq in range(sequences):
                engine.carry_out(KVCut(seq, held))
        spans = [Span(seq, held, ids, logits=True) for seq in range(sequences)]
        found = engine.decode(spans)
        decoded = now()
        for block in found:
            assert block is not None
            sampler.choose(block[0], held)
        held = (held + 1) % FULL
        return now() - decoded

    return turn


def core_turn(engine: LlamaVerifier, sequences: int) -> Turn:
    """Return steps of sessions without drafters."""
    for seq in range(N_SEQ):
        engine.carry_out(KVCut(seq, 0))
    vocabulary = engine.vocabulary
    limits = TargetLimits(N_CTX, len(vocabulary), frozenset(), pieces=vocabulary.pieces)
    target = Target(
        limits=limits,
        costs=StepCosts(),
        slots=KVSlots(N_SEQ, "copied", 0),
        n_batch=512,
        max_sessions=N_SEQ,
    )
    core = VerifierCore(target)
    params = SessionParams(SamplingParams(), max_tokens=FULL, cache_prompt=False)
    prompt = (40, 41)
    opening = Opening(client=1, request=Request(None, prompt, params), ids=prompt, n_prompt=2)

    def turn() -> float:
        while len(core.sessions()) < sequences:
            core.handle(opening, now())
        started = now()
        step = core.next_step(started)
        assert isinstance(step, Step)
        begun = now()
        for order in step.orders:
            engine.carry_out(order)
        rows = engine.decode(step.spans)
        decoded = now()
        core.finish(step, rows, begun, decoded)
        return begun - started + now() - decoded

    return turn


def drafter_turn(engine: LlamaDrafter) -> Turn:
    """Return drafts, one after the other."""
    held = 0
    sampler = Sampler(SamplingParams())

    def turn() -> float:
        nonlocal held
        if held == 0:
            engine.carry_out(KVCut(0, 0))
        engine.predict([Ask(0, (40,), sampler)])
        held = (held + 1) % FULL
        return 0.0

    return turn


@contextmanager
def busy_thread() -> Iterator[None]:
    """Run another thread that computes in Python."""
    stopping = False

    def work() -> None:
        while not stopping:
            sum(range(100))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stopping = True
        thread.join()


Taken = dict[str, list[tuple[float, float, float]]]
"""Seconds of each turn, by its name: all of them, those in llama_decode, those of choosing."""


def measured(turns: dict[str, Turn], rounds: int) -> Taken:
    """Return the seconds of so many rounds."""
    taken: Taken = defaultdict(list)
    for _ in range(rounds):
        for name, turn in turns.items():
            if isinstance(turn, Bare):
                turn.prepare()
            before = inside
            started = now()
            choosing = turn()
            whole = now() - started
            taken[name].append((whole, inside - before, choosing))
    return taken


def report(shape: str, taken: Taken) -> None:
    """Print medians and 90th percentiles in milliseconds."""
    for name, seconds in taken.items():
        whole, decoding, choosing = (np.array(seconds) * 1e3).T
        around = whole - decoding - choosing
        columns = {"llama_decode": decoding, "around": around, "choose": choosing}
        cells: list[str] = []
        for column, ms in columns.items():
            median, p90 = np.percentile(ms, [50, 90])
            cells.append(f"{column} {median:7.3f} p90 {p90:7.3f}")
        print(f"{shape:<12} {name:<7}", "  ".join(cells))


class Bench:
    """The engines and the model of all shapes."""

    def __init__(self, path: Path, gpu_layers: int) -> None:
        settings = ModelSettings(
            engine="llama",
            model=str(path),
            ctx=N_CTX,
            max_sessions=N_SEQ,
            threads=1,
            gpu_layers=gpu_layers,
        )
        self._engine = LlamaVerifier(settings)
        self._second = LlamaVerifier(settings)
        self._drafter = LlamaDrafter(settings)
        params = lib.llama_model_default_params()
        params.n_gpu_layers = gpu_layers
        self._model = lib.llama_model_load_from_file(bytes(path), params)

    def turns(self, sequences: int, rows: int) -> dict[str, Turn]:
        """Return the turns of a shape."""
        turns: dict[str, Turn] = {}
        turns["bare"] = Bare(self._model, sequences, rows)
        turns["engine"] = engine_turn(self._engine, sequences, rows)
        if rows == 1:
            turns["core"] = core_turn(self._second, sequences)
        if sequences == rows == 1:
            turns["guess"] = drafter_turn(self._drafter)
        return turns


def model_at(chosen: str, folder: Path) -> Path:
    """Return the path of the chosen model; without one, of a wide one that is written."""
    if chosen:
        return Path(chosen)
    model = TinyModel(n_vocab=N_VOCAB, layers=1, width=16, n_ctx=N_CTX)
    return write(folder / "wide.gguf", model)


def main() -> None:
    """Measure each shape and print it."""
    parser = Options(__doc__)
    parser.option("--model", "")
    parser.option("--rounds", 1500)
    parser.option("--gpu-layers", 0)
    parser.switch("--busy")
    parser.option("--switch", 2e-4, "sys.setswitchinterval, in seconds")
    args = parser.parse_args()
    sys.setswitchinterval(args.switch)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    for name in ("llama_decode", "llama_synchronize"):
        setattr(lib.llama_cpp, name, timed(getattr(lib, name)))
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(model_at(args.model, Path(folder)), args.gpu_layers)
        for shape, (sequences, rows) in SHAPES.items():
            turns = bench.turns(sequences, rows)
            measured(turns, 20)
            with busy_thread() if args.busy else nullcontext():
                taken = measured(turns, args.rounds)
            report(shape, taken)


if __name__ == "__main__":
    main()
