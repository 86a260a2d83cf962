"""`specmesh plan`: words and JSON from forecasts, and the command."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from specmesh.bench.steps import costs_of
from specmesh.cli import main
from specmesh.cli.plan import Level, Plan, forecast
from specmesh.core.simulation import Forecast, Site, Texts

SITE = Site(costs_of({0: {1: 30.0, 9: 40.0}}), draft=0.005, round_trip=0.005)


def told(users: int, total: float) -> Forecast:
    return Forecast(users, 10.0, total, total / users, total / users, users, 0.5, 0.75, 0.9)


def plan(*speedups: float) -> Plan:
    """2, 4, 8, ... users with these speed-ups."""
    levels = [Level(told(2**n, 100 * speedup), told(2**n, 100)) for n, speedup in enumerate(speedups, 1)]
    return Plan(SITE, Texts(64, 128), 0.75, levels)


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


def test_lines_are_aligned():
    """A heading and a line per number of users."""
    table = plan(1.8, 1.4).lines()[3:6]
    assert len({len(line) for line in table}) == 1
    assert [line.split()[0] for line in table] == ["users", "2", "4"]


def test_each_is_simulated_with_drafts_and_without():
    """Fewest users first, however they were named."""
    done: list[int] = []
    found = forecast(SITE, Texts(8, 16), 0.75, (2, 1), lambda: done.append(1))
    assert [level.users for level in found.levels] == [1, 2]
    assert len(done) == 4
    assert all(level.alone.drafts == 0 < level.drafting.drafts for level in found.levels)


def test_the_command(tmp_path: Path):
    """From a file of steps: words, or one JSON object."""
    steps = tmp_path / "steps.json"
    steps.write_text("[30, 31, 32, 33]")
    args = ["plan", "--steps", str(steps), "--users", "1,2", "--tokens", "16", "--prompt-tokens", "8"]
    done = CliRunner().invoke(main, args)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("one row 30 ms, a draft 5.2 ms, round trip 5 ms, 75% of drafts stand; a drafter for")
    found = json.loads(CliRunner().invoke(main, [*args, "--max-sessions", "1", "--drafters", "1", "--json"]).stdout)
    assert (found["max_sessions"], found["drafters"], len(found["levels"])) == (1, 1, 2)
    assert found["levels"][0]["alone"]["total"] > 0


@pytest.mark.parametrize(
    ("args", "code"),
    [("--users 0", 2), ("--users 1,x", 2), ("--steps none.json", 78), ("--socket none.sock", 69)],
)
def test_wrong_usage(args: str, code: int):
    """Exit codes as elsewhere."""
    assert CliRunner().invoke(main, ["plan", *args.split()]).exit_code == code
