"""What the daemons log, and what libraries do."""

import json
import logging
import os
import warnings

import pytest

from specmesh import logs


def lines(capfd: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    logs.flush()
    return [json.loads(line) for line in capfd.readouterr().err.splitlines()]


def test_libraries_log_through_it(capfd: pytest.CaptureFixture[str]):
    logs.configure("info")
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


@pytest.mark.timeout(10)
def test_a_line_waits_for_room():
    """Whoever shares a pipe may have made it non-blocking: a line is never cut off, with the next right behind."""
    end, into = os.pipe()
    os.set_blocking(into, False)
    with os.fdopen(end) as reader:
        logs.LogWriter(into).write("long" * 100_000)
        assert reader.read(400_001) == "long" * 100_000 + "\n"
    os.close(into)
