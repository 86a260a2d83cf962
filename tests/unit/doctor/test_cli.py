"""`specmesh doctor`: its output and its exit code."""

import json

import pytest
from click.testing import CliRunner, Result

from specmesh import logs
from specmesh.cli import main
from specmesh.cli import status as command
from specmesh.doctor import Check, Checks, fail, ok, warn


@pytest.fixture(autouse=True)
def _own_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "configure", lambda *_: None)


def doctor(monkeypatch: pytest.MonkeyPatch, found: list[Check], *args: str) -> Result:
    monkeypatch.setattr(command, "examine", lambda _, colour: Checks(found, colour))
    return CliRunner().invoke(main, ["doctor", *args])


@pytest.mark.parametrize(
    ("found", "code"),
    [
        ([ok("g", "a", "well")], 0),
        ([ok("g", "a", "well"), warn("g", "b", "so so", "fix it")], 0),
        ([fail("g", "a", "broken", "fix it"), ok("g", "b", "well")], 1),
    ],
)
def test_exit_code(monkeypatch: pytest.MonkeyPatch, found: list[Check], code: int):
    """1 where a check fails; a warning is none. No colour where no terminal is."""
    done = doctor(monkeypatch, found)
    assert done.exit_code == code
    assert "\x1b" not in done.stdout
    told = doctor(monkeypatch, found, "--json")
    assert told.exit_code == code
    assert [one["name"] for one in json.loads(told.stdout)["checks"]] == [check.name for check in found]


@pytest.mark.parametrize("option", ["--model", "--against"])
def test_half_a_comparison(option: str):
    """One model alone is wrong usage."""
    done = CliRunner().invoke(main, ["doctor", option, "x.gguf"])
    assert done.exit_code == 2
    assert "go together" in done.stderr
