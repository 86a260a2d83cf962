"""Signs of life of loops that work, and none of those that hang."""

import queue
import threading
import time
from collections.abc import Iterator, Sequence

import pytest
from harness.loops import PATIENCE, Bench, Hearing, Running, Scripted, request, welcomed

from specmesh.api.requests import ClientEvent, Finished
from specmesh.core.sampling.sampler import Sampler
from specmesh.daemons.runtime.notify import STUCK, Notifier, Watchdog
from specmesh.engines.sim import SimDrafter, SimSettings
from specmesh.wire import messages as m
from specmesh.wire.codec import decode


class Blocking(Hearing):
    def __init__(self) -> None:
        super().__init__()
        self.holds, self.let_go = threading.Event(), threading.Event()

    def on_event(self, event: ClientEvent) -> None:
        self.holds.set()
        self.let_go.wait(PATIENCE)
        super().on_event(event)


class Beats(Notifier):
    def __init__(self) -> None:
        super().__init__({})
        self.heard: queue.SimpleQueue[float] = queue.SimpleQueue()

    def heartbeat(self) -> None:
        self.heard.put(time.monotonic())


@pytest.mark.fault(
    "E8.91", "the loop hangs; a long prompt is read", "no heartbeat, and the process is ended; heartbeats go on"
)
def test_a_hung_loop_has_no_heartbeat(bench: Bench):
    """The watchdog's own thread runs on and says nothing for it: what hangs without a manager is ended."""
    running, beats = bench.verifier(), Beats()
    ended: queue.SimpleQueue[int] = queue.SimpleQueue()
    watchdog = Watchdog(lambda: running.progress, beats, interval=1.5, checks=1, end=ended.put)
    beats.heard.get(timeout=PATIENCE)
    beats.heard.get(timeout=PATIENCE)
    blocking = Blocking()
    running.ask(request(), blocking)
    assert blocking.holds.wait(PATIENCE)
    held = time.monotonic()
    assert ended.get(timeout=PATIENCE) == STUCK
    after = [beat for beat in (beats.heard.get() for _ in range(beats.heard.qsize())) if beat > held]
    assert len(after) <= 1  # what the loop did before it hung may be seen once more
    blocking.let_go.set()
    assert isinstance(blocking.end(), Finished)
    watchdog.close()


class Held(SimDrafter):
    """A draft model that is let on by the test, a call at a time."""

    def __init__(self, settings: SimSettings) -> None:
        super().__init__(settings)
        self.begun: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.go_on = threading.Semaphore(0)

    def predict(self, seq: int, ids: Sequence[int], sampler: Sampler | None) -> int | None:
        self.begun.put(len(ids))
        assert self.go_on.acquire(timeout=PATIENCE)
        return super().predict(seq, ids, sampler)


@pytest.fixture
def held(bench: Bench) -> Iterator[tuple[Scripted, Running, Held]]:
    """A drafter at the first chunk of a prompt of 4000 ids, which it takes in by at most 8, and its verifier."""
    engine = Held(SimSettings(n_batch=8))
    router, drafter = welcomed(bench, engine)
    router.say(m.Opened(5, 0, 4000, 0.0, 0, 1.0, 0), m.Sync(5, 0, 0, (65,) * 4000, 4))
    assert engine.begun.get(timeout=PATIENCE) == 8
    yield router, drafter, engine
    engine.go_on.release(10_000)


@pytest.mark.fault("E8.91")
def test_a_long_prefill_has_heartbeats(held: tuple[Scripted, Running, Held]):
    """Each chunk of a prompt is a sign of life for the manager; within one there is none."""
    _, running, engine = held
    beats = Beats()
    watchdog = Watchdog(lambda: running.progress, beats, interval=0.001, checks=10**9)
    beats.heard.get(timeout=PATIENCE)
    for _ in range(20):
        assert beats.heard.empty()
        engine.go_on.release()
        assert engine.begun.get(timeout=PATIENCE) == 8
        beats.heard.get(timeout=PATIENCE)
    watchdog.close()


def test_a_long_prefill_answers_pings(held: tuple[Scripted, Running, Held]):
    """Or the verifier would take the drafter for dead, and it would begin again and again."""
    router, _, engine = held
    router.say(m.Ping(77, 1))
    answered, chunks = None, 1
    while answered is None:
        engine.go_on.release()
        assert engine.begun.get(timeout=PATIENCE) == 8, "the prompt was over before the answer came"
        chunks += 1
        while router.socket.poll(20):
            message = decode(router.socket.recv_multipart()[1])
            if isinstance(message, m.Pong):
                answered = message
    assert answered.number == 77
    assert chunks < 4000 / 8
