"""`specmesh explain`: a synthetic log, its summary in words and JSON, its plots, and what is refused."""

import json
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner, Result

from specmesh.cli import main
from specmesh.core.decision import WAIT, Decision, DrafterChange, PolicyRecord, header
from specmesh.errors import ConfigError
from specmesh.explain.reader import DecisionFile, Trace, read
from specmesh.explain.series import series
from specmesh.explain.summary import policy_in_words, summarise


def decision(number: int, session: int = 1, **change: object) -> Decision:
    """The number-th step of a session: each takes 100 ms, 20 of them waiting, for 2 of 3 drafts."""
    fields: dict[str, object] = {
        "time_s": round(0.02 + number * 0.1, 4),
        "session": session,
        "position": 10 + 3 * number,
        "lead": 4,
        "draft_n": 3,
        "asked": 5,
        "waited_s": 0.02,
        "mode": "wait",
        "acceptance": (0.9, 0.8),
        "interval_s": 0.004,
        "round_trip_s": 0.001,
        "restart_s": None,
        "expected_s": 0.04,
        "expected_rate": 40.0,
        "took_s": 0.08,
        "accepted": 2,
        "committed": 3,
    }
    return Decision(**(fields | change))  # type: ignore[arg-type]


POLICY = PolicyRecord(0.5, 1, [0.0, 1.0, 1.5, 2.0, 3.0], [WAIT, WAIT, 1, 2, 2], 42.0)
CHANGES = [DrafterChange(0.0, 1, 1, "first", None), DrafterChange(0.6, 1, 2, "better", 40.0)]
RECORDS = [
    *(decision(n) for n in range(10)),
    POLICY,
    *CHANGES,
    *(decision(n, session=2, mode="step") for n in range(5)),
]


def text(*records: Decision | PolicyRecord | DrafterChange) -> str:
    lines = [header("0.1.0", "big <model>"), *(record.as_json() for record in records)]
    return "".join(json.dumps(line) + "\n" for line in lines)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Two sessions, of 10 and 5 steps."""
    path = tmp_path / "log.jsonl"
    path.write_text(text(*RECORDS))
    return path


def explain(*args: object) -> Result:
    return CliRunner().invoke(main, ["explain", *map(str, args)])


def test_summary(log: Path):
    """The numbers follow from the records."""
    summary = summarise(read(log))
    assert (summary.sessions, summary.steps, summary.tokens) == ((1, 2), 15, 45)
    assert summary.seconds == pytest.approx(1.5)
    assert summary.tokens_per_second == pytest.approx(30)
    assert summary.promised_per_second == pytest.approx(40)
    assert (summary.waited_share, summary.verify_share) == (pytest.approx(0.2), pytest.approx(0.8))
    assert (summary.mean_draft_n, summary.mean_asked, summary.mean_lead) == (3, 5, 4)
    assert summary.acceptance_rate == pytest.approx(2 / 3, abs=1e-4)
    assert summary.acceptance_at == (1, 1, 0)
    assert summary.modes == {"wait": 10, "step": 5, "probe": 0, "deadline": 0}
    assert summary.step_error == pytest.approx(2)
    assert summary.policy == POLICY
    assert summary.drafters == {"first": 1, "better": 1}


def test_untested_positions_count_nowhere():
    """A draft behind a rejected one says nothing about its position."""
    steps = [decision(0, accepted=0, committed=1), decision(1, accepted=3, committed=4)]
    found = summarise(DecisionFile(Path("x"), "m", "v", [Trace(1, steps)]))
    assert found.acceptance_at == (0.5, 1, 1)


def test_words(log: Path):
    """Without --out: a summary on stdout, and how to plot on stderr."""
    done = explain(log)
    assert done.exit_code == 0
    for words in (
        "big <model>",
        "15, 45 tokens, 3.00 a step",
        "30.0, where the policy promised 40.0",
        "20% waiting",
        "67% of 45",
        "1.00 1.00 0.00",
        "wait 10, step 5",
        "first 1, better 1",
        "from lead 0 wait; from lead 1.5 verify 1; from lead 2 verify 2",
    ):
        assert words in done.stdout
    assert "--out" in done.stderr


def test_json(log: Path):
    """--json is the summary, and nothing else."""
    told = json.loads(explain(log, "--json").stdout)
    assert (told["schema_version"], told["steps"], told["policy"]["drafts"]) == (1, 15, POLICY.drafts)


def test_one_session(log: Path):
    """--session leaves the others out; one that is not there is told, with those that are."""
    told = json.loads(explain(log, "--session", 2, "--json").stdout)
    assert (told["sessions"], told["steps"], told["policy"]) == ([2], 5, None)
    done = explain(log, "--session", 3)
    assert (done.exit_code, done.stdout) == (78, "")
    assert "no session 3" in done.stderr
    assert "(1, 2)" in done.stderr


def test_no_steps_yet(tmp_path: Path):
    """A header alone is a log in which nothing happened."""
    path = tmp_path / "log"
    path.write_text(text())
    assert "none yet" in explain(path).stdout
    assert json.loads(explain(path, "--json").stdout)["acceptance_rate"] is None


def test_a_line_being_written_is_left_out(log: Path):
    """The verifier may run on while its log is read."""
    with log.open("a") as file:
        file.write('{"kind":"decis')
    assert summarise(read(log)).steps == 15


def test_two_runs_in_a_file(log: Path):
    """A verifier that came back numbers its sessions anew: they are others."""
    log.write_text(log.read_text() + text(decision(0)))
    assert [trace.session for trace in read(log).traces] == [1, 2, 1]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("what", "not a JSON object"),
        ("[1]", "not a JSON object"),
        ("", "not a JSON object"),
        ('{"kind": "other"}', "kind is 'other'"),
        ('{"kind": "decision"}', "time_s is missing"),
        ('{"kind": "header", "schema_version": 2}', "schema version 2"),
    ],
)
def test_bad_lines(tmp_path: Path, line: str, why: str):
    """A bad line is named with its file and number."""
    path = tmp_path / "log"
    path.write_text(text(decision(0)) + line + "\n")
    done = explain(path)
    assert (done.exit_code, done.stdout) == (78, "")
    assert f"{path}, line 3: " in done.stderr
    assert why in done.stderr
    assert done.stderr.count("\n") == 1


def test_files_that_are_no_logs(tmp_path: Path):
    """Nothing there, nothing in it, no header, not text."""
    empty, headless, binary = tmp_path / "empty", tmp_path / "headless", tmp_path / "binary"
    empty.touch()
    headless.write_text(json.dumps(decision(0).as_json()) + "\n")
    binary.write_bytes(b"\xff\x00GGUF\n")
    for path, why in (
        (tmp_path / "none", "No such file"),
        (tmp_path, "directory"),
        (empty, "no decisions"),
        (headless, "line 1: no header"),
        (binary, "line 1"),
    ):
        with pytest.raises(ConfigError, match=why):
            read(path)


def test_policies_in_words():
    """Leads with the same choice are one stretch."""
    assert policy_in_words(PolicyRecord(0, 1, [0.0, 1.0, 2.0], [0, 0, 2], 1)) == (
        "from lead 0 step alone; from lead 2 verify 2"
    )
    assert policy_in_words(PolicyRecord(0, 1, [], [], 1)) == "empty"


def test_series(log: Path):
    """One point per step, the sessions behind each other; the throughput looks back within its session."""
    curves = series(read(log), positions=3)
    assert curves.time == pytest.approx([0.1 * n for n in range(1, 16)])
    assert curves.borders == pytest.approx([1.0, 1.5])
    assert curves.throughput == pytest.approx([30] * 15)
    assert curves.waiting == pytest.approx([0.2] * 15)
    assert (curves.rates[0][0], curves.rates[2][0]) == (0.9, None)


def test_series_of_many_steps_are_short():
    """Long logs are drawn in groups, whose means are the steps'."""
    steps = [decision(n, draft_n=3 + n % 2) for n in range(1000)]
    curves = series(DecisionFile(Path("x"), traces=[Trace(1, steps)]), most_points=100)
    assert len(curves.time) == 100
    assert set(curves.draft_n) == {3.5}
    assert curves.time[-1] == pytest.approx(100)


