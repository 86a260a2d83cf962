"""The decision log: whole lines in a file, and never a reason to stop."""

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from specmesh import __version__
from specmesh.core.decision import Decision, PolicyRecord
from specmesh.daemons import decision_log
from specmesh.daemons.decision_log import DecisionLog
from specmesh.errors import ConfigError


def decision(time_s: float = 0.0) -> Decision:
    return Decision(time_s, 1, 10, 2, 2, 4, 0.0, "step", (0.8,), None, 0.0, None, 0.01, None, 0.01, 2, 3)


POLICY = PolicyRecord(0.0, 1, [0.0], [0], 10.0)


def records(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)


def logged(path: Path, *added: Decision | PolicyRecord) -> None:
    """A run of a verifier that logs this."""
    log = DecisionLog(path)
    log.begin("target")
    for record in added:
        log.add(record)
    log.close()


def test_lines(tmp_path: Path):
    """A header, then what was added in its order, each on a line; closing writes the rest."""
    path = tmp_path / "log.jsonl"
    logged(path, decision(0.5), POLICY)
    assert records(path) == [
        {"kind": "header", "schema_version": 1, "specmesh": __version__, "model": "target"},
        decision(0.5).as_json(),
        POLICY.as_json(),
    ]


def test_flushed_while_open(tmp_path: Path):
    """What is added is in the file soon, without closing; the loop need not do anything for it."""
    path = tmp_path / "log.jsonl"
    log = DecisionLog(path, flush_interval=0.01)
    log.begin("target")
    log.add(decision())
    until(lambda: path.read_text().count("\n") == 2)
    log.close()
    assert decision_log.FLUSH_INTERVAL <= 1


def test_appends(tmp_path: Path):
    """A second run goes on behind the first, with a header of its own; what a crash left of a line is cut off."""
    path = tmp_path / "log.jsonl"
    logged(path, decision())
    with path.open("a") as file:
        file.write('{"kind":"deci')
    logged(path, POLICY)
    assert [record["kind"] for record in records(path)] == ["header", "decision", "header", "policy"]


def test_cut_line_longer_than_a_chunk(tmp_path: Path):
    """The end of the last whole line is found however far back it is."""
    path = tmp_path / "log.jsonl"
    logged(path)
    whole = path.read_bytes()
    path.write_bytes(whole + b"x" * 200_000)
    logged(path)
    assert path.read_bytes() == whole * 2


def test_closed_before_it_began(tmp_path: Path):
    """A verifier that never came up leaves an empty file."""
    path = tmp_path / "log.jsonl"
    DecisionLog(path).close()
    assert path.read_bytes() == b""
    logged(path)
    assert len(records(path)) == 1


def test_refusals(tmp_path: Path):
    """What cannot be written, or is something else, is refused at once and left as it is."""
    other = tmp_path / "notes.txt"
    other.write_text("dear diary")
    os.mkfifo(tmp_path / "pipe")
    for path, why in (
        (tmp_path / "none" / "log", "No such file"),
        (tmp_path, "Is a directory"),
        (tmp_path / "pipe", "not a regular file"),
        (other, "something else"),
    ):
        with pytest.raises(ConfigError, match=why):
            DecisionLog(path)
    assert other.read_text() == "dear diary"


def test_one_writer(tmp_path: Path):
    """Two verifiers do not share a file."""
    first = DecisionLog(tmp_path / "log")
    with pytest.raises(ConfigError, match="another verifier"):
        DecisionLog(tmp_path / "log")
    first.close()
    DecisionLog(tmp_path / "log").close()


@pytest.mark.fault("E5.54")
def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A disk that fills up: one warning, no half line, and everything after is dropped."""
    path = tmp_path / "log"
    write = os.write
    full = threading.Event()

    def failing(file: int, data: memoryview) -> int:
        if not full.is_set():
            return write(file, data)
        if len(data) > 10:
            return write(file, data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(decision_log.os, "write", failing)
    with capture_logs() as said:
        log = DecisionLog(path, flush_interval=0.01)
        log.begin("target")
        until(lambda: path.read_bytes().endswith(b"\n"))
        full.set()
        log.add(decision())
        until(lambda: bool(said))
        for _ in range(3):
            log.add(decision())
        log.close()
    assert [(line["event"], line["log_level"]) for line in said] == [("decision_log_ended", "warning")]
    assert "No space left" in said[0]["error"]
    assert [record["kind"] for record in records(path)] == ["header"]


def test_stuck_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A disk that takes nothing: what waits is bounded, closing does not wait for ever."""
    go = threading.Event()
    began = threading.Event()

    def stuck(_file: int, data: memoryview) -> int:
        began.set()
        go.wait(30)
        return len(data)

    monkeypatch.setattr(decision_log.os, "write", stuck)
    monkeypatch.setattr(decision_log, "MAX_WAITING", 5)
    monkeypatch.setattr(decision_log, "CLOSE_PATIENCE", 0.01)
    with capture_logs() as said:
        log = DecisionLog(tmp_path / "log", flush_interval=0.001)
        log.begin("target")
        assert began.wait(30)
        for _ in range(7):
            log.add(decision())
        log.close()
        go.set()
        log._thread.join(30)
    assert [line["error"] for line in said] == ["5 records wait for the disk"]
