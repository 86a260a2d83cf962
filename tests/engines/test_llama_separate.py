"""Sequences with a memory of their own compute what those in a shared one do."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from specmesh.engines.base import Span
from specmesh.engines.llama import LlamaSettings, LlamaVerifier
from specmesh.engines.llama_separate import SeparateMemories
from specmesh.engines.sequences import Sequences
from specmesh.errors import EngineError, LocalProtocolError

PROMPTS = {0: tuple(range(40, 60)), 1: (7, 8, 9), 3: tuple(range(100, 180))}


@pytest.fixture
def engines(make_gguf: Callable[..., Path]) -> Iterator[list[LlamaVerifier]]:
    settings = [
        LlamaSettings(make_gguf("tiny"), n_ctx=256, n_seq=4, threads=1, gpu_layers=0, kv_unified=unified)
        for unified in (True, False)
    ]
    made = [LlamaVerifier(one) for one in settings]
    yield made
    for one in made:
        one.close()


def test_the_same_logits(engines: list[LlamaVerifier]):
    """Steps of uneven rows, of sequences that are no neighbours, beside short and long prompts, after cuts."""
    shown = []
    for engine in engines:
        engine.decode([Span(seq, 0, ids, logits=False) for seq, ids in PROMPTS.items()])
        held = {seq: len(ids) for seq, ids in PROMPTS.items()}
        rows = []
        for turn in range(6):
            spans = [Span(seq, held[seq], (5, 6, 11)[: 1 + (seq + turn) % 3], logits=True) for seq in held]
            beside = [Span(2, 0, tuple(range(1, 5 + 20 * turn)), logits=False)]
            decoded = engine.decode([*spans, *beside])
            rows += [np.array(one) for one in decoded if one is not None]
            engine.trim(2, 0)
            for span in spans:
                held[span.seq] += 1
                engine.trim(span.seq, held[span.seq])
        shown.append(np.concatenate(rows))
    assert shown[0].shape == shown[1].shape
    assert np.abs(shown[0] - shown[1]).max() < 0.02 * np.ptp(shown[0])


@pytest.fixture
def decodes(engines: list[LlamaVerifier], monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[int, int]]]:
    """Of each decode of the separate ones: sequences and rows."""
    cache, seen = engines[1]._context.cache, list[list[tuple[int, int]]]()
    run = cache.run

    def noted(spans: Sequence[Span]) -> None:
        seen.append([(span.seq, len(span.ids)) for span in spans])
        run(spans)

    monkeypatch.setattr(cache, "run", noted)
    return seen


def test_gaps_are_bridged(engines: list[LlamaVerifier], decodes: list[list[tuple[int, int]]]):
    """Sequences in between get a row that is taken back: empty ones, ones that hold something, one that is read in the
    same step; a full one cannot. What they hold is as it was."""
    shown = []
    for engine in engines:
        engine.decode([Span(seq, 0, PROMPTS[seq], logits=False) for seq in (0, 3)])
        rows = [engine.decode([Span(0, 20, (5,), logits=True), Span(3, 80, (6,), logits=True)])]
        engine.decode([Span(1, 0, PROMPTS[1], logits=False)])
        long = Span(2, 0, tuple(range(200, 240)), logits=False)
        rows.append(engine.decode([Span(0, 21, (7,), logits=True), long, Span(3, 81, (8,), logits=True)]))
        rows.append(engine.decode([Span(1, 3, (9,), logits=True), Span(2, 40, (9,), logits=True)]))
        shown.append(np.concatenate([one for step in rows for one in step if one is not None]))
    assert np.abs(shown[0] - shown[1]).max() < 0.02 * np.ptp(shown[0])
    assert decodes[2:] == [
        [(0, 1), (1, 1), (2, 1), (3, 1)],
        [(1, 3)],
        [(2, 40)],
        [(0, 1), (1, 1), (2, 1), (3, 1)],
        [(1, 1), (2, 1)],
    ]
    decodes.clear()
    own = engines[1]
    own.decode([Span(1, 4, (5,) * 252, logits=False)])
    own.decode([Span(0, 22, (5,), logits=True), Span(2, 41, (6,), logits=True)])
    assert decodes == [[(1, 252)], [], [(0, 1), (2, 1)]]


class Cache:
    """Notes the decodes; keeps what it is told to."""

    def __init__(self) -> None:
        self.decodes: list[list[tuple[int, int]]] = []
        self.kept = False

    def run(self, spans: Sequence[Span]) -> None:
        self.decodes.append([(span.seq, len(span.ids)) for span in spans])

    def remove(self, seq: int, length: int) -> bool:
        return not self.kept


def separate(held: Sequence[int], rows: int = 100) -> tuple[SeparateMemories, Cache]:
    """Over sequences that hold so much."""
    cache, sequences = Cache(), Sequences(len(held), 256, 320)
    for seq, length in enumerate(held):
        sequences.set(seq, length)
    return SeparateMemories(cache, sequences, rows), cache  # type: ignore[arg-type]


def test_gaps_that_are_left():
    """A longer sequence in it, more than a few of them, or a decode that is full."""

    def decodes(held: Sequence[int], seqs: Sequence[int], rows: int = 100) -> list[list[tuple[int, int]]]:
        made, cache = separate(held, rows)
        made.run([Span(seq, held[seq], (5,), logits=True) for seq in seqs])
        return cache.decodes

    assert decodes([9, 9, 9], [0, 2]) == decodes([3, 9, 9], [0, 2]) == [[(0, 1), (1, 1), (2, 1)]]
    assert decodes([9, 10, 9], [0, 2]) == decodes([9, 9, 9], [0, 2], rows=2) == [[(0, 1), (2, 1)]]
    assert decodes([9] * 6, [0, 5]) == [[(seq, 1) for seq in range(6)]]
    assert decodes([9] * 7, [0, 6]) == [[(0, 1), (6, 1)]]


def test_what_cannot_be():
    """A row that stays, of a sequence that nobody asked about; logits in another order than spans."""
    made, cache = separate([9, 9, 9])
    steps = [Span(seq, 9, (5,), logits=True) for seq in (0, 2)]
    with pytest.raises(LocalProtocolError, match="order of their sequences"):
        made.run(steps[::-1])
    assert not cache.decodes
    cache.kept = True
    with pytest.raises(EngineError, match=r"sequences \[1\]"):
        made.run(steps)


def test_a_failed_step_leaves_nothing_in_a_gap(engines: list[LlamaVerifier], monkeypatch: pytest.MonkeyPatch):
    """The rows for nothing are taken back then too."""
    own = engines[1]
    lib = own._context.cache.lib
    own.decode([Span(seq, 0, PROMPTS[1], logits=False) for seq in (0, 1, 2)])
    steps = [Span(0, 3, (5,), logits=True), Span(2, 3, (6,), logits=True)]
    monkeypatch.setattr(lib, "llama_decode", lambda *_: -3)
    with pytest.raises(EngineError):
        own.decode(steps)
    monkeypatch.undo()
    own.decode([*steps, Span(1, 3, (7,), logits=True)])


def test_what_may_be_gone_on_from(engines: list[LlamaVerifier]):
    """One's own sequence only: cells cannot be another's too."""
    assert [engine.info.reuse for engine in engines] == ["copied", "cut"]
    own = engines[1]
    own.decode([Span(0, 0, PROMPTS[0], logits=False)])
    with pytest.raises(LocalProtocolError, match="cannot share"):
        own.copy(1, 0, 4)
    own.trim(0, 4)
    own.decode([Span(0, 4, (3,), logits=True)])
