"""The sessions that a drafter follows."""

from types import SimpleNamespace

import pytest

from specmesh.core.scheduling.kv_slots import KVSlots
from specmesh.daemons.drafter.draft_sessions import DraftSessions
from specmesh.daemons.drafter.statistics import DrafterStats
from specmesh.engines.sim import SimDrafter, SimSettings
from specmesh.wire.messages import Opened


@pytest.mark.parametrize(
    ("own", "asked", "drafted"), [(None, 0.8, 0.8), (0.3, 0.8, 0.3), (0.0, 0.8, 0.0), (0.3, 0.0, 0.0), (None, 0.0, 0.0)]
)
def test_drafts_may_have_a_temperature_of_their_own(own: float | None, asked: float, drafted: float):
    """Where a text is sampled; of a greedy text the most likely token is drafted whatever was said."""
    dealer, home = SimpleNamespace(send=lambda _: 1), SimpleNamespace()
    places = KVSlots(1, "cut", 0)
    following = DraftSessions(dealer, SimDrafter(SimSettings()), DrafterStats(0.0), "tcp://verifier", home, places, own)
    following.opened(Opened(7, 0, 3, temperature=asked, top_k=40, top_p=0.9, seed=5))
    params = following.live[7].sampler.params
    assert (params.temperature, params.top_k, params.top_p, params.seed) == (drafted, 40, 0.9, 5)
