"""Small engines of every kind, and ids for the promises that all of them keep."""

from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from specmesh.config import ModelSettings
from specmesh.core.events import Span
from specmesh.core.sampling.sampler import Sampler, SamplingParams
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines.base import Ask
from specmesh.engines.mlx.drafter import MlxDrafter
from specmesh.engines.sim import SimSettings
from specmesh.llama_options import LlamaOptions

N_CTX = 96
N_SEQ = 3
N_BATCH = 32
MLX_KINDS = ("mlx-llama", "mlx-hybrid", "mlx-sliding", "mlx-quantised")
MODELS = Path(str(files("specmesh") / "models"))
BUNDLED = {path.stem: path for path in sorted(MODELS.glob("**/*.gguf"))}
OPTIONS = {
    "llama-options": LlamaOptions(
        cache_type_k="q8_0", cache_type_v="q8_0", ubatch_size=N_BATCH, rope_scale=2.0, cpu_moe=True
    ),
    "lfm2-options": LlamaOptions(cache_type_k="f32", flash_attn="off"),
    "mamba-options": LlamaOptions(mlock=True, no_mmap=True),
}
ATTENTION = ("llama", "gemma3", "llama-options", *BUNDLED)
MLX_ATTENTION = ("mlx-llama", "mlx-quantised")
RECURRENT = ("mamba", "lfm2", "qwen35", "lfm2-options", "mamba-options")
"""Models with states: their sequences share no ids, and are drafted for one at a time."""

GGUF = (*ATTENTION, *RECURRENT)
"""Tiny models by their architecture, the same with options, and the bundled ones."""

GREEDY = Sampler(SamplingParams())
SAMPLED = Sampler(SamplingParams(temperature=0.8, top_k=20, seed=7))


def settings(engine, model, **changes):
    made = ModelSettings(engine=engine, model=str(model), ctx=N_CTX, max_sessions=N_SEQ)
    return replace(made, **changes)


def llama_settings(request):
    name = request.param
    path = BUNDLED.get(name)
    if path is None:
        pytest.importorskip("llama_cpp")
        make_gguf = request.getfixturevalue("make_gguf")
        arch = name.removesuffix("-options")
        more = {"head": 32, "experts": 4} if name == "llama-options" else {}
        path = make_gguf(f"tiny-{name}", arch=arch, **more)
    options = OPTIONS.get(name, LlamaOptions())
    return settings("llama", path, threads=1, llama=options)


def mlx_drafter(name, make_hf):
    return MlxDrafter(mlx_settings(name, make_hf), n_batch=N_BATCH)


def mlx_verifier(name, make_hf):
    from specmesh.engines.mlx.verifier import MlxVerifier  # noqa: PLC0415 - it imports MLX

    return MlxVerifier(mlx_settings(name, make_hf), n_batch=N_BATCH)


def mlx_settings(name, make_hf):
    kind = name.removeprefix("mlx-")
    quantised = kind == "quantised"
    if quantised:
        kind = "llama"
    folder = make_hf(name, kind, quantised=quantised)
    return settings("mlx", folder, gpu_layers=-1)


def sim_settings():
    return SimSettings(n_ctx=N_CTX, max_sessions=N_SEQ, n_batch=N_BATCH)


def model_params(*names):
    """Return parameters with the mark `models`."""
    mark = pytest.mark.models
    return [pytest.param(name, marks=mark) for name in names]


def shuffled(vocabulary):
    """Return the same tokens in another order, and for each id the one it was."""
    random = np.random.default_rng(7)
    order = random.permutation(len(vocabulary)).tolist()
    pieces = tuple(vocabulary.pieces[was] for was in order)
    ends = frozenset(order.index(was) for was in vocabulary.end_ids)
    return Vocabulary(pieces, ends), order


def text_ids(length, seed=0):
    """Return ids every engine knows, with repetitions, which prompt lookup can find."""
    random = np.random.default_rng(seed)
    phrase = random.integers(33, 126, size=9).tolist()
    return (phrase * length)[:length]


def span(seq, position, ids, *, logits=True):
    return Span(seq, position, tuple(ids), logits)


def step(engine, *spans):
    """Do a step and copy the logits: the arrays an engine returns die with the next call."""
    copies = []
    for rows in engine.decode(spans):
        if rows is not None:
            copies.append(rows.copy())
    return copies


def predict(engine, seq, ids, sampler):
    ask = Ask(seq, tuple(ids), sampler)
    [draft] = engine.predict([ask])
    return draft
