"""CPU threads where both daemons compute on one machine."""

import pytest
from processes import Daemon, Json, Mesh, generate, until

from specmesh.engines.base import physical_cores

pytestmark = pytest.mark.models


def started(mesh: Mesh, verifier: list[object], drafter: list[object]) -> tuple[Daemon, Daemon]:
    """The bundled pair with these options, and no others that say how many threads there are to be."""
    first = mesh.start("verifier", "--model", "bundled", "--bind", mesh.address, *verifier).ready()
    assert threads(first) == (verifier[-1] if verifier else physical_cores())
    second = mesh.start("drafter", "--model", "bundled", "--connect", mesh.address, *drafter).ready()
    return first, mesh.attached(second)


def threads(daemon: Daemon) -> int:
    model: Json = daemon.stats()["model"]
    kind, count, unit = str(model["backend"]).replace(",", "").split()
    assert (kind, unit) == ("CPU", "threads")
    return int(count)


def test_default_threads_of_both_are_at_most_the_cores(mesh: Mesh):
    """A verifier takes all cores while nothing is drafted on its host; while it is, both together take no more."""
    verifier, drafter = started(mesh, [], [])
    assert generate(verifier, "def f(", "--max-tokens", 8, "--draft-n", 4).code == 0
    until(lambda: threads(verifier) + threads(drafter) <= max(physical_cores(), 2), "the cores are shared")
    for daemon in (verifier, drafter):
        if threads(daemon) < physical_cores():
            assert [event["threads"] for event in daemon.events("cpu_threads")] == [threads(daemon)]
            assert "others of this host" in str(daemon.events("cpu_threads")[0]["why"])
        assert not daemon.events("more_threads_than_cores")
    assert generate(verifier, "def f(", "--max-tokens", 8, "--draft-n", 0).code == 0
    until(lambda: threads(verifier) == physical_cores(), "a text without drafts has all cores")
    assert generate(verifier, "def f(", "--max-tokens", 8, "--draft-n", 4).code == 0
    until(lambda: threads(verifier) + threads(drafter) <= max(physical_cores(), 2), "the cores are shared again")
    drafter.stop()
    until(lambda: not verifier.stats()["peers"], "the drafter is gone")
    assert generate(verifier, "def f(", "--max-tokens", 8).code == 0
    until(lambda: threads(verifier) == physical_cores(), "it has all cores again")


def test_threads_that_were_asked_for_are_obeyed_with_a_warning(mesh: Mesh):
    """--threads holds, whoever else computes there; each says once that there are more of them than cores."""
    wanted = physical_cores() + 1
    verifier, drafter = started(mesh, ["--threads", wanted], ["--threads", wanted])
    assert generate(verifier, "def f(", "--max-tokens", 8).code == 0
    assert (threads(verifier), threads(drafter)) == (wanted, wanted)
    for daemon in (verifier, drafter):
        [warning] = until(lambda one=daemon: one.events("more_threads_than_cores"), "a warning")
        assert (warning["level"], warning["threads"], warning["others"]) == ("warning", wanted, wanted)
