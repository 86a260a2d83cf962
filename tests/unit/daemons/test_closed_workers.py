"""Owners of threads: what these make while, or after, their owner is closed has an end too."""

import threading
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from types import SimpleNamespace
from typing import ClassVar

import pytest
from harness import PATIENCE

from specmesh.api.fair_workers import FairWorker
from specmesh.core.events import SessionKey
from specmesh.core.sampling.constraint import Grammar, GrammarKind
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.daemons.drafter import upstream_link
from specmesh.daemons.drafter.upstream_link import DraftGrammars

GRAMMAR = Grammar(GrammarKind.GBNF, 'root ::= "a"')
VOCABULARY = Vocabulary((b"a", b""), frozenset({1}))


class SlowGrammars:
    """Grammars that are made, and compile, only once they may."""

    made: ClassVar[list["SlowGrammars"]]
    begun: ClassVar[SimpleQueue[str]]
    go_on: ClassVar[threading.Semaphore]

    def __init__(self, _):
        self.closed = 0
        self.made.append(self)
        self._wait("making")

    def compile(self, _):
        self._wait("compiling")
        return "compiled"

    def close(self):
        self.closed += 1

    def _wait(self, work):
        self.begun.put(work)
        assert self.go_on.acquire(timeout=PATIENCE)


@pytest.fixture
def slow(monkeypatch):
    """Replace the grammars of drafters."""
    monkeypatch.setattr(upstream_link, "grammar_compiler", SlowGrammars)
    monkeypatch.setattr(SlowGrammars, "made", [], raising=False)
    monkeypatch.setattr(SlowGrammars, "begun", SimpleQueue(), raising=False)
    monkeypatch.setattr(SlowGrammars, "go_on", threading.Semaphore(0), raising=False)
    return SlowGrammars


@pytest.fixture
def grammars():
    """Return a drafter's grammars; its core takes events and does nothing."""
    made = DraftGrammars(SimpleNamespace(put=lambda *_: None))
    yield made
    made.close()
    join("grammars")


def join(name):
    """Wait for the end of the threads of a name."""
    for thread in threading.enumerate():
        if thread.name.startswith(name):
            thread.join(PATIENCE)
            assert not thread.is_alive()


def test_grammars_that_are_made_at_their_owners_end_are_closed(slow, grammars):
    grammars.compile(VOCABULARY, GRAMMAR, SessionKey(0, 1))
    assert slow.begun.get(timeout=PATIENCE) == "making"
    with ThreadPoolExecutor(1) as closing:
        closed = closing.submit(grammars.close)
        slow.go_on.release(2)
        closed.result(PATIENCE)
    join("grammars")
    assert [made.closed for made in slow.made] == [1]


def test_no_grammars_are_made_after_their_owners_end(slow, grammars):
    """A session's grammar waits for another one, in another vocabulary."""
    slow.go_on.release()
    grammars.compile(VOCABULARY, GRAMMAR, SessionKey(0, 1))
    assert slow.begun.get(timeout=PATIENCE) == "making"
    assert slow.begun.get(timeout=PATIENCE) == "compiling"
    other = Vocabulary((b"b", b""), frozenset({1}))
    grammars.compile(other, GRAMMAR, SessionKey(0, 2))
    grammars.close()
    slow.go_on.release()
    join("grammars")
    assert [made.closed for made in slow.made] == [1]


@pytest.fixture
def worker():
    made = FairWorker("work")
    yield made
    join("work")


def test_work_for_a_closed_worker_is_cancelled(worker):
    worker.close().result(PATIENCE)
    assert worker.submit((), 1, object).cancelled()


def test_work_that_asks_for_more_is_the_last_of_a_closed_worker(worker):
    """As a prompt does that has a grammar."""
    begun = threading.Event()
    go_on = threading.Event()

    def work():
        begun.set()
        assert go_on.wait(PATIENCE)
        return worker.submit((), 1, object)

    done = worker.submit((), 1, work)
    assert begun.wait(PATIENCE)
    ended = worker.close()
    go_on.set()
    ended.result(PATIENCE)
    assert done.result().cancelled()
