"""The verifier's core: what comes of each event, as whole lists of effects. Whole texts through it are in
tests/properties."""

from dataclasses import replace

import numpy as np
import pytest

from specmesh.core import events as ev
from specmesh.core import verifier_events as vev
from specmesh.core.draft_length.estimates import StepCosts
from specmesh.core.prefix import Prefix
from specmesh.core.requests import Request
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.scheduling.kv_slots import KVSlots
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.core.verifier import VerifierCore
from specmesh.errors import EngineError
from specmesh.wire import messages as m

PROMPT = (1, 2)
PARAMS = SessionParams(SamplingParams(), 9, draft_n=2)
CLIENT, DRAFTER, SESSION = 3, b"mac", 1
OPENING = vev.Opening(CLIENT, Request(None, PROMPT, PARAMS), PROMPT, 2)


def row(*tokens: int):
    return np.eye(8, dtype=np.float32)[list(tokens)]


def made() -> tuple[VerifierCore, StepCosts]:
    costs, slots = StepCosts(), KVSlots(2, "cut", 64)
    return VerifierCore(TargetLimits(64, 8, frozenset({7}), 4), costs, slots, 8, max_sessions=2), costs


def test_a_session_from_its_opening_to_its_end():
    core, _ = made()
    noted, began = core.handle(OPENING, 0.0)
    assert isinstance(noted, vev.Noted)
    assert began == vev.Began(CLIENT, SESSION, PROMPT, PARAMS, "", 0.0, 0, False, (), ())
    assert core.handle(vev.DrafterJoined(DRAFTER, 64), 0.0) == [
        vev.ToDrafter(DRAFTER, m.Opened(SESSION, 0, 2, PARAMS.named())),
        vev.ToDrafter(DRAFTER, m.Sync(SESSION, 0, 0, PROMPT, 2)),
    ]
    prefill = core.next_step(0.0)
    assert core.finish(prefill, [None], 0.0, 0.1) == [vev.Ran(0.0, 0.1, 1, 0)]
    drafts = m.Draft(SESSION, 2, Prefix(PROMPT).crc, (4, 5))
    assert core.handle(vev.FromDrafter(DRAFTER, drafts), 0.1) == []
    step = core.next_step(0.1)
    assert step.spans == (ev.Span(0, 1, (2, 4, 5), logits=True),)
    assert core.finish(step, [row(4, 6, 6)], 0.1, 0.2) == [
        vev.ToDrafter(DRAFTER, m.Truth(SESSION, 2, Prefix(PROMPT).crc, (4, 6), 2, 1)),
        vev.Committed(SESSION, CLIENT, ev.Emit((4, 6), 1, (4, 5), (), 0), 0.2, 2, first=True),
        vev.Ran(0.1, 0.2, 3, 2),
    ]
    assert core.handle(vev.DrafterLeft(DRAFTER, may_return=True), 0.2) == []
    ended, noted, forgotten = core.handle(vev.ClientLeft(CLIENT), 0.3)
    assert isinstance(ended, vev.SessionEnded)
    assert (ended.client, ended.reason, ended.error, isinstance(noted, vev.Noted)) == (CLIENT, "cancelled", None, True)
    assert (forgotten, core.next_step(0.3)) == (vev.Forgotten(SESSION), ev.Wait(np.inf))


def test_a_drafter_that_is_off_hears_of_a_text_when_it_is_to_draft():
    core, _ = made()
    core.handle(vev.DrafterJoined(DRAFTER, 64), 0.0)
    gate = core.drafters.drafters[DRAFTER].arrivals.gate
    gate.drafts, gate.verdict = False, False
    params = replace(PARAMS, draft_n=None)
    opening = replace(OPENING, request=Request(None, PROMPT, params))
    for session in (SESSION, SESSION + 1):
        said = [*core.handle(opening, 0.0), *core.finish(core.next_step(0.0), [None], 0.0, 0.1)]
        said += core.finish(core.next_step(0.1), [row(4)], 0.1, 0.2)
        if session == SESSION:
            said += core.handle(vev.ClientLeft(CLIENT), 0.2)
        assert not any(isinstance(effect, vev.ToDrafter) for effect in said)
    gate.drafts = True
    effects = core.finish(core.next_step(0.2), [row(5)], 0.2, 0.3)
    assert [effect for effect in effects if isinstance(effect, vev.ToDrafter)] == [
        vev.ToDrafter(DRAFTER, m.Opened(SESSION + 1, 0, 2, params.named())),
        vev.ToDrafter(DRAFTER, m.Sync(SESSION + 1, 0, 0, (*PROMPT, 4, 5), 4)),
    ]


@pytest.mark.parametrize("host", [False, True])
def test_beside_a_drafter_of_its_host_the_first_steps_are_measured_without_drafts(host: bool):
    core, costs = made()
    costs.record(1, 0.01)
    core.handle(vev.DrafterJoined(DRAFTER, 64), 0.0)
    if host:
        core.handle(vev.ThreadsShared(2, 1, frozenset({DRAFTER})), 0.0)
    request = Request(None, PROMPT, replace(PARAMS, draft_n=None))
    core.handle(replace(OPENING, request=request), 0.0)
    core.finish(core.next_step(0.0), [None], 0.0, 0.01)
    for begun in (0.01, 0.02, 0.03):
        effects = core.finish(core.next_step(begun), [row(4)], begun, begun + 0.01)
    (asked,) = [effect.draft_n for effect in effects if isinstance(effect, vev.Committed)]
    assert (asked == 0) == host


def test_a_step_that_failed_is_no_pause():
    """However long it took, and whatever waited for it: the next step follows the one after it."""
    core, costs = made()
    core.handle(OPENING, 0.0)
    core.finish(core.next_step(0.0), [None], 0.0, 0.01)
    step = core.next_step(0.011)
    core.handle(replace(OPENING, client=2), 0.02)
    core.finish(step, EngineError("too late"), 0.011, 60.0)
    core.finish(core.next_step(60.001), [None], 60.001, 60.01)
    assert costs.pause < 0.1


def test_a_step_that_failed_leaves_what_was_to_be_offloaded_before_it():
    slots = KVSlots(2, "copied", 64, offloads=True)
    core = VerifierCore(TargetLimits(64, 8, frozenset({7}), 4), StepCosts(), slots, 64, max_sessions=2)
    for client, ids in ((1, PROMPT * 10), (2, (5, 6) * 10)):
        core.handle(replace(OPENING, client=client, ids=ids, n_prompt=20), 0.0)
        core.finish(core.next_step(0.0), [None] if client == 1 else EngineError("no room"), 0.0, 0.1)
        core.handle(vev.ClientLeft(client), 0.2)
    assert slots.snapshot().kept_sequences == 1
