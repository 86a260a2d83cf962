"""E8.99: an engine whose step takes 20 s, as one on a slow processor: only what needs the step waits for it."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from peer import Peer
from processes import Daemon, Mesh, Stream, body, complete, edited, sim_text, until

from specmesh.client import Json
from specmesh.errors import Busy, WentAway

SLOW = "\x07"
"""An id that a step takes 20 s over, where it is among its rows."""

STEP = 20.0
ANSWER = 10.0
"""Most seconds for what needs no step: less than if it waited for one, on a busy machine too."""

DRAIN, BOUND = 1.0, 10.0
"""Seconds that a stopped daemon gives its texts, and most seconds that it takes besides."""

PROMPT = "Take your time"
fault = pytest.mark.fault


SLOWLY = f"""
import time
from specmesh.engines.sim import SimVerifier
decode = SimVerifier.decode
def slowly(engine, spans):
    if any({ord(SLOW)} in span.ids for span in spans): time.sleep({STEP})
    return decode(engine, spans)
SimVerifier.decode = slowly
"""


class Asked:
    """A request on a thread of its own, until its whole text has come."""

    def __init__(self, daemon: Daemon, request: Json) -> None:
        self._daemon, self._request = daemon, request
        self.text = ""
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.text = complete(self._daemon, self._request).text


@contextmanager
def promptly() -> Iterator[None]:
    """Fail where what is done inside takes as long as if it had waited for a step."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < ANSWER


def verifier(mesh: Mesh, *options: object) -> Daemon:
    """A verifier with that engine, two sessions and one place in its queue."""
    return mesh.verifier("step_ms=4,n_seq=2", "--max-queue", 1, *options, program=edited(SLOWLY))


def kept(daemon: Daemon, drafter: Daemon) -> bool:
    """Whether the verifier has this drafter, and takes it to be well."""
    peers: list[Json] = daemon.stats()["peers"]
    return any(str(peer["drafter"]).endswith(f":{drafter.pid}") and not peer["stuck"] for peer in peers)


def in_its_step(daemon: Daemon, sessions: int) -> None:
    """Wait until the slow step has begun: nothing tells of it but that all sessions are live."""
    until(lambda: daemon.live() == sessions, "the sessions are live")
    time.sleep(1.0)


@fault(
    "E8.99",
    "a step of 20 s, as on a slow processor; meanwhile a client leaves, one finds no room, the daemon is to end",
    "API and wire answer at once; nobody is taken for dead; the place is free after the step; the end does not wait",
)
def test_what_needs_no_step_does_not_wait_for_it(mesh: Mesh):
    daemon, drafter = verifier(mesh), mesh.drafter("draft_ms=0.5,alpha=1")
    began = time.monotonic()
    with Stream(daemon, body(PROMPT, 8000)) as leaves:
        leaves.read(3)
        slowed = Asked(drafter, body(PROMPT + SLOW, 40, draft_n=4))
        in_its_step(daemon, 2)
        with promptly():
            waiting = Asked(daemon, body(PROMPT, 40))
            until(lambda: daemon.stats()["sessions"]["queued"] == 1, "the next one waits")
            assert daemon.client.get("/health")["status"] == "ok"
            assert daemon.client.get("/v1/models")["data"]
            with pytest.raises(Busy):
                complete(daemon, body(PROMPT, 5))
            with Peer(SimpleNamespace(port=mesh.port, server=None)) as peer:
                peer.join()
                peer.answered()
    while waiting.thread.is_alive() or slowed.thread.is_alive():
        assert kept(daemon, drafter)
        assert time.monotonic() < began + 4 * STEP, "nothing goes on after the step"
        time.sleep(0.1)
    assert time.monotonic() > began + STEP, "no step was slow: nothing is shown"
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
        in_its_step(daemon, 1)
        began = time.monotonic()
        daemon.signal(signal.SIGTERM)
        with pytest.raises(WentAway):
            stream.read()
        assert daemon.wait(STEP) == 0
    assert DRAIN < time.monotonic() - began < DRAIN + BOUND
