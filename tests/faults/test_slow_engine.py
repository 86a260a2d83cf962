"""E8.99: an engine whose step does not end, as one on a slow processor: only what needs the step waits for it."""

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from peer import Peer
from processes import PATIENCE, Daemon, Mesh, Stream, body, complete, edited, sim_text, until

from specmesh.errors import Busy, WentAway

SLOW = "\x07"
"""An id that a step takes long over: until the test says that it is over."""

STEP = 5.0
"""Least seconds of the step: longer than silence is borne."""

DRAIN = 1.0

PROMPT = "Take your time"
fault = pytest.mark.fault

SLOWLY = """
import pathlib, time
from specmesh.engines.sim import {engine} as Engine
{work}, begun, over = Engine.{work}, pathlib.Path("{folder}/begun"), pathlib.Path("{folder}/over")
def slowly(engine, parts):
    if any({slow} in part.ids for part in parts) and not over.exists():
        begun.touch()
        while not over.exists(): time.sleep(0.05)  # a step ends when the test says so, not by time
    return {work}(engine, parts)
Engine.{work} = slowly
"""


@pytest.fixture
def clients() -> Iterator[ThreadPoolExecutor]:
    """Threads of clients; a test that fails does not wait for them."""
    made = ThreadPoolExecutor()
    yield made
    made.shutdown(wait=False)


def slow(mesh: Mesh, role: str, *options: object) -> Daemon:
    """A daemon with that engine: a verifier with two sessions and one place in its queue, or a drafter, attached."""
    engine, work = {"verifier": ("SimVerifier", "decode"), "drafter": ("SimDrafter", "predict")}[role]
    program = edited(SLOWLY.format(engine=engine, work=work, folder=mesh.folder, slow=ord(SLOW)))
    if role == "verifier":
        return mesh.verifier("step_ms=4,max_sessions=2", "--max-queue", 1, *options, program=program)
    return mesh.drafter("draft_ms=0.5,alpha=1", *options, program=program)


def for_a_step(mesh: Mesh, daemon: Daemon, holds: Callable[[], bool]) -> None:
    """Hold the step so long by the clock of the daemon, which answers meanwhile, and then let it end."""
    over = daemon.stats()["uptime_s"] + STEP
    until(lambda: daemon.stats()["uptime_s"] > over, "the step is long")
    assert daemon.client.get("/health")["status"] == "ok"
    assert holds()
    (mesh.folder / "over").touch()


@fault("E8.99")
def test_what_needs_no_step_does_not_wait_for_it(mesh: Mesh, clients: ThreadPoolExecutor):
    daemon, drafter = slow(mesh, "verifier"), mesh.drafter("draft_ms=0.5,alpha=1")
    with Stream(daemon, body(PROMPT, 8000)) as leaves:
        leaves.read(3)
        slowed = clients.submit(complete, drafter, body(PROMPT + SLOW, 40, draft_n=4))
        until((mesh.folder / "begun").exists, "the slow step has begun")
        waiting = clients.submit(complete, daemon, body(PROMPT, 40))
        until(lambda: daemon.stats()["sessions"]["queued"] == 1, "the next one waits")
        assert daemon.client.get("/health")["status"] == "ok"
        assert daemon.client.get("/v1/models")["data"]
        with pytest.raises(Busy):
            complete(daemon, body(PROMPT, 5))
        with Peer(SimpleNamespace(port=mesh.port, server=None)) as peer:
            peer.join()
            peer.answered()
    for_a_step(mesh, daemon, lambda: daemon.has(drafter) and waiting.running())
    assert waiting.result(PATIENCE).text == sim_text(PROMPT, 40)
    assert slowed.result(PATIENCE).text == sim_text(PROMPT + SLOW, 40)
    assert daemon.has(drafter)
    until(lambda: daemon.live() == 0, "nothing is left")
    ended: dict[str, int] = daemon.stats()["sessions"]["ended"]
    assert (ended["cancelled"], ended["length"]) == (1, 2)
    assert drafter.stats()["reconnects"] == 0
    assert "Traceback" not in daemon.text() + drafter.text()


@fault("E8.99")
def test_sigterm_in_a_slow_step(mesh: Mesh, clients: ThreadPoolExecutor, role: str):
    if role == "drafter":
        mesh.verifier("step_ms=4,max_sessions=4")
    asked = slow(mesh, role, "--drain", DRAIN)
    slowed = clients.submit(complete, asked, body(PROMPT + SLOW, 400, draft_n=4))
    until((mesh.folder / "begun").exists, "the slow step has begun")
    began = time.monotonic()
    asked.signal(signal.SIGTERM)
    assert asked.wait() == 0, "it ends though the step does not"
    assert time.monotonic() > began + DRAIN
    with pytest.raises(WentAway):
        slowed.result(PATIENCE)
