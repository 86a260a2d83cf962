"""Sessions of a target whose cells are too few for all: each text is that of a session alone."""

import random
from collections import Counter
from functools import lru_cache

import pytest
from harness.crowd import Crowd

from specmesh.core.kv_orders import KVCut
from specmesh.core.verifier import session_cells
from specmesh.engines.sim import SimSettings, SimVerifier
from specmesh.errors import NoRoom

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
    lossy: it loses sequences that leave for the host's memory. empties: a step without room empties
        its sequences. most: ids of a sequence for which it has room.
    """

    def __init__(
        self, rng, *, fewer=0, host_ids=0, lossy=False, empties=False, most=N_CTX, guests=0
    ):
        settings = SimSettings(
            n_ctx=N_CTX, n_batch=32, max_sessions=6, cells=CELLS - fewer, host_ids=host_ids
        )
        super().__init__(settings, guests)
        self.rng = rng
        self.lossy = lossy
        self.empties = empties
        self.most = most
        self.seen = Counter()

    def carry_out(self, order):
        held = super().carry_out(order)
        self.seen[type(order).__name__] += 1
        if self.lossy and getattr(order, "now", False) and self.rng.random() < 0.3:
            self.seen["lost"] += 1
            return super().carry_out(KVCut(order.seq, 0))
        return held

    def decode(self, spans):
        try:
            return self._decode_most(spans)
        except NoRoom as error:
            if not self.empties:
                raise
            lost = {span.seq for span in spans}
            for seq in lost:
                super().carry_out(KVCut(seq, 0))
            raise NoRoom(error.what, lost) from error

    def _decode_most(self, spans):
        if max(span.position + len(span.ids) for span in spans) > self.most:
            raise NoRoom(f"no room for {self.most} ids")
        return super().decode(spans)


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
    for seed in range(6):
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


def test_an_engine_that_loses_the_sequences_of_a_step_without_room():
    assert crowded(fewer=CELLS - N_CTX, empties=True)["full"]


@pytest.mark.parametrize("empties", [False, True])
def test_a_text_that_never_fits_ends_with_an_error(empties):
    """It is refused, where it could be read again and again."""
    crowd = Crowd(Engine(random.Random(0), most=40, empties=empties), None, CELLS, 0)
    crowd.ask(tuple(range(50)), 4)
    with pytest.raises(AssertionError, match="no room for 40 ids"):
        crowd.finish()


def test_short_requests_have_cells_of_their_own():
    assert not crowded(guests=2)["full"]


def test_a_host_that_loses_sequences():
    assert crowded(host_ids=10**6, lossy=True)["lost"]
