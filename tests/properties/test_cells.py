"""Sessions of a target whose cells are too few for all: each text is that of a session alone."""

import random
from collections import Counter
from functools import lru_cache

import pytest
from harness.crowd import Crowd

from specmesh.core.kv_slots import KVCut
from specmesh.core.verifier import session_cells
from specmesh.engines.sim import SimSettings, SimVerifier

N_CTX = 96
CELLS = 128


@pytest.fixture(autouse=True, params=[0, 8, 256])
def growth(request, monkeypatch):
    """Have sessions begin with so many cells to spare for each: fewer are set back with more."""
    monkeypatch.setattr(session_cells, "GROWTH", request.param)
    return request.param


class Engine(SimVerifier):
    """A target whose host's memory may be full.

    fewer: cells that it has less than the core knows.
    """

    def __init__(self, rng, *, fewer=0, host_ids=0, lossy=False, guests=0):
        settings = SimSettings(
            n_ctx=N_CTX, n_batch=32, max_sessions=6, cells=CELLS - fewer, host_ids=host_ids
        )
        super().__init__(settings, guests)
        self.rng = rng
        self.lossy = lossy
        self.seen = Counter()

    def carry_out(self, order):
        held = super().carry_out(order)
        self.seen[type(order).__name__] += 1
        if self.lossy and getattr(order, "now", False) and self.rng.random() < 0.3:
            self.seen["lost"] += 1
            return super().carry_out(KVCut(order.seq, 0))
        return held


@lru_cache(4096)
def alone(prompt, most):
    """Return the text of a session that has the target to itself."""
    engine = SimVerifier(SimSettings(n_ctx=N_CTX))
    for token in prompt:
        following = engine.append(0, token)
    shown = []
    while len(shown) < min(most, N_CTX - len(prompt)):
        shown.append(following)
        following = engine.append(0, following)
    return tuple(shown)


def crowded(**engine):
    """Have crowds come to such engines; return the counts of what happened."""
    seen = Counter()
    for seed in range(10):
        rng = random.Random(seed)
        target = Engine(rng, **engine)
        crowd = Crowd(target, rng, CELLS, target.info.host_ids)
        crowd.crowd()
        crowd.check(alone)
        seen += crowd.seen + target.seen
    return seen


@pytest.mark.parametrize("host_ids", [0, 64, 10**6], ids=["no host", "little host", "all host"])
def test_no_session_fails_and_no_text_changes(host_ids):
    seen = crowded(host_ids=host_ids)
    assert seen["session_set_back"], "the pool was never full"
    assert seen["KVOffload"] or not host_ids, "nothing left for the host's memory"
    assert not seen["full"], "the count of cells is exact"


def test_an_engine_with_fewer_cells_than_it_says():
    assert crowded(fewer=CELLS - N_CTX, host_ids=64)["full"]


def test_short_requests_have_cells_of_their_own():
    assert not crowded(guests=2)["full"]


def test_a_host_that_loses_sequences():
    assert crowded(host_ids=10**6, lossy=True)["lost"]
