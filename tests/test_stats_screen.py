"""The live view as it is drawn: in any size, whatever the snapshot says."""

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from specmesh.cli import stats_view
from specmesh.cli.stats_screen import PLAIN, one_line, screen
from specmesh.errors import DaemonUnreachable


def drawn(snapshot, width=80, height=24, trouble="", **marks):
    """The lines that a terminal of this size shows; none is longer or wrapped, and there are no more than fit."""
    console = Console(width=width, height=height, record=True, file=io.StringIO())
    console.print(screen(snapshot, width, height, trouble, **marks))
    lines = console.export_text().rstrip("\n").split("\n")
    assert len(lines) <= height
    assert all(cell_len(line) <= width for line in lines)
    return lines


def line_of(lines, label):
    """What stands behind a label."""
    return next(line for line in lines if line.startswith(label)).removeprefix(label).strip()


@pytest.mark.parametrize("sessions", [0, 1, 20])
@pytest.mark.parametrize("drafters", [0, 1, 9])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (132, 50), (40, 10), (12, 3)])
def test_fits(snapshots, sessions, drafters, width, height):
    """However many sessions and drafters, in whatever terminal."""
    snapshot = snapshots.verifier(sessions=sessions, drafters=drafters)
    assert drawn(snapshot, width, height)
    assert drawn(snapshot, width, height, trouble="no answer for 3 s")[-1]


def test_verifier(snapshots):
    """A verifier: role, model, uptime; acceptance and pace now and over the minute; step, round trip, sides."""
    lines = drawn(snapshots.verifier())
    assert lines[0].startswith("verifier  big.gguf on CPU, 1 thread")
    assert lines[0].endswith("up 0:02:32")
    assert len(lines[0]) == 80
    assert line_of(lines, "acceptance").startswith("75%")
    assert line_of(lines, "tokens/s").split()[0] == "6"
    assert "█" in line_of(lines, "tokens/s")
    assert "mean length 2" in line_of(lines, "draft_n")
    assert line_of(lines, "speed-up") == "0.19x over the one-token step of 34 ms"  # 6 tokens in 1.1 s
    assert line_of(lines, "round trip").startswith("5 ms, p99 5 ms")
    assert "mac:0, 2 ms per draft (llama small.gguf)" in line_of(lines, "drafter")
    assert line_of(lines, "drafter").startswith("25%")


def test_sessions_are_listed_newest_first(snapshots):
    """Sessions that find no room are counted; a taller terminal shows them all."""
    assert "5088330" in drawn(snapshots.verifier(sessions=1))[-1]
    short, tall = (drawn(snapshots.verifier(sessions=20), height=height) for height in (24, 40))
    assert len(short) == 24
    rows = [line for line in short if "50883" in line]
    assert rows[0].split()[:3] == ["5088349", "5", "6"]
    assert short[-1] == f"... {20 - len(rows)} more"
    assert sum("50883" in line for line in tall) == 20
    assert "more" not in tall[-1]


def test_idle_verifier(snapshots):
    """Without sessions it says how many there were; without drafters that none is attached."""
    lines = drawn(snapshots.verifier(sessions=0, drafters=0))
    assert line_of(lines, "sessions") == "0 live, 1 opened"
    assert line_of(lines, "drafter") == "- none attached"


def test_it_grows(snapshots):
    """A wider terminal gives the bars more room."""
    narrow, wide = (drawn(snapshots.verifier(), width) for width in (80, 160))
    length = [sum(map(line_of(lines, "drafter").count, "█░")) for lines in (narrow, wide)]
    assert length == [16, 32]


def test_drafter(snapshots):
    """A drafter: its pace in drafts, what it costs, and its verifier."""
    lines = drawn(snapshots.drafter())
    assert lines[0].startswith("drafter  big.gguf")
    assert line_of(lines, "drafts/s").split()[0] == "0"
    assert line_of(lines, "stood").startswith("60%")
    assert "4 ms per draft; 5 drafted, 3 accepted, 4 committed" in line_of(lines, "draft_n")
    assert "spark:1 (big.gguf)" in line_of(lines, "verifier")
    alone = drawn(snapshots.drafter(connected=False))
    assert line_of(alone, "verifier") == "- not connected"
    both = [{"name": "spark:1", "model": "big", "busy": 0.4, "address": "a"}, {"name": None, "address": "b"}]
    several = [line for line in drawn(snapshots.drafter() | {"verifiers": both}) if line.startswith("verifier")]
    assert ("spark:1 (big)" in several[0], several[1].endswith("not connected at b")) == (True, True)


def test_loading(snapshots):
    """While loading, how far it is."""
    lines = drawn(snapshots.LOADING)
    assert len(lines) == 2
    assert line_of(lines, "loading").startswith("43%")
    assert one_line(snapshots.LOADING) == "verifier loading 43%"


def test_ascii(snapshots):
    """A terminal that has ASCII only gets no other marks."""
    assert "\n".join(drawn(snapshots.verifier(sessions=20), marks=PLAIN)).isascii()


def test_trouble_stands_on_top(snapshots):
    """What is wrong stands below the headline, with the last that was known."""
    lines = drawn(snapshots.verifier(sessions=20), trouble="no answer for 3 s")
    assert lines[1] == "no answer for 3 s"
    assert len(lines) == 24


def test_peers_cannot_steer_the_terminal(snapshots):
    """A drafter's name with escapes, newlines or markup is shown as harmless text."""
    snapshot = snapshots.verifier()
    snapshot["peers"][0]["drafter"] = "\x1b[2J\nmac[red]"
    line = line_of(drawn(snapshot), "drafter")
    assert "?[2J?mac[red]" in line


def test_what_is_missing_is_a_dash():
    """A snapshot of a daemon of another version, without any of these fields, is drawn all the same."""
    for role in ("verifier", "drafter"):
        assert drawn({"role": role})
        assert one_line({"role": role}).startswith(role)


def test_one_line(snapshots):
    """One line has what the screen has on top."""
    told = one_line(snapshots.verifier())
    assert told.startswith("verifier big.gguf, sessions 1, tokens/s 6, acceptance 75%, draft_n ")
    assert told.endswith("drafter 25% busy")
    assert "\n" not in told
    assert "drafts/s 0" in one_line(snapshots.drafter())


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
    """How long was slept, in place of sleeping."""
    naps: list[float] = []
    monkeypatch.setattr(stats_view.time, "sleep", naps.append)
    return naps


def test_lines_where_there_is_no_terminal(snapshots, slept, capsys):
    """One line per interval with the time; a daemon that goes away is waited for, and shown again."""
    snapshot = snapshots.verifier()
    client = FakeClient(snapshot, snapshot, DaemonUnreachable("gone"), snapshots.LOADING)
    with pytest.raises(KeyboardInterrupt):
        stats_view.watch(client, 0.5)
    first, second, gone, back = capsys.readouterr().out.splitlines()
    assert first.split(maxsplit=1)[1] == second.split(maxsplit=1)[1] == one_line(snapshot)
    assert "waiting for the daemon to return" in gone
    assert back.endswith("verifier loading 43%")
    assert slept == [0.5] * 4


def test_nobody_there_at_first(slept):
    """A daemon that never answered is an error."""
    with pytest.raises(DaemonUnreachable):
        stats_view.watch(FakeClient(DaemonUnreachable("none")), 1.0)
    assert slept == []
