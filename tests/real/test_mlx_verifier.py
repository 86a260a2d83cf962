"""SmolLM2 by MLX as target, with drafters of other engines, beside llama.cpp's logits of it.

On a CPU MLX takes a fifth of a second for each row, so texts are short.
"""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import real_models
from harness.engine_contract import settings, span
from processes import body, command, complete, drafted

from specmesh.core.kv_orders import KVCopy, KVCut
from specmesh.engines.llama.engine import LlamaVerifier
from specmesh.engines.mlx.verifier import MlxVerifier

pytestmark = [pytest.mark.real, pytest.mark.models]

OPTIONS = ("--ctx", 256, "--max-sessions", 1)
N = 8
PROMPT = "def fibonacci(n):\n    "
TEXT = "The keeper of the light counted the ships and wrote"
WRONG = (40, 41, 42)
NOISE = 0.05
"""Largest difference between passes of other widths, in single precision."""

ROUNDED = 0.25
"""Largest difference to llama.cpp's logits, which has weights and products in 16 bits."""


@pytest.fixture(scope="module")
def engines():
    """SmolLM2 in both engines."""
    mlx = settings("mlx", real_models.path("smollm2-mlx"), gpu_layers=0)
    llama = settings("llama", real_models.path("smollm2-f16.gguf"), threads=2)
    with closing(MlxVerifier(mlx)) as one, closing(LlamaVerifier(replace(llama))) as other:
        yield one, other


def read_at_once(engine, ids):
    engine.carry_out(KVCut(0, 0))
    [rows] = engine.decode([span(0, 0, ids)])
    return rows.copy()


def test_text_and_logits_are_those_of_llama_cpp(engines):
    one, other = engines
    ids = one.tokenizer.encode(TEXT)
    assert ids == other.tokenizer.encode(TEXT)
    found, expected = read_at_once(one, ids), read_at_once(other, ids)
    assert float(np.abs(found - expected).max()) < ROUNDED
    assert (found.argmax(-1) == expected.argmax(-1)).all()


def test_rejected_drafts_and_copies_leave_no_trace(engines):
    engine, _ = engines
    ids = engine.tokenizer.encode(TEXT)
    expected = read_at_once(engine, ids)
    engine.carry_out(KVCut(0, 0))
    engine.decode([span(0, 0, ids[:4], logits=False)])
    engine.decode([span(0, 4, [*ids[4:6], *WRONG])])
    assert engine.carry_out(KVCut(0, 6)) == 6
    engine.carry_out(KVCopy(1, 0, 5))
    rests = engine.decode([span(0, 6, ids[6:]), span(1, 5, ids[5:])])
    for rows, begin in zip(rests, (6, 5), strict=True):
        assert float(np.abs(rows - expected[begin:]).max()) < NOISE
    engine.carry_out(KVCut(1, 0))


@pytest.fixture(scope="module")
def verifier(shared):
    target = real_models.path("smollm2-mlx")
    return shared.verifier(target, *OPTIONS, "--reproducible", engine="mlx")


def test_drafts_change_no_id(verifier, beside):
    """Those of llama.cpp for a text, greedy and sampled, and of n-gram lookup in an audit."""
    drafter = beside.drafter(real_models.path("smollm2-q4_0.gguf"), *OPTIONS, engine="llama")
    assert drafter.verifier()["vocabulary"]["verdict"] == "same"
    for sampling in ({}, {"temperature": 0.7, "seed": 3}):
        alone = complete(verifier, body(PROMPT, N, draft_n=0, **sampling)).ids
        assert drafted(verifier, body(PROMPT, N, draft_n=3, **sampling)).ids == alone
    options = {"num_prompts": 1, "max_tokens": 4, "draft_n": "3"}
    done = command("audit", socket=verifier.socket, json=True, **options)
    assert (done.code, done.json["divergences"]) == (0, [])
