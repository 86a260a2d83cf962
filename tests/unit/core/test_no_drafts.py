"""The reason that nothing is drafted for a session, in its row, its report and the log."""

from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
from harness.loops import welcome
from harness.table_source import table_source

from specmesh.core import events as ev
from specmesh.core.draft_length.speculation import Speculations
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.drafter import upstream_events as uev
from specmesh.core.drafter.upstream import Upstream
from specmesh.core.kv_slots import KVSlots
from specmesh.core.no_drafts import NoDrafts
from specmesh.core.prefix import Prefix
from specmesh.core.requests import Request
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.sampling.strategy import Strategy
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.core.statistics.daemon import DrafterStats
from specmesh.core.verifier import events as vev
from specmesh.core.verifier.core import VerifierCore
from specmesh.core.verifier.target import Target
from specmesh.daemons.verifier.daemon import local_drafting
from specmesh.engines.base import LocalDrafter
from specmesh.engines.sim import SimDrafter, SimSettings
from specmesh.wire import messages as m
from specmesh.wire.codec import write_body

PROMPT = (1, 2, 3)
GREEDY = SamplingParams()
DRAFTER, OTHER = b"mac", b"desk"
HERE = ((DRAFTER, 64),)
WELCOME = welcome(n_ctx=64)


def grammar(exhausted):
    """Return a grammar that allows the target's ids, and no draft."""
    made = Mock(complete=False, exhausted=exhausted)
    made.allowed.return_value = np.ones(8, np.bool_)
    made.count_allowed.return_value = 0
    made.forced.return_value = ()
    return made


def core_of_two(beside=None):
    """A core for two sessions; with a draft model `beside` the target the gate of that is shut."""
    costs = StepCosts()
    speculations = Speculations()
    local = None
    if beside is not None:
        local = local_drafting(beside, costs, speculations)
        speculations.of(beside.source, 1).gate.open = False
    target = Target(
        limits=TargetLimits(64, 8, frozenset({7}), max_drafts=4, drafts_repeats=False),
        costs=costs,
        slots=KVSlots(2, "cut", 64),
        n_batch=8,
        max_sessions=2,
        speculations=speculations,
        local=local,
    )
    return VerifierCore(target)


def opening(params, **fields):
    request = Request(None, PROMPT, params)
    return vev.Opening(client=3, request=request, ids=PROMPT, n_prompt=3, **fields)


class World:
    """A verifier's core with one session; `steps` generates, `row` is the session's in stats."""

    def __init__(
        self, draft_n=2, sampling=GREEDY, drafters=HERE, sources=None, beside=None, **fields
    ):
        self.core = core_of_two(beside)
        self.now = 0.0
        self.noted = []
        self.ended = []
        for drafter, n_ctx in drafters:
            self.handle(vev.DrafterJoined(drafter, n_ctx))
        params = SessionParams(sampling, 30, draft_n=draft_n, draft_sources=sources)
        self.handle(opening(params, **fields))
        self.step()

    def handle(self, event):
        return self.take(self.core.handle(event, self.now))

    def take(self, effects):
        self.noted += [one for one in effects if isinstance(one, vev.Noted)]
        news = [effect.what for effect in effects if isinstance(effect, vev.ToClient)]
        self.ended += [one for one in news if isinstance(one, vev.SessionEnded)]
        return effects

    def step(self, count=1, seconds=1.0):
        for _ in range(count):
            while isinstance(step := self.core.next_step(self.now), ev.Wait):
                self.now = step.until
            logits = np.eye(8, dtype=np.float32)[[4] * step.rows]
            rows = [logits if span.logits else None for span in step.spans]
            begun = self.now
            self.now += seconds
            self.take(self.core.finish(step, rows, begun, self.now))

    def draft(self):
        """The drafter sends the right ids after the text."""
        ids = (*PROMPT, *[4] * (self.row["generated_tokens"]))
        draft = m.Draft(1, len(ids), Prefix(ids).crc, (4, 4))
        self.handle(vev.FromDrafter(DRAFTER, draft))

    @property
    def row(self):
        *_, report = self.handle(vev.Signal.REPORT_WANTED)
        [found] = report.sessions
        return found

    def report(self):
        """Return the report of the session, whose client leaves."""
        self.handle(vev.ClientLeft(3))
        [end] = self.ended
        return end.report

    def logged(self):
        return [one.fields["why"] for one in self.noted if one.name == "no_drafts"]


