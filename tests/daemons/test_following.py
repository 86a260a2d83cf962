"""The sessions that a drafter follows."""

from types import SimpleNamespace

import pytest

from specmesh.core.events import Predict
from specmesh.daemons.drafter_stats import DrafterStats
from specmesh.daemons.following import Following
from specmesh.engines.sim import SimDrafter, SimSettings
from specmesh.errors import EngineError
from specmesh.wire.messages import Opened


def followed() -> tuple[Following, SimDrafter]:
    """Session 7, whose drafter this is, of nobody here."""
    dealer, engine = SimpleNamespace(send=lambda _: 1), SimDrafter(SimSettings())
    following = Following(dealer, engine, DrafterStats(0.0), "tcp://verifier")  # type: ignore[arg-type]
    following.opened(Opened(7, 0, 3, 0.0, 0, 1.0, 0))
    return following, engine


@pytest.mark.parametrize(
    ("own", "asked", "drafted"), [(None, 0.8, 0.8), (0.3, 0.8, 0.3), (0.0, 0.8, 0.0), (0.3, 0.0, 0.0), (None, 0.0, 0.0)]
)
def test_drafts_may_have_a_temperature_of_their_own(own: float | None, asked: float, drafted: float):
    """Where a text is sampled; of a greedy text the most likely token is drafted whatever was said."""
    dealer = SimpleNamespace(send=lambda _: 1)
    following = Following(dealer, SimDrafter(SimSettings()), DrafterStats(0.0), "tcp://verifier", own)  # type: ignore[arg-type]
    following.opened(Opened(7, 0, 3, temperature=asked, top_k=40, top_p=0.9, seed=5))
    params = following.live[7].sampler.params
    assert (params.temperature, params.top_k, params.top_p, params.seed) == (drafted, 40, 0.9, 5)


def test_a_grammar_that_breaks_ends_its_drafts_alone():
    """Whatever its library raises where a guess is to be chosen: the session is followed without drafting."""
    following, engine = followed()

    def broken(*_: object) -> None:
        raise EngineError("the library gave up")

    live = following.live[7]
    live.guided = SimpleNamespace(sampler=broken)  # type: ignore[assignment]
    assert live.seq is not None
    following._predict(engine, live, Predict((1, 2, 3), guess=True))
    assert (following.live[7], live.seq) == (live, None)