def test_png(log: Path, tmp_path: Path):
    """--out FILE.png is a picture."""
    pytest.importorskip("matplotlib")
    out = tmp_path / "plot.png"
    done = explain(log, "--out", out)
    assert (done.exit_code, done.stdout) == (0, f"{out}\n")
    assert out.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("records", [RECORDS, []])
def test_html(tmp_path: Path, records: list[Decision | PolicyRecord]):
    """--out FILE.html is one page with the plot and the summary in it; nothing is loaded from elsewhere."""
    pytest.importorskip("matplotlib")
    log, out = tmp_path / "log", tmp_path / "plot.html"
    log.write_text(text(*records))
    assert explain(log, "--out", out).exit_code == 0
    content = out.read_text()
    assert "<th>steps</th>" in content
    assert "big &lt;model&gt;" in content
    assert not [word for word in ("<script", "<link", "src=", "url(http", 'href="http') if word in content]
    svg = content[content.index("<svg") : content.index("</svg>") + 6]
    assert ET.fromstring(svg).tag.endswith("svg")  # noqa: S314  (we wrote it)


def test_page_is_put_together_without_matplotlib(log: Path):
    """The page around the SVG."""
    from specmesh.explain.plot import page  # noqa: PLC0415

    made = page(summarise(read(log)), "<?xml version='1.0'?>\n<svg>{}</svg>")
    assert "<svg>{}</svg>" in made
    assert "<?xml" not in made


def test_without_matplotlib(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One line with the pip command; the summary needs none."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = explain(log, "--out", tmp_path / "plot.png")
    assert (done.exit_code, done.stdout) == (78, "")
    assert "pip install 'specmesh[explain]'" in done.stderr
    assert done.stderr.count("\n") == 1
    assert explain(log).exit_code == 0


def test_out_that_cannot_be(log: Path, tmp_path: Path):
    """Another ending is wrong usage; a folder that is not there is told."""
    assert explain(log, "--out", tmp_path / "plot.gif").exit_code == 2
    pytest.importorskip("matplotlib")
    done = explain(log, "--out", tmp_path / "none" / "plot.png")
    assert done.exit_code == 78
    assert "cannot be written" in done.stderr