def closed(world):
    """Shut the gate by steps that are slow with drafts, then begin another text."""
    world.step()
    for _ in range(4):
        world.draft()
        world.step(seconds=6.0)
    world.handle(vev.ClientLeft(3))
    world.noted.clear()
    world.ended.clear()
    world.handle(opening(SessionParams(GREEDY, 30)))
    world.step(2)


def muted(world):
    world.handle(vev.DrafterMuted(DRAFTER, muted=True))


def gone(world):
    world.handle(vev.DrafterLeft(DRAFTER, may_return=True))


def generated(count):
    return lambda world: world.step(count)


GREEDY_ONLY = replace(GREEDY, strategy=Strategy.GREEDY)
CASES = [
    (NoDrafts.CLIENT, {"draft_n": 0}, generated(1)),
    (NoDrafts.CLIENT, {"sampling": GREEDY_ONLY}, generated(1)),
    (NoDrafts.CLIENT, {"sources": ()}, generated(1)),
    (NoDrafts.CLIENT, {"sources": ("suffix",)}, generated(1)),
    (NoDrafts.CLIENT, {"sources": ("suffix",), "owner": DRAFTER}, generated(1)),
    (NoDrafts.NONE_ATTACHED, {"drafters": ()}, generated(1)),
    (NoDrafts.NONE_ATTACHED, {}, gone),
    (NoDrafts.VOCABULARY, {}, muted),
    (NoDrafts.VOCABULARY, {"owner": DRAFTER}, muted),
    (NoDrafts.CONTEXT, {"drafters": ((DRAFTER, 3), (OTHER, 2))}, generated(1)),
    (NoDrafts.CONTEXT, {"drafters": ((DRAFTER, 3), (OTHER, 64)), "owner": DRAFTER}, generated(1)),
    (NoDrafts.CONTEXT, {"drafters": ((DRAFTER, 6),)}, generated(4)),
    (NoDrafts.GRAMMAR, {"constraint": grammar("time")}, generated(2)),
    (NoDrafts.GATE, {"draft_n": None}, closed),
    (NoDrafts.BEHIND, {}, generated(3)),
]


@pytest.mark.parametrize(("why", "changes", "happens"), CASES)
def test_each_reason_is_reported(why, changes, happens):
    """It is in the session's row and in its report, and in the log."""
    world = World(**changes)
    happens(world)
    assert world.row["no_drafts"] == why
    assert world.logged()[-1:] == [why]
    assert world.report()["no_drafts"] == why
    [finished] = [noted for noted in world.noted if noted.name == "session_finished"]
    assert finished.fields["no_drafts"] == why


def test_a_session_with_drafts_has_no_reason():
    world = World()
    world.step()
    world.draft()
    world.step()
    report = world.report()
    assert (report["drafted"], report["no_drafts"]) == (2, None)


def test_a_change_is_logged_once():
    world = World()
    world.step(2)
    assert [world.row["no_drafts"] for _ in range(3)] == [NoDrafts.BEHIND] * 3
    world.draft()
    world.step()
    assert world.row["no_drafts"] is None
    world.step(2)
    assert world.logged() == [NoDrafts.BEHIND], "that it went on is not logged at once"
    gone(world)
    assert world.row["no_drafts"] is NoDrafts.NONE_ATTACHED
    assert world.logged() == [NoDrafts.BEHIND, NoDrafts.NONE_ATTACHED]


