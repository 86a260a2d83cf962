"""The engine's own thread: jobs in, results and errors out."""

import queue
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from specmesh.core.scheduling.kv_slots import Copy, Cut
from specmesh.daemons.runtime.engine_thread import Decoded, DecodeFailed, EngineThread, Job, apart
from specmesh.engines.base import Span
from specmesh.engines.sim import SimSettings, SimVerifier
from specmesh.errors import EngineError

SPAN = Span(0, 0, (65, 66), logits=True)


class Recording(SimVerifier):
    """Notes the calls, on which thread; fails where told."""

    def __init__(self) -> None:
        super().__init__(SimSettings())
        self.calls: list[object] = []
        self.threads: set[str] = set()
        self.error: Exception | None = None

    def decode(self, spans: Sequence[Span]) -> list[NDArray[np.float32] | None]:
        self.calls.append(tuple(spans))
        self.threads.add(threading.current_thread().name)
        if self.error is not None:
            raise self.error
        return super().decode(spans)

    def trim(self, seq: int, length: int) -> None:
        self.calls.append((seq, length))
        super().trim(seq, length)

    def copy(self, seq: int, source: int, length: int) -> None:
        self.calls.append((seq, source, length))
        super().copy(seq, source, length)


@pytest.fixture
def engine() -> Recording:
    return Recording()


@pytest.fixture
def results() -> "queue.SimpleQueue[Decoded | DecodeFailed]":
    return queue.SimpleQueue()


@pytest.fixture
def thread(engine: Recording, results: "queue.SimpleQueue[Decoded | DecodeFailed]") -> Iterator[EngineThread]:
    made = EngineThread(engine, results.put)
    yield made
    assert made.close(10.0)


def test_orders_come_before_the_decode(thread: EngineThread, engine: Recording, results):
    """A job cuts and copies, decodes, and gives one array per span and its time; all on the engine's thread."""
    thread.submit(Job((), (SPAN,)))
    first = results.get(timeout=10)
    thread.submit(Job((Copy(1, 0, 2), Cut(0, 1)), (Span(0, 1, (67,), logits=False),)))
    second = results.get(timeout=10)
    assert engine.calls == [(SPAN,), (1, 0, 2), (0, 1), (Span(0, 1, (67,), logits=False),)]
    assert first.logits[0].shape == (2, 256)
    assert second.logits == [None]
    assert first.started <= first.ended <= second.started
    assert engine.threads == {"engine"}


def test_error_is_delivered_and_the_thread_lives(thread: EngineThread, engine: Recording, results):
    """An engine's error arrives as DecodeFailed, and the next job runs."""
    engine.error = EngineError("out of memory")
    thread.submit(Job((), (SPAN,)))
    failed = results.get(timeout=10)
    assert isinstance(failed, DecodeFailed)
    assert failed.error is engine.error
    engine.error = None
    thread.submit(Job((), (SPAN,)))
    assert isinstance(results.get(timeout=10), Decoded)


def test_error_of_a_trim_is_delivered(thread: EngineThread, results):
    """A trim that cannot be is delivered like an error of the decode."""
    thread.submit(Job((Cut(0, 99),), (SPAN,)))
    assert isinstance(results.get(timeout=10), DecodeFailed)


def test_any_exception_is_delivered(thread: EngineThread, engine: Recording, results):
    """Whatever a library raises reaches the loop, which waits for an answer; the thread lives."""
    engine.error = MemoryError("no more")
    thread.submit(Job((), (SPAN,)))
    failed = results.get(timeout=10)
    assert isinstance(failed, DecodeFailed)
    assert isinstance(failed.error, EngineError)
    assert "MemoryError: no more" in str(failed.error)
    engine.error = None
    thread.submit(Job((), (SPAN,)))
    assert isinstance(results.get(timeout=10), Decoded)


def test_one_failed_trim_leaves_the_others_done(thread: EngineThread, engine: Recording, results):
    """A trim that cannot be is told, after every other trim of the job has been done."""
    thread.submit(Job((), (SPAN, Span(1, 0, (65, 66), logits=False))))
    assert isinstance(results.get(timeout=10), Decoded)
    thread.submit(Job((Cut(0, 99), Cut(1, 0)), (Span(1, 0, (67,), logits=False),)))
    assert isinstance(results.get(timeout=10), DecodeFailed)
    thread.submit(Job((), (Span(1, 0, (67,), logits=False),)))
    assert isinstance(results.get(timeout=10), Decoded)


def test_work_done_apart():
    """Its result or its error comes back, and its thread is gone."""
    ran = apart(threading.current_thread)
    assert ran is not threading.current_thread()
    assert not ran.is_alive()
    with pytest.raises(EngineError, match="no memory"):
        apart(_failing)


def _failing() -> None:
    raise EngineError("no memory")
