"""E8.99: an engine whose step does not end, as one on a slow processor: only what needs the step waits for it."""

import json
import signal
import socket
import threading
import time
from contextlib import closing
from types import SimpleNamespace

import pytest
from peer import Peer
from processes import PATIENCE, Daemon, Mesh, Stream, body, complete, edited, sim_text, until

from specmesh.client import Json
from specmesh.errors import Busy, SpecmeshError, WentAway

SLOW = "\x07"
"""An id that a step takes long over: until the test says that it is over."""

STEP = 10.0
"""Least seconds of the step: longer than silence is borne."""

DRAIN = 1.0

PROMPT = "Take your time"
fault = pytest.mark.fault

SLOWLY = """
import pathlib, time
from specmesh.engines.sim import SimVerifier
decode, begun, over = SimVerifier.decode, pathlib.Path("{0}/begun"), pathlib.Path("{0}/over")
def slowly(engine, spans):
    if any({1} in span.ids for span in spans) and not over.exists():
        begun.touch()
        while not over.exists(): time.sleep(0.05)
    return decode(engine, spans)
SimVerifier.decode = slowly
"""


class Asked:
    """A request on a thread of its own, until its whole text has come."""

    def __init__(self, daemon: Daemon, request: Json) -> None:
        self._daemon, self._request = daemon, request
        self.text, self.error = "", None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.text = complete(self._daemon, self._request).text
        except SpecmeshError as error:
            self.error = error


def verifier(mesh: Mesh, *options: object) -> Daemon:
    """A verifier with that engine, two sessions and one place in its queue."""
    slowly = SLOWLY.format(mesh.folder, ord(SLOW))
    return mesh.verifier("step_ms=4,n_seq=2", "--max-queue", 1, *options, program=edited(slowly))


def kept(daemon: Daemon, drafter: Daemon) -> bool:
    """Whether the verifier has this drafter, and takes it to be well."""
    peers: list[Json] = daemon.stats()["peers"]
    return any(str(peer["drafter"]).endswith(f":{drafter.pid}") and not peer["stuck"] for peer in peers)


@fault("E8.99")
def test_what_needs_no_step_does_not_wait_for_it(mesh: Mesh):
    daemon, drafter = verifier(mesh), mesh.drafter("draft_ms=0.5,alpha=1")
    with Stream(daemon, body(PROMPT, 8000)) as leaves:
        leaves.read(3)
        slowed = Asked(drafter, body(PROMPT + SLOW, 40, draft_n=4))
        until((mesh.folder / "begun").exists, "the slow step has begun")
        began = time.monotonic()
        waiting = Asked(daemon, body(PROMPT, 40))
        until(lambda: daemon.stats()["sessions"]["queued"] == 1, "the next one waits")
        assert daemon.client.get("/health")["status"] == "ok"
        assert daemon.client.get("/v1/models")["data"]
        with pytest.raises(Busy):
            complete(daemon, body(PROMPT, 5))
        with Peer(SimpleNamespace(port=mesh.port, server=None)) as peer:
            peer.join()
            peer.answered()
    while time.monotonic() < began + STEP:
        assert kept(daemon, drafter)
        assert waiting.thread.is_alive()
        time.sleep(0.1)
    (mesh.folder / "over").touch()
    waiting.thread.join(PATIENCE)
    slowed.thread.join(PATIENCE)
    assert kept(daemon, drafter)
    assert (waiting.text, slowed.text) == (sim_text(PROMPT, 40), sim_text(PROMPT + SLOW, 40))
    until(lambda: daemon.live() == 0, "nothing is left")
    ended: dict[str, int] = daemon.stats()["sessions"]["ended"]
    assert (ended["cancelled"], ended["length"]) == (1, 2)
    assert drafter.stats()["reconnects"] == 0
    assert "Traceback" not in daemon.text() + drafter.text()


@fault("E8.99")
def test_sigterm_in_a_slow_step(mesh: Mesh):
    daemon = verifier(mesh, "--drain", DRAIN)
    with Stream(daemon, body(PROMPT + SLOW, 40)) as stream:
        until((mesh.folder / "begun").exists, "the slow step has begun")
        began = time.monotonic()
        daemon.signal(signal.SIGTERM)
        with pytest.raises(WentAway):
            stream.read()
        assert daemon.wait() == 0, "it ends though the step does not"
    assert time.monotonic() > began + DRAIN


DRAFT_SLOWLY = """
import pathlib, time
from specmesh.engines.sim import SimDrafter
predict, begun, over = SimDrafter.predict, pathlib.Path("{0}/begun"), pathlib.Path("{0}/over")
def slowly(engine, asks):
    if any({1} in ask.ids for ask in asks) and not over.exists():
        begun.touch()
        while not over.exists(): time.sleep(0.05)
    return predict(engine, asks)
SimDrafter.predict = slowly
"""


def asking(daemon: Daemon, request: Json) -> socket.socket:
    """The connection of a client that has asked."""
    made, raw = socket.socket(socket.AF_UNIX), json.dumps(request | {"stream": True}).encode()
    made.connect(str(daemon.socket))
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    made.sendall(f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw)
    return made


def drafter(mesh: Mesh, *options: object) -> Daemon:
    """A drafter with that engine, attached."""
    slowly = DRAFT_SLOWLY.format(mesh.folder, ord(SLOW))
    return mesh.drafter("draft_ms=0.5,alpha=1", *options, program=edited(slowly))


@fault("E8.99")
def test_a_drafter_in_a_slow_step(mesh: Mesh):
    daemon = mesh.verifier("step_ms=4,n_seq=4")
    slow = drafter(mesh)
    slowed = Asked(slow, body(PROMPT + SLOW, 400, draft_n=4))
    until((mesh.folder / "begun").exists, "the slow step has begun")
    began = time.monotonic()
    with Stream(daemon, body(PROMPT, 40, draft_n=4)) as other:
        other.read()
    assert other.text == sim_text(PROMPT, 40), "the verifier's own clients do not wait for it"
    with closing(asking(slow, body(PROMPT, 8000, draft_n=4))):
        until(lambda: slow.stats()["sessions"]["live"] == 2, "the next one has a session")
    until(lambda: slow.stats()["sessions"]["live"] == 1, "it leaves")
    until(lambda: daemon.live() == 1, "the verifier has heard so")
    while time.monotonic() < began + 2 * STEP:
        assert slow.client.get("/health")["status"] == "ok"
        assert kept(daemon, slow)
        assert slowed.thread.is_alive()
        time.sleep(0.1)
    (mesh.folder / "over").touch()
    slowed.thread.join(PATIENCE)
    assert slowed.text == sim_text(PROMPT + SLOW, 400)
    assert slow.stats()["reconnects"] == 0
    assert "Traceback" not in daemon.text() + slow.text()


@fault("E8.99")
def test_sigterm_in_a_drafters_slow_step(mesh: Mesh):
    mesh.verifier("step_ms=4,n_seq=4")
    slow = drafter(mesh, "--drain", DRAIN)
    slowed = Asked(slow, body(PROMPT + SLOW, 400, draft_n=4))
    until((mesh.folder / "begun").exists, "the slow step has begun")
    began = time.monotonic()
    slow.signal(signal.SIGTERM)
    assert slow.wait() == 0, "it ends though the step does not"
    assert time.monotonic() > began + DRAIN
    slowed.thread.join(PATIENCE)
    assert isinstance(slowed.error, WentAway)