def test_a_text_that_lost_its_drafts_has_a_reason_at_its_end():
    """Some were verified before."""
    world = World()
    world.step()
    world.draft()
    world.step()
    gone(world)
    world.step(3)
    report = world.report()
    assert report["drafted"] > 0
    assert report["no_drafts"] is NoDrafts.NONE_ATTACHED


def test_a_text_that_another_source_drafted_needs_no_drafter():
    with table_source(lambda _: (4, 4)):
        world = World(drafters=())
        world.step(4)
        assert world.row["no_drafts"] is None
    report = world.report()
    assert report["drafted"] > 0
    assert report["no_drafts"] is None


@pytest.mark.parametrize(("drafts", "why"), [((4, 4), None), ((), NoDrafts.GATE)])
def test_draft_model_that_is_not_asked(drafts, why):
    """Its own gate is no reason as long as another source drafts."""
    model = SimDrafter(SimSettings())
    beside = LocalDrafter(model, model)
    with table_source(lambda _: drafts):
        world = World(drafters=(), draft_n=None, beside=beside)
        world.step(4)
        assert world.row["no_drafts"] is why


@pytest.mark.parametrize(
    ("constraint", "why"), [(None, NoDrafts.BEHIND), (grammar(None), NoDrafts.GRAMMAR)]
)
def test_drafts_that_are_never_verified(constraint, why):
    """They come late, or the grammar forbids each of them: the end has a reason all the same."""
    world = World(constraint=constraint)
    world.step()
    if constraint is None:
        late = m.Draft(1, len(PROMPT), Prefix(PROMPT).crc, (4,))
        world.handle(vev.FromDrafter(DRAFTER, late))
    else:
        world.draft()
    report = world.report()
    assert (report["drafted"], report["no_drafts"]) == (0, why)


def test_a_prompt_that_is_read_has_no_reason_of_a_drafters():
    """Nobody is behind before the first step."""
    core = core_of_two()
    core.handle(vev.DrafterJoined(DRAFTER, 64), 0.0)
    core.handle(opening(SessionParams(GREEDY, 30, draft_n=2)), 0.0)
    *_, report = core.handle(vev.Signal.REPORT_WANTED, 0.0)
    assert report.sessions[0]["no_drafts"] is None


# --- as a drafter reports it


def upstream(n_ctx=64):
    return Upstream("tcp://big:7071", 0, DrafterStats(0.0), write_body, n_ctx)


def noted(effects):
    """Return the lines for the log, by their names."""
    return {one.name: one for one in effects if isinstance(one, vev.Noted)}


def test_a_drafter_reports_the_reason_of_its_verifier():
    made = upstream()
    assert "does not answer" in str(made.no_drafts)
    made.handle(uev.UpstreamBarred(kept_out=None, unknown="no such name"), 0.0)
    assert "no such name" in str(made.no_drafts)
    made.handle(WELCOME, 0.0)
    assert made.no_drafts is None
    compared = uev.VocabularyCompared(None, "of another family", "", ready=False)
    made.handle(compared, 0.0)
    assert made.no_drafts == "of another family"
    made.handle(replace(compared, foreign="", unusable="no vocabulary"), 0.0)
    assert made.no_drafts == made.facts.refusal == "no vocabulary"


def test_a_drafter_with_less_context_warns_at_once():
    """With the number to give; and by the newest text, once it is too long."""
    made = upstream(n_ctx=16)
    warned = noted(made.handle(WELCOME, 0.0))["context_is_smaller"]
    assert (warned.level, "--ctx 64" in str(warned.fields)) == ("warning", True)
    made.handle(uev.SessionOpened(1, 0, 15, SessionParams(GREEDY, 30)), 0.0)
    assert made.no_drafts is None
    made.handle(uev.SessionOpened(2, 0, 16, SessionParams(GREEDY, 30)), 0.0)
    assert made.no_drafts is NoDrafts.CONTEXT


def test_a_drafter_with_as_much_context_does_not_warn():
    effects = upstream().handle(WELCOME, 0.0)
    assert [*noted(effects)] == ["verifier_found"]
