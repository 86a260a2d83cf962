"""`specmesh demo`: its daemons are real, and they end with it."""

import os
import signal
from typing import Any

import pytest
from processes import Json, Mesh, Running, cache, command, until

from specmesh.client import Client


def folder_of(mesh: Mesh) -> dict[str, str]:
    return cache(mesh.folder) | {"TMPDIR": str(mesh.folder)}


def test_drafts_and_the_same_text(mesh: Mesh):
    def shown() -> Json | None:
        done = command("demo", "--json", "--hardware", "h100-70b", "--max-tokens", 96, env=folder_of(mesh))
        assert done.code == 0, done.err
        return done.json if done.json["accepted"] else None  # on a busy machine drafts may all be late

    found = until(shown, "drafts stand")
    names = "schema_version hardware stretched step_ms text same_text tokens tokens_per_second_alone tokens_per_second"
    names += " speedup bytes_per_token rounds drafted accepted acceptance_rate mean_acceptance_length"
    assert set(found) == set(names.split())
    assert (found["hardware"], found["stretched"], found["same_text"], found["tokens"]) == ("h100-70b", True, True, 96)
    assert 0 < found["accepted"] <= found["drafted"]  # type: ignore[operator]
    assert found["step_ms"] >= 18.9  # type: ignore[operator]
    assert found["text"]


def test_without_a_terminal(mesh: Mesh):
    done = command("demo", "class Stack:", "--hardware", "this", "--max-tokens", 16, env=folder_of(mesh))
    assert (done.code, done.out.partition(":")[0]) == (0, "Nothing is stretched"), done.err
    rows = ("tokens_per_second", "speedup", "acceptance_rate", "bytes_per_token", "same_text")
    assert [row for row in rows if row not in done.out] == []
    assert "\x1b" not in done.out


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_no_daemon_is_left_behind(mesh: Mesh, ending: signal.Signals):
    """Interrupted while it generates. Its daemons say that they are stretched."""
    running = Running("demo", "--hardware", "spark-7b", "--max-tokens", 900, "--json", env=folder_of(mesh))
    live: list[Any] = []

    def generating() -> bool:
        assert running.process.poll() is None
        live[:] = [Client(path).get("/stats") for path in sorted(mesh.folder.glob("specmesh-*/*.sock"))]
        return len(live) == 3 and all("loading" not in one and one["sessions"]["live"] for one in live)

    until(generating, "three daemons with a session each")
    running.process.send_signal(ending)
    done = running.end()
    assert (done.code, done.out) == (130, ""), done.err
    assert [one["model"]["name"] for one in live] == [
        "target, stretched to spark-7b",
        "target, stretched to spark-7b",
        "drafter, stretched to spark-7b",
    ]
    for one in live:
        with pytest.raises(ProcessLookupError):
            os.kill(one["pid"], 0)
    assert list(mesh.folder.glob("specmesh-*")) == []


def test_only_the_demo_is_stretched(mesh: Mesh):
    """No help shows the option, and no other engine takes it."""
    assert "--stretch" not in command("verifier", "--help").out
    mesh.cannot_start("verifier", "--stretch", "h100-8b").refused(78, "--stretch")
