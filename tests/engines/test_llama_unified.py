"""Sequences with a memory of their own compute what those in a shared one do."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from specmesh.engines.base import Span
from specmesh.engines.llama import LlamaSettings, LlamaVerifier
from specmesh.errors import LocalProtocolError

PROMPTS = {0: tuple(range(40, 60)), 1: (7, 8, 9), 3: tuple(range(100, 180))}


@pytest.fixture
def engines(make_gguf: Callable[..., Path]) -> Iterator[list[LlamaVerifier]]:
    settings = [
        LlamaSettings(make_gguf("tiny"), n_ctx=256, n_seq=4, threads=1, gpu_layers=0, kv_unified=unified)
        for unified in (True, False)
    ]
    made = [LlamaVerifier(one) for one in settings]
    yield made
    for one in made:
        one.close()


def test_the_same_logits(engines: list[LlamaVerifier]):
    """Steps of uneven rows, of sequences that are no neighbours, beside short and long prompts, after cuts."""
    shown = []
    for engine in engines:
        engine.decode([Span(seq, 0, ids, logits=False) for seq, ids in PROMPTS.items()])
        held = {seq: len(ids) for seq, ids in PROMPTS.items()}
        rows = []
        for turn in range(6):
            spans = [Span(seq, held[seq], (5, 6, 11)[: 1 + (seq + turn) % 3], logits=True) for seq in held]
            beside = [Span(2, 0, tuple(range(1, 5 + 20 * turn)), logits=False)]
            decoded = engine.decode([*spans, *beside])
            rows += [np.array(one) for one in decoded if one is not None]
            engine.trim(2, 0)
            for span in spans:
                held[span.seq] += 1
                engine.trim(span.seq, held[span.seq])
        shown.append(np.concatenate(rows))
    assert shown[0].shape == shown[1].shape
    assert np.abs(shown[0] - shown[1]).max() < 0.02 * np.ptp(shown[0])


def test_what_may_be_gone_on_from(engines: list[LlamaVerifier]):
    """One's own sequence only: cells cannot be another's too."""
    assert [engine.info.reuse for engine in engines] == ["copied", "cut"]
    own = engines[1]
    own.decode([Span(0, 0, PROMPTS[0], logits=False)])
    with pytest.raises(LocalProtocolError, match="cannot share"):
        own.copy(1, 0, 4)
    own.trim(0, 4)
    own.decode([Span(0, 4, (3,), logits=True)])
