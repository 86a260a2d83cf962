"""Steps with two chains on real engines: what they commit, and where sessions go on afterwards."""

import queue
import random
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
from loops import Hearing

from specmesh.core import events as ev
from specmesh.core.acceptance import RollingAcceptance
from specmesh.core.arrivals import Arrivals
from specmesh.core.contest import Contests, SharedStep
from specmesh.core.costs import StepCosts
from specmesh.core.sampling import SamplingParams
from specmesh.core.second import Second, rescues
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.core.verifier_session import VerifierSession
from specmesh.daemons.decision_notes import DecisionNotes
from specmesh.daemons.engine_thread import Decoded, DecodeFailed
from specmesh.daemons.live import Live
from specmesh.daemons.stepper import Stepper
from specmesh.engines.base import Span, VerifyEngine
from specmesh.engines.llama import LlamaSettings, LlamaVerifier
from specmesh.engines.sim import SimSettings, SimVerifier

PROMPT, TOKENS, N_SEQ = tuple(b"def walk(folder):"), 120, 2


class Free(StepCosts):
    """Rows cost nothing, whatever is measured."""

    def seconds(self, rows: int, context: int = 0) -> float:
        return 1.0


class Driven:
    """A stepper and its sessions, a step at a time."""

    def __init__(self, engine: VerifyEngine, costs: StepCosts | None = None) -> None:
        self.engine, self.sessions = engine, dict[int, Live]()
        self._results = queue.SimpleQueue[Decoded | DecodeFailed]()
        self._stepper = Stepper(engine, self._results.put, costs or Free(), DecisionNotes(None))

    def open(self, ids: tuple[int, ...] = PROMPT, *, second: bool = True, draft_n: int | None = None) -> Live:
        info, vocabulary = self.engine.info, self.engine.vocabulary
        limits = TargetLimits(info.n_ctx, len(vocabulary), frozenset(), pieces=vocabulary.pieces, trees=info.trees)
        params = SessionParams(SamplingParams(), TOKENS, draft_n)
        seq, held = self._stepper.take(ids, len(ids) - 1, self.sessions, cached=True)
        machine = VerifierSession(ids, params, limits, Free(), RollingAcceptance(), 0.0, held=held)
        machine.attach(Arrivals())
        if second:
            trusted = rescues()
            for _ in range(8):
                trusted.record(1, 1)
            machine.assist(Second(RollingAcceptance(), trusted))
        live = self.sessions[seq] = Live(seq, seq, machine, Hearing(), None)
        return live

    def leave(self, live: Live) -> None:
        del self.sessions[live.id]
        self._stepper.give_back(live, broken=False)

    def begin(self) -> None:
        assert self._stepper.feed(self.sessions, 0.0) is None

    def end(self) -> None:
        result = self._results.get(timeout=60)
        assert isinstance(result, Decoded), result
        self._stepper.finish(result, self.sessions, 0.0)

    def step(self) -> None:
        self.begin()
        self.end()

    def rest(self) -> None:
        self._stepper.rest()

    def close(self) -> None:
        assert self._stepper.close(60)


@pytest.fixture(scope="module", params=["sim", pytest.param("bundled", marks=pytest.mark.models)])
def engine(request: pytest.FixtureRequest) -> Iterator[VerifyEngine]:
    made: VerifyEngine
    if request.param == "sim":
        made = SimVerifier(SimSettings(n_seq=N_SEQ))
    else:
        path = next(Path(str(files("specmesh") / "models")).glob("**/target.gguf"))
        made = LlamaVerifier(LlamaSettings(path, n_ctx=512, n_seq=N_SEQ, n_batch=64, threads=1, gpu_layers=0))
    yield made
    made.close()


@pytest.fixture
def driven(engine: VerifyEngine) -> Iterator[Driven]:
    for seq in range(N_SEQ):
        engine.trim(seq, 0)
    made = Driven(engine)
    yield made
    made.close()


def said(live: Live) -> tuple[int, ...]:
    return tuple(live.machine.prefix[0 : len(live.machine.prefix)])


def hear(live: Live, drafts: list[int], *, second: bool) -> None:
    """Drafts beyond what is committed."""
    prefix = live.machine.prefix
    live.machine.handle(ev.Drafted(len(prefix), prefix.crc, tuple(drafts), 0, second=second), 0.0)


def assert_says(engine: VerifyEngine, ids: tuple[int, ...], begin: int) -> None:
    """From `begin` on these ids are what the target says on an empty sequence, but for near ties that kernels of other
    widths see otherwise."""
    for seq in range(N_SEQ):
        engine.trim(seq, 0)
    for at in range(0, len(ids) - 1, 16):
        (rows,) = engine.decode([Span(0, at, ids[at : min(at + 16, len(ids) - 1)], logits=True)])
        assert rows is not None
        noise = 0.05 * float(rows.max(axis=1).mean() - rows.mean())
        for place, row in enumerate(rows, at + 1):
            assert place < begin or row[ids[place]] >= row.max() - noise


def test_texts_go_along_either_chain(driven: Driven):
    """With two drafters that are right until a random place the text is what the target says alone. The sequence that
    it is in at the end holds it: another session goes on there."""
    alone = driven.open(second=False)
    while alone.machine.finished is None:
        driven.step()
    truth = said(alone)
    driven.leave(alone)
    live, luck, moves = driven.open(), random.Random(4), 0
    while live.machine.finished is None:
        for second in (False, True):
            drafts = list(truth[len(said(live)) :][: luck.randrange(2, 7)])
            right = luck.randrange(len(drafts) + 1)
            hear(live, [token if at < right else token ^ 1 for at, token in enumerate(drafts)], second=second)
        seq = live.seq
        driven.step()
        moves += live.seq != seq
    assert live.machine.counts.side_accepted > moves > 5
    driven.leave(live)
    again = driven.open((*said(live), *PROMPT), second=False)
    assert again.machine.cached >= len(said(live)) - 1
    for _ in range(3):
        driven.step()
    driven.leave(again)
    assert_says(driven.engine, said(live), len(PROMPT))
    assert_says(driven.engine, said(again), len(said(live)) + len(PROMPT))


