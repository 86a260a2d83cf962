"""What the daemons log, and what libraries do."""

import json
import logging
import warnings

import pytest
import structlog

from specmesh import logs


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    logs.flush()
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_the_level_can_change(capsys: pytest.CaptureFixture[str]):
    logs.configure("warning", "json")
    log = structlog.get_logger("a")
    log.info("first")
    logs.set_level("info")
    log.info("second")
    assert [line["event"] for line in lines(capsys)] == ["second"]


def test_libraries_log_through_it(capsys: pytest.CaptureFixture[str]):
    logs.configure("info", "json")
    library = logging.getLogger("some.library")
    library.warning("low on %s", "memory")
    library.info("not asked for")
    library.error("it failed", exc_info=ValueError("broken\nin two"))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    told = lines(capsys)
    assert [line["event"] for line in told] == ["library"] * 3
    assert (told[0]["line"], told[0]["level"]) == ("low on memory", "warning")
    assert told[1]["error"] == "ValueError: broken\nin two"
    assert "DeprecationWarning: old" in str(told[2]["line"])
