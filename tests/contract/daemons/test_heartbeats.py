"""Signs of life of loops that work, and none of those that hang."""

import queue
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from harness.loops import PATIENCE, PROMPT, Bench, Flaky, Running, Scripted, request, until, welcomed

from specmesh.core.events import Span
from specmesh.core.link import Link
from specmesh.core.prefix import Prefix
from specmesh.engines.base import Ask
from specmesh.engines.sim import SimDrafter, SimSettings
from specmesh.wire import messages as m


class Held(SimDrafter):
    """A draft model that is let on by the test, a call at a time."""

    def __init__(self, settings: SimSettings) -> None:
        super().__init__(settings)
        self.begun: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.go_on = threading.Semaphore(0)

    def predict(self, asks: Sequence[Ask]) -> list[int | None]:
        self.begun.put(sum(len(ask.ids) for ask in asks))
        assert self.go_on.acquire(timeout=PATIENCE)
        return super().predict(asks)


@pytest.fixture
def held(bench: Bench) -> Iterator[tuple[Scripted, Running, Held]]:
    """A drafter at the first chunk of a prompt of 4000 ids, which it takes in by at most 8, and its verifier."""
    engine = Held(SimSettings(n_batch=8))
    router, drafter = welcomed(bench, engine)
    router.say(m.Opened(5, 0, 4000, {"temperature": 0}), m.Sync(5, 0, 0, (65,) * 4000, 4))
    assert engine.begun.get(timeout=PATIENCE) == 8
    yield router, drafter, engine
    engine.go_on.release(10_000)


@pytest.mark.fault("E8.91")
def test_a_long_prefill_has_heartbeats(held: tuple[Scripted, Running, Held]):
    """The loop turns on while the model is in a step, clients come and go; in far too long a step it is silent."""
    router, running, engine = held
    for number in range(5):
        stood = running.progress
        router.say(m.Ping(100 + number))  # or the verifier would take it for dead
        while router.expect(m.Pong).number != 100 + number:
            pass
        until(lambda stood=stood: running.progress > stood, "the loop turns on")
    client = running.ask(request())
    router.say(m.Opened(6, router.expect(m.Open).ref, len(PROMPT), {"temperature": 0}), m.Ping(1))
    router.expect(m.Pong)
    running.cancel(client)
    assert router.expect(m.Close).session == 6
    running.stuck_after(0.0)
    router.say(m.Ping(1))
    while (message := router.on_event(0.5)) is not None:  # an answer may have been on its way
        assert not isinstance(message, m.Pong)
    stood = running.progress
    engine.go_on.release(10_000)
    until(lambda: running.progress > stood, "it gets on")


class HeldTarget(Flaky):
    """A target whose steps last until the test says that they are over."""

    def __init__(self, settings: SimSettings) -> None:
        super().__init__(settings)
        self.begun, self.over = threading.Event(), threading.Event()

    def decode(self, spans: Sequence[Span]) -> list[Any]:
        self.begun.set()
        assert self.over.wait(PATIENCE)
        return super().decode(spans)


@pytest.mark.fault("E8.91")
def test_a_verifier_that_hangs_is_silent(bench: Bench):
    """In a step it answers and welcomes; once that has taken far too long it does neither, until it is over."""
    engine = HeldTarget(SimSettings())
    verifier, peer = bench.verifier(engine, link=partial(Link, silence=1e9)), bench.dealer()
    client = verifier.ask(request(20))
    assert engine.begun.wait(PATIENCE)
    peer.say(m.Ping(1))
    peer.answers = False
    assert peer.expect(m.Pong).number == 1
    verifier.stuck_after(0.0)
    stood = verifier.progress
    peer.say(m.Ping(2), m.Hello("again", "scripted", "none", "", 0, 4096))
    while (message := peer.on_event(0.5)) is not None:  # a PING may have been on its way
        assert not isinstance(message, m.Pong | m.Welcome)
    assert verifier.progress <= stood + 1
    engine.over.set()
    client.whole(20)
    verifier.stuck_after(PATIENCE)
    peer.say(m.Ping(3))
    assert peer.expect(m.Pong).number == 3
    until(lambda: verifier.progress > stood + 1, "it gets on")


def test_a_flood_while_a_step_runs(held: tuple[Scripted, Running, Held]):
    """What a verifier says meanwhile is kept up to a bound; the rest counts as lost on the wire, and is asked for."""
    router, running, engine = held
    known = Prefix((65,) * 4000)
    router.say(*[m.Sync(5, 0, 0, (65,) * 4000, 4)] * 540)  # 8.6 MB

    def told() -> None:
        router.say(m.Truth(5, len(known), known.crc, (66,) * 64, 4))
        known.extend((66,) * 64)

    for _ in range(10):
        told()
    until(lambda: running.stats()["wire"]["rejected"].get("backlog"), "frames are dropped")
    engine.go_on.release(10_000)
    router.expect(m.Draft)
    while not isinstance(asked := router.on_event(0.1), m.Nack):  # the core may be behind still
        told()
    assert 4000 <= asked.base < len(known) - 64
