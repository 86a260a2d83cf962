"""The live view as it is drawn: in any size, whatever the snapshot says."""

import io

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.screen import Screen

from specmesh.cli import status
from specmesh.cli.status import screen
from specmesh.core.snapshot import as_json
from specmesh.errors import DaemonUnreachable


def drawn(snapshot, width=80, height=40, trouble=""):
    """The lines that a terminal of this size shows; none is longer or wrapped, and there are no more than fit."""
    console = Console(width=width, height=height, file=io.StringIO())
    shown = console.render_lines(Screen(screen(snapshot, trouble)), console.options)
    lines = ["".join(part.text for part in line).rstrip() for line in shown]
    assert len(lines) <= height
    assert all(cell_len(line) <= width for line in lines)
    return [line for line in lines if line]


def line_of(lines, label):
    return next(line for line in lines if line.startswith(label)).removeprefix(label).strip()


@pytest.mark.parametrize("sessions", [0, 1, 20])
@pytest.mark.parametrize("drafters", [0, 1, 9])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (132, 50), (40, 10), (12, 3)])
def test_fits(snapshots, sessions, drafters, width, height):
    snapshot = as_json(snapshots.verifier(sessions=sessions, drafters=drafters))
    assert drawn(snapshot, width, height)
    assert drawn(snapshot, width, height, trouble="no answer for 3 s")[0].startswith("no answer")


def test_peers_cannot_steer_the_terminal(snapshots):
    """A drafter's name with escapes, newlines or markup is shown as harmless text."""
    snapshot = as_json(snapshots.verifier())
    snapshot["peers"][0]["drafter"] = "\x1b[2J\nmac[red]"
    assert "?[2J?mac[red]" in line_of(drawn(snapshot), "drafter")


class FakeClient:
    """A daemon that answers with these, errors raised; then the user presses Ctrl-C."""

    def __init__(self, *answers):
        self.answers = [*answers, KeyboardInterrupt()]

    def get(self, resource):
        assert resource == "/stats"
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


@pytest.fixture
def slept(monkeypatch):
    naps: list[float] = []
    monkeypatch.setattr(status.time, "sleep", naps.append)
    return naps


def test_lines_where_there_is_no_terminal(snapshots, slept, capsys):
    """The rows, each interval; a daemon that goes away is waited for, and shown again."""
    snapshot = as_json(snapshots.verifier())
    client = FakeClient(snapshot, DaemonUnreachable("gone"), as_json(snapshots.LOADING))
    with pytest.raises(KeyboardInterrupt):
        status.watch(client, 0.5)
    first, gone, back, _ = capsys.readouterr().out.split("\n\n")
    assert first.startswith("role           verifier")
    assert "waiting for the daemon to return" in gone
    assert back.endswith("loading        43%")
    assert slept == [0.5] * 3
