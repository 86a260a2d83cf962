"""What is said of running daemons."""

from dataclasses import replace
from pathlib import Path

import pytest

from specmesh import __version__
from specmesh.cli.status import Found
from specmesh.doctor import daemons
from specmesh.doctor.daemons import DaemonFacts, facts_of, judge

GOOD = DaemonFacts("verifier", Path("/s/v.sock"), "running", 7, "big.gguf", "0.1.0", "0.1.0", 1)


@pytest.mark.parametrize(
    ("changes", "status", "found"),
    [
        ({}, "ok", "pid 7, big.gguf"),
        ({"peers": 0}, "warn", "has no drafter"),
        ({"peers": 0, "role": "drafter"}, "warn", "has no verifier"),
        ({"version": "0.0.9"}, "warn", "of version 0.0.9; installed is 0.1.0"),
        ({"version": None}, "warn", "of version unknown"),
        ({"state": "loading 40%", "model": None, "peers": None}, "ok", "pid 7, loading 40%"),
        ({"pid": None}, "ok", "at /s/v.sock"),
        ({"backend": "CPU, 2 threads"}, "ok", "big.gguf on CPU, 2 threads"),
        ({"vocabulary": "partial"}, "warn", "in part"),
        ({"vocabulary": "permuted"}, "ok", "big.gguf"),
        ({"state": "starting", "version": None, "pid": None}, "ok", "at /s/v.sock, starting"),
        ({"state": "does not answer"}, "fail", "does not answer"),
    ],
)
def test_daemon(changes: dict[str, object], status: str, found: str):
    """Each state of a daemon."""
    check = judge(replace(GOOD, **changes))  # type: ignore[arg-type]
    assert check.status == status
    assert found in check.found


def test_none():
    """That none runs is worth a word."""
    [check] = daemons.checks([])
    assert (check.status, check.found) == ("warn", "none")


def test_facts():
    """Out of snapshots: peers are counted at a verifier, and are one or none at a drafter."""
    path = Path("/s/v.sock")
    stats: dict[str, object] = {"role": "verifier", "version": __version__, "pid": 7, "model": {"name": "m"}}
    assert facts_of(Found(path, stats | {"peers": [{}, {}]})).peers == 2
    assert facts_of(Found(path, stats | {"role": "drafter", "verifier": None})).peers == 0
    assert facts_of(Found(path, stats | {"role": "drafter", "verifier": {"name": "v"}})).peers == 1
    known = facts_of(Found(path, stats | {"model": {"name": "m", "backend": "b"}, "vocabulary": {"verdict": "same"}}))
    assert (known.backend, known.vocabulary) == ("b", "same")
    assert facts_of(Found(path, {"role": "verifier", "loading": 0.4})).state == "loading 40%"
    assert facts_of(Found(path, None)).state == "does not answer"
