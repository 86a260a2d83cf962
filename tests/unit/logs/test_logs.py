"""What the daemons log, and what libraries do; and a log that stays small."""

import json
import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from specmesh import logs
from specmesh.errors import ConfigError

MANY_WRITERS = """
import os, sys, threading
from pathlib import Path
import structlog
from specmesh import logs

logs.MAX_LOG_BYTES = int(sys.argv[2])
print("before", file=sys.stderr)
logs.configure("info", "json", logs.LogFile(Path(sys.argv[1])))

def ours(name):
    for number in range(200):
        structlog.get_logger().info(f"{name} {number}")

def theirs():
    for number in range(200):
        os.write(2, b"library %d\\n" % number)

threads = [threading.Thread(target=ours, args=(name,)) for name in "ab"] + [threading.Thread(target=theirs)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
logs.flush()
print("to stdout", flush=True)
"""


def written(path: Path, limit: int) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, "-c", MANY_WRITERS, str(path), str(limit)]
    return subprocess.run(words, check=True, capture_output=True, text=True)


@pytest.mark.fault("E8.97")
def test_no_line_is_lost(tmp_path: Path):
    """Lines of ours and of libraries, from several threads, with the file begun anew once among them."""
    path = tmp_path / "a.log"
    path.write_text("of the last start\n")
    done = written(path, 30_000)
    assert (done.stdout, done.stderr) == ("", "before\n")
    old, new = (tmp_path / "a.log.1").read_text(), path.read_text()
    lines = (old + new).splitlines()
    assert old.startswith("of the last start\n")
    assert old.endswith("\n")
    assert len(old) >= 30_000 > len(new)
    for name in ("a", "b"):
        assert sum(f'"event": "{name} ' in line for line in lines) == 200
    assert sum(line.startswith("library ") for line in lines) == 200
    assert lines[-1] == "to stdout"
    assert len(lines) == 602


def test_it_cannot_be_written(tmp_path: Path):
    before = os.fstat(2)
    with pytest.raises(ConfigError, match=r"--log-file .* cannot be written"):
        logs.LogFile(tmp_path / "none" / "a.log")
    assert os.path.samestat(before, os.fstat(2))


def lines(capfd: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    logs.flush()
    return [json.loads(line) for line in capfd.readouterr().err.splitlines()]


def test_libraries_log_through_it(capfd: pytest.CaptureFixture[str]):
    logs.configure("info", "json")
    library = logging.getLogger("some.library")
    library.warning("low on %s", "memory")
    library.info("not asked for")
    library.error("it failed", exc_info=ValueError("broken\nin two"))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    told = lines(capfd)
    assert [line["event"] for line in told] == ["library"] * 3
    assert (told[0]["line"], told[0]["level"]) == ("low on memory", "warning")
    assert told[1]["error"] == "ValueError: broken\nin two"
    assert "DeprecationWarning: old" in str(told[2]["line"])
