"""Small engines of every kind, and ids for the promises that all of them keep."""

from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from specmesh.config import ModelSettings
from specmesh.core.events import Span
from specmesh.core.sampling.sampler import Sampler, SamplingParams
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines.base import Ask, DraftEngine, VerifyEngine
from specmesh.engines.mlx.drafter import MlxDrafter
from specmesh.engines.sim import SimSettings

N_CTX = 96
N_SEQ = 3
N_BATCH = 32
TINY = ("llama", "mamba", "lfm2")
MLX_KINDS = ("llama", "hybrid", "sliding", "quantised")
BUNDLED = sorted(Path(str(files("specmesh") / "models")).glob("**/*.gguf"))

GREEDY = Sampler(SamplingParams())
SAMPLED = Sampler(SamplingParams(temperature=0.8, top_k=20, seed=7))


def llama_settings(request: pytest.FixtureRequest) -> ModelSettings:
    return ModelSettings(
        engine="llama",
        model=str(pick_gguf(request.param, request)),
        ctx=N_CTX,
        max_sessions=N_SEQ,
        threads=1,
    )


def mlx_drafter(name: str, make_hf: Callable[..., Path]) -> MlxDrafter:
    kind = name.removeprefix("mlx-")
    folder = make_hf(name, "llama", quantised=True) if kind == "quantised" else make_hf(name, kind)
    return MlxDrafter(
        ModelSettings(
            engine="mlx", model=str(folder), ctx=N_CTX, max_sessions=N_SEQ, gpu_layers=-1
        ),
        n_batch=N_BATCH,
    )


def sim_settings(**changes: object) -> SimSettings:
    return SimSettings(n_ctx=N_CTX, max_sessions=N_SEQ, n_batch=N_BATCH, **changes)


def pick_gguf(name: str, request: pytest.FixtureRequest) -> Path:
    if name in TINY:
        pytest.importorskip("llama_cpp")
        return request.getfixturevalue("make_gguf")(f"tiny-{name}", arch=name)
    return next(path for path in BUNDLED if path.stem == name)


def model_params(*names: str) -> list[object]:
    return [
        pytest.param(name, marks=pytest.mark.models)
        for name in (*names, *(path.stem for path in BUNDLED))
    ]


def shuffled(vocabulary: Vocabulary) -> tuple[Vocabulary, list[int]]:
    """The same tokens in another order, and for each id the one it was."""
    order = [int(i) for i in np.random.default_rng(7).permutation(len(vocabulary))]
    ends = frozenset(i for i, was in enumerate(order) if was in vocabulary.end_ids)
    return Vocabulary(tuple(vocabulary.pieces[i] for i in order), ends), order


def text_ids(length: int, seed: int = 0) -> list[int]:
    """Ids every engine knows, with repetitions, so that prompt lookup has something to find."""
    phrase = np.random.default_rng(seed).integers(33, 126, size=9).tolist()
    return (phrase * length)[:length]


def span(seq: int, position: int, ids: Sequence[int], *, logits: bool = True) -> Span:
    return Span(seq, position, tuple(ids), logits)


def step(engine: VerifyEngine, *spans: Span) -> list[NDArray[np.float32]]:
    """One step, the logits copied: the arrays an engine returns die with the next call."""
    return [rows.copy() for rows in engine.decode(spans) if rows is not None]


def predict(
    engine: DraftEngine, seq: int, ids: Sequence[int], sampler: Sampler | None
) -> int | None:
    [guess] = engine.predict([Ask(seq, tuple(ids), sampler)])
    return guess
