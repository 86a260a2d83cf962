"""The steps of several sessions on real engines: what is learned of them."""

import queue
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
from harness.loops import Hearing

from specmesh.core import events as ev
from specmesh.core.draft_length.acceptance import RollingAcceptance
from specmesh.core.draft_length.arrival_estimates import Arrivals
from specmesh.core.draft_length.gate import Contests, SharedStep
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session import VerifierSession
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.daemons.runtime.engine_thread import Decoded, DecodeFailed
from specmesh.daemons.verifier.live_session import Live
from specmesh.daemons.verifier.stepper import Stepper
from specmesh.engines.base import VerifyEngine
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
        self._stepper = Stepper(engine, self._results.put, costs or Free())

    def open(self, ids: tuple[int, ...] = PROMPT, *, draft_n: int | None = None) -> Live:
        info, vocabulary = self.engine.info, self.engine.vocabulary
        limits = TargetLimits(info.n_ctx, len(vocabulary), frozenset(), pieces=vocabulary.pieces)
        params = SessionParams(SamplingParams(), TOKENS, draft_n)
        seq, held = self._stepper.take(ids, len(ids) - 1, self.sessions, cached=True)
        machine = VerifierSession(ids, params, limits, Free(), RollingAcceptance(), 0.0, held=held)
        machine.attach(Arrivals())
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


def test_what_steps_that_are_shared_bring_is_told(driven: Driven, monkeypatch: pytest.MonkeyPatch):
    """How many sessions and tokens, and whether drafts were asked for, had, and left out; nothing of steps of one, or
    with a prompt."""
    told: list[SharedStep] = []
    monkeypatch.setattr(Contests, "stepped", lambda _, step: told.append(step))
    driven.open()
    for _ in range(4):
        driven.step()
    assert told == []
    driven.open((*PROMPT, 33))
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
    live = driven.open()
    driven.open((*PROMPT, 33))
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
    lives = [driven.open((*PROMPT, *extra)) for extra in ((), (33,))]
    for _ in range(4):
        driven.step()
    left.clear()
    prefix = lives[0].machine.prefix
    lives[0].machine.handle(ev.Drafted(len(prefix), prefix.crc, (1,)), 0.0)
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
