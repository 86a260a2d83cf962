"""`stats --watch`: in any size, whatever the snapshot says."""

from unittest.mock import Mock

import pytest
from harness import snapshots

from specmesh.cli import status
from specmesh.core.snapshot import as_json
from specmesh.errors import DaemonUnreachable


def client(*answers):
    """A daemon that answers with these, errors raised; then the user presses Ctrl-C."""
    return Mock(**{"get.side_effect": [*answers, KeyboardInterrupt]})


@pytest.mark.parametrize("sessions", [0, 20])
@pytest.mark.parametrize("drafters", [0, 9])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 10), (12, 3)])
def test_fits(slept, monkeypatch, capsys, sessions, drafters, width, height):
    monkeypatch.setattr(status.sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("LINES", str(height))
    snapshot = as_json(snapshots.verifier(sessions=sessions, drafters=drafters))
    with pytest.raises(KeyboardInterrupt):
        status.watch(client(snapshot), 0.5)
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) < height
    assert max(map(len, shown)) < width


def test_peers_cannot_steer_the_terminal():
    snapshot = as_json(snapshots.verifier())
    snapshot["peers"][0]["drafter"] = "\x1b[2J\nmac[red]"
    assert dict(status.rows(snapshot))["drafter"].startswith("?[2J?mac[red]")


@pytest.fixture
def slept(monkeypatch):
    naps: list[float] = []
    monkeypatch.setattr(status.time, "sleep", naps.append)
    return naps


def test_lines_where_there_is_no_terminal(slept, capsys):
    """The rows, each interval; a daemon that goes away is waited for, and shown again."""
    snapshot = as_json(snapshots.verifier())
    told = client(snapshot, DaemonUnreachable("gone"), as_json(snapshots.LOADING))
    with pytest.raises(KeyboardInterrupt):
        status.watch(told, 0.5)
    shown = capsys.readouterr().out
    assert shown.count("role           verifier") == 3
    assert shown.index("waiting for the daemon to return") < shown.index("loading        43%")
    assert slept == [0.5] * 3
