"""`specmesh plan`: words and JSON from forecasts, and the command."""

import pytest

from specmesh.bench.steps import costs_of
from specmesh.cli.plan import Level, Plan
from specmesh.core.simulation import Deployment, Forecast, Workload

SITE = Deployment(costs_of({0: {1: 30.0, 9: 40.0}}), draft=0.005, round_trip=0.005)


def told(users: int, total: float) -> Forecast:
    return Forecast(users, 10.0, total, total / users, total / users, users, 0.5, 0.75, 0.9)


def plan(*speedups: float) -> Plan:
    """2, 4, 8, ... users with these speed-ups."""
    levels = [Level(told(2**n, 100 * speedup), told(2**n, 100)) for n, speedup in enumerate(speedups, 1)]
    return Plan(SITE, Workload(64, 128), 0.75, levels)


@pytest.mark.parametrize(
    ("speedups", "up_to", "stops", "words"),
    [
        ((1.8, 1.4, 1.01), 4, 8, "pays up to 4 users, and stops paying by 8"),
        ((1.8, 1.4), 4, None, "pays with all these numbers of users, up to 4"),
        ((1.0, 0.9), None, 2, "does not pay, not with 2 either"),
        ((1.8, 1.0, 1.3), 2, 4, "pays up to 2 users, and stops paying by 4"),
    ],
)
def test_where_drafts_stop_paying(speedups: tuple[float, ...], up_to: int | None, stops: int | None, words: str):
    """The most users of an unbroken row from the fewest on, and the fewest with whom they do not pay."""
    found = plan(*speedups)
    assert (found.pays_up_to, found.stops_at) == (up_to, stops)
    assert words in found.lines()[-1]
    assert found.as_json()["drafting_stops_paying_at"] == stops