def test_a_session_that_begins_gets_the_second_chains_sequence(driven: Driven):
    """In the middle of the step, where no other is free; the step then is one of one chain, and there are no more
    second chains while all sequences are taken."""
    first = driven.open()
    driven.step()
    driven.step()
    base = len(said(first))
    truth = [token + 1 for token in PROMPT[:3]]
    hear(first, truth, second=False)
    hear(first, [token + 1 for token in truth], second=True)
    verify = first.machine.plan(0.0)
    assert isinstance(verify, ev.Verify)
    assert verify.side is not None
    driven.begin()
    other = driven.open(second=False)
    driven.end()
    assert other.seq != first.seq
    assert first.machine.counts.side_drafted == 0
    assert len(said(first)) > base
    hear(first, truth, second=False)
    hear(first, [token + 1 for token in truth], second=True)
    while other.machine.generated < 5:
        driven.step()
    assert first.machine.counts.side_drafted == 0
    texts = said(first), said(other)
    for live in (first, other):
        driven.leave(live)
    for ids in texts:
        assert_says(driven.engine, ids, len(PROMPT))


def test_what_steps_that_are_shared_bring_is_told(driven: Driven, monkeypatch: pytest.MonkeyPatch):
    """How many sessions and tokens, and whether drafts were asked for, had, and left out; nothing of steps of one, or
    with a prompt."""
    told: list[SharedStep] = []
    monkeypatch.setattr(Contests, "stepped", lambda _, step: told.append(step))
    driven.open(second=False)
    for _ in range(4):
        driven.step()
    assert told == []
    driven.open((*PROMPT, 33), second=False)
    for _ in range(5):
        driven.step()
    assert {replace(step, seconds=0.0) for step in told} == {SharedStep(2, 2, 0.0, drafting=True, drafts=False)}
    assert len(told) >= 3
    told.clear()
    for live in driven.sessions.values():
        live.machine.handle(ev.Detached(), 0.0)
    driven.step()
    assert [(step.sessions, step.drafting, step.drafts, step.left_out) for step in told] == [(2, False, False, False)]


def test_crowds_hear_of_steps_of_one(monkeypatch: pytest.MonkeyPatch):
    """Each step that only verifies tells how many shared it: a crowd that has gone does not last."""
    shared: list[int] = []
    monkeypatch.setattr(Contests, "shared", lambda _, sessions: shared.append(sessions))
    driven = Driven(SimVerifier(SimSettings(n_seq=N_SEQ)))
    live = driven.open(second=False)
    driven.open((*PROMPT, 33), second=False)
    for _ in range(4):
        driven.step()
    driven.leave(live)
    driven.step()
    assert shared == [2, 2, 2, 1]
    driven.close()


class Dear(StepCosts):
    """Each row costs as much as the first, and nothing is between two steps."""

    def seconds(self, rows: int, context: int = 0) -> float:
        return float(rows)

    def pause(self, *, drafting: bool) -> float:
        return 0.0


def test_a_crowd_is_told_of_drafts_that_are_left_out_and_ends_when_nobody_is_left(monkeypatch: pytest.MonkeyPatch):
    """Two sessions, of which one has a draft that costs more than it is worth."""
    left: list[bool] = []
    monkeypatch.setattr(Contests, "stepped", lambda _, step: left.append(step.left_out))
    monkeypatch.setattr(Contests, "rest", lambda _: left.append(False))
    driven = Driven(SimVerifier(SimSettings(n_seq=N_SEQ)), Dear())
    lives = [driven.open((*PROMPT, *extra), second=False) for extra in ((), (33,))]
    for _ in range(4):
        driven.step()
    left.clear()
    prefix = lives[0].machine.prefix
    lives[0].machine.handle(ev.Drafted(len(prefix), prefix.crc, (1,), 0), 0.0)
    driven.step()
    assert left == [True]
    driven.rest()
    assert left == [True, False]
    driven.close()


class Noting(Free):
    """Notes the widths that are learned."""

    def __init__(self) -> None:
        super().__init__()
        self.widths: list[int] = []

    def record(self, rows: int, seconds: float, **about: object) -> None:
        self.widths.append(rows)


@pytest.mark.parametrize("separate", [False, True])
def test_what_uneven_steps_teach(separate: bool):
    """In memories of their own they fall into several decodes, so that they say nothing of so many rows."""
    engine = SimVerifier(SimSettings())
    engine._info = replace(engine.info, separate=separate)
    costs = Noting()
    driven = Driven(engine, costs)
    lives = [driven.open(tuple(b"ab"), second=False, draft_n=1), driven.open(tuple(b"cd"), second=False)]
    for live in lives:
        live.machine.handle(ev.Prefilled(1), 0.0)
    driven.engine.decode([Span(live.seq, 0, (live.machine.prefix[0:1][0],), logits=False) for live in lives])
    for drafts in ((), (7,)):
        live = lives[0]
        base = len(live.machine.prefix)
        if drafts:
            live.machine.handle(ev.Drafted(base, live.machine.prefix.crc_at(base), drafts, 0), 0.0)
        driven.step()
    driven.close()
    assert costs.widths == ([2] if separate else [2, 3])
