"""llama.cpp's sequences in a pool of cells that is too small for all of them."""

import random
from collections import Counter

import pytest
from harness.crowd import Crowd

from specmesh.config import ModelSettings, parse_kv_cache
from specmesh.core.events import Span
from specmesh.core.kv_orders import KVCut
from specmesh.core.verifier import session_cells
from specmesh.engines.llama.engine import LlamaVerifier
from specmesh.errors import NoRoom

CELLS = 256  # the least that llama.cpp makes
NEAR_TIE = 0.01  # of logits that differ by about 5


POOLS = [
    pytest.param(("llama", None), id="attention"),
    pytest.param(("gemma3", True), id="windows, full"),
    pytest.param(("gemma3", False), id="windows"),
    pytest.param(("lfm2", None), id="hybrid"),
    pytest.param(("qwen35", None), id="hybrid, native"),
]
NO_POOL = pytest.param(("mamba", None), id="recurrent")  # its sequences take no cells


@pytest.fixture(scope="module", params=[*POOLS, NO_POOL])
def engine(request, make_gguf):
    """Return a target with an exact pool: guests would have cells of their own."""
    arch, swa_full = request.param
    settings = ModelSettings(
        engine="llama",
        model=str(make_gguf(f"pool-{arch}", arch=arch, n_ctx=160)),
        kv_cache=parse_kv_cache(str(CELLS)),
        max_sessions=6,
        swa_full=swa_full,
        threads=1,
    )
    engine = LlamaVerifier(settings, n_batch=64)
    yield engine
    engine.close()


def emptied(engine):
    """Empty all sequences of a target, and return it."""
    for seq in range(6):
        engine.carry_out(KVCut(seq, 0))
    return engine


def losses(engine, prompt, text):
    """Return by how much each token of a text is less likely than the best, read by one session.

    Batches of other sizes round differently, so of two equally likely tokens either may come.
    """
    emptied(engine)
    ids = prompt + text
    rows = []
    for begin in range(0, len(ids), 8):  # a step has so many rows with logits
        [logits] = engine.decode([Span(0, begin, ids[begin : begin + 8], logits=True)])
        rows += [row.copy() for row in logits]
    chosen = rows[len(prompt) - 1 : -1]
    return [row.max() - row[token] for row, token in zip(chosen, text, strict=True)]


@pytest.mark.parametrize("host_ids", [0, 300, 10**6])
@pytest.mark.parametrize("growth", [0, 40])
def test_no_session_fails_and_texts_are_the_targets(engine, monkeypatch, growth, host_ids):
    """Sessions begin with so many cells to spare for each."""
    monkeypatch.setattr(session_cells, "GROWTH", growth)
    seen = Counter()
    for seed in (2, 3):
        crowd = Crowd(emptied(engine), random.Random(seed), CELLS, host_ids)
        crowd.crowd(30)
        seen += crowd.seen
        for client, (prompt, _) in crowd.asked.items():
            if crowd.shown[client]:
                assert max(losses(engine, prompt, crowd.shown[client])) < NEAR_TIE
    assert seen["session_set_back"], "the pool was never full"
    assert not seen["full"], "the count of cells is exact"


@pytest.mark.parametrize("engine", POOLS, indirect=True)
def test_a_step_without_room_changes_nothing(engine):
    """It is refused while others have all cells, and runs when they have left."""
    emptied(engine)
    for begin in range(0, 128, 64):
        engine.decode([Span(0, begin, (5,) * 64, logits=False)])
        engine.decode([Span(1, begin, (6,) * 64, logits=False)])
    with pytest.raises(NoRoom):
        engine.decode([Span(2, 0, (7, 8), logits=True)])
    held = [engine.carry_out(KVCut(seq, 999)) for seq in range(3)]
    assert held == [128, 128, 0]
    engine.carry_out(KVCut(1, 0))
    engine.decode([Span(2, 0, (7, 8), logits=True)])
