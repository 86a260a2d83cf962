"""What is said of running daemons."""

from pathlib import Path

import pytest

from specmesh import __version__
from specmesh.cli.status import Found
from specmesh.doctor.mesh import judge_daemon

PATH = Path("/s/v.sock")
GOOD: dict[str, object] = {
    "role": "verifier",
    "version": __version__,
    "pid": 7,
    "model": {"name": "big.gguf"},
    "peers": [{}],
    "verifier": {"name": "v"},
}


@pytest.mark.parametrize(
    ("changes", "status", "found"),
    [
        ({}, "ok", "pid 7, big.gguf"),
        ({"peers": []}, "warn", "has no drafter"),
        ({"verifier": None, "role": "drafter"}, "warn", "has no verifier"),
        ({"role": "drafter"}, "ok", "pid 7, big.gguf"),
        ({"version": "0.0.9"}, "warn", f"of version 0.0.9; installed is {__version__}"),
        ({"version": None}, "warn", "of version unknown"),
        ({"loading": 0.4, "model": None, "peers": None}, "ok", "pid 7, loading 40%"),
        ({"pid": None}, "ok", "at /s/v.sock"),
        ({"model": {"name": "big.gguf", "backend": "CPU, 2 threads"}}, "ok", "big.gguf on CPU, 2 threads"),
        ({"vocabulary": {"verdict": "partial"}}, "warn", "in part"),
        ({"vocabulary": {"verdict": "permuted"}}, "ok", "big.gguf"),
    ],
)
def test_daemon(changes: dict[str, object], status: str, found: str):
    """Each state of a daemon that answers."""
    check = judge_daemon(Found(PATH, GOOD | changes))
    assert check.status == status
    assert found in check.found
