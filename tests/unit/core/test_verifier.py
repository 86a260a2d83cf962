"""The verifier's core: what comes of each event and step, as whole lists of effects. Whole texts through it are in
tests/properties."""

from dataclasses import replace
from unittest.mock import ANY

import numpy as np
import pytest

from specmesh.core import events as ev
from specmesh.core.draft_length.estimates import StepCosts
from specmesh.core.kv_slots import KVSlots
from specmesh.core.prefix import Prefix
from specmesh.core.requests import Request
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.core.statistics.counters import RoundCounts
from specmesh.core.verifier import events as vev
from specmesh.core.verifier.admission import READER_PATIENCE
from specmesh.core.verifier.core import VerifierCore
from specmesh.errors import EngineError, LocalProtocolError
from specmesh.wire import messages as m

PROMPT = (1, 2)
PARAMS = SessionParams(SamplingParams(), 9, draft_n=2)
CLIENT, DRAFTER, SESSION = 3, b"mac", 1
OPENING = vev.Opening(CLIENT, Request(None, PROMPT, PARAMS), PROMPT, 2)


def row(*tokens: int):
    return np.eye(8, dtype=np.float32)[list(tokens)]


def made(n_ctx: int = 64) -> tuple[VerifierCore, StepCosts]:
    costs, slots = StepCosts(), KVSlots(2, "cut", 64)
    return VerifierCore(
        TargetLimits(n_ctx, 8, frozenset({7}), 4), costs, slots, 8, max_sessions=2
    ), costs


def test_a_session_from_its_opening_to_its_end():
    core, _ = made()
    noted, began = core.handle(OPENING, 0.0)
    assert noted == vev.Noted("session_opened", ANY)
    assert began == vev.Began(CLIENT, SESSION, PROMPT, PARAMS, "", 0.0, 0, False, (), ())
    assert core.handle(vev.DrafterJoined(DRAFTER, 64), 0.0) == [
        vev.ToDrafter(DRAFTER, m.Opened(SESSION, 0, 2, PARAMS.named())),
        vev.ToDrafter(DRAFTER, m.Sync(SESSION, 0, 0, PROMPT, 2)),
    ]
    assert core.finish(core.next_step(0.0), [None], 0.0, 0.1) == [vev.Ran(0.0, 0.1, 1, 0)]
    assert (
        core.handle(vev.FromDrafter(DRAFTER, m.Draft(SESSION, 2, Prefix(PROMPT).crc, (4, 5))), 0.1)
        == []
    )
    step = core.next_step(0.1)
    assert step.spans == (ev.Span(0, 1, (2, 4, 5), logits=True),)
    assert core.finish(step, [row(4, 6, 6)], 0.1, 0.2) == [
        vev.ToDrafter(DRAFTER, m.Truth(SESSION, 2, Prefix(PROMPT).crc, (4, 6), 2, 1)),
        vev.Committed(SESSION, CLIENT, ev.Emit((4, 6), 1, (4, 5), (), 0), 0.2, 2, first=True),
        vev.Ran(0.1, 0.2, 3, 2),
    ]
    assert core.handle(vev.DrafterLeft(DRAFTER, may_return=True), 0.2) == []
    assert core.handle(vev.ClientLeft(CLIENT), 0.3) == [
        *ended(SESSION, CLIENT, 0.3),
        vev.Forgotten(SESSION),
    ]
    assert core.next_step(0.3) == ev.Wait(np.inf)


def test_steps_take_turns():
    core, _ = made()
    core.handle(OPENING, 0.0)
    step = core.next_step(0.0)
    with pytest.raises(LocalProtocolError):
        core.next_step(0.0)
    assert core.finish(step, [None], 0.0, 0.1) == [vev.Ran(0.0, 0.1, 1, 0)]
    with pytest.raises(LocalProtocolError):
        core.finish(step, [None], 0.1, 0.2)
    assert core.next_step(0.1).spans == (ev.Span(0, 1, (2,), logits=True),)


def ended(session: int, client: int | None, seconds: float) -> list[vev.Effect]:
    end = vev.SessionEnded(session, client, m.FinishReason.CANCELLED, None, PROMPT, ANY, seconds)
    return [end, vev.Noted("session_finished", ANY)]


def test_a_session_whose_drafter_comes_back_with_its_client():
    core, _ = made()
    core.handle(vev.DrafterJoined(DRAFTER, 64), 0.0)
    theirs = replace(
        OPENING, request=Request(None, PROMPT, PARAMS, id="text"), owner=DRAFTER, key="k"
    )
    began = vev.Began(CLIENT, SESSION, PROMPT, PARAMS, "text", 0.0, 0, False)
    sync = vev.ToDrafter(DRAFTER, m.Sync(SESSION, 0, 0, PROMPT, 2))
    assert core.handle(theirs, 0.0) == [vev.Noted("session_opened", ANY), began, sync]
    assert (
        core.handle(vev.RoundTrip(DRAFTER, 0.5), 0.0)
        == core.handle(vev.ThreadsShared(2, 1, frozenset()), 0.0)
        == []
    )
    left = vev.DrafterLeft(DRAFTER, may_return=True)
    assert core.handle(left, 1.0) == [
        vev.Noted("session_kept", {"session": SESSION, "seconds": 30.0})
    ]
    core.handle(vev.DrafterJoined(DRAFTER, 64), 2.0)
    [refused] = core.handle(replace(theirs, client=4, key="another"), 2.0)
    assert isinstance(refused, vev.RequestRefused)
    resumed = vev.Noted("session_resumed", {"session": SESSION, "tokens": 0})
    assert core.handle(replace(theirs, client=4), 2.0) == [
        resumed,
        replace(began, client=4, adopted=True),
        sync,
    ]
    assert core.handle(vev.SessionClosed(b"another", SESSION), 2.0) == []
    done = vev.ToDrafter(DRAFTER, m.Done(SESSION, m.FinishReason.CANCELLED, 2, ANY))
    closed = core.handle(vev.SessionClosed(DRAFTER, SESSION), 2.0)
    assert closed == [*ended(SESSION, 4, 2.0), done, vev.Forgotten(SESSION)]


def test_what_is_kept_is_dropped_by_a_verifier_that_stops():
    core, _ = made()
    core.handle(vev.DrafterJoined(DRAFTER, 64), 0.0)
    core.handle(
        replace(OPENING, request=Request(None, PROMPT, PARAMS, id="text"), owner=DRAFTER), 0.0
    )
    core.handle(vev.DrafterLeft(DRAFTER, may_return=True), 0.0)
    dropped = vev.Noted("session_dropped", {"session": SESSION, "tokens": 0})
    assert core.handle(vev.Signal.STOPPING, 1.0) == [
        vev.Forgotten(SESSION),
        dropped,
        *ended(SESSION, None, 1.0),
    ]
    [report] = core.handle(vev.Signal.REPORT_WANTED, 1.0)
    assert report == vev.CoreReport(totals=replace(RoundCounts(), prompt_tokens=2))
    assert core.handle(vev.Signal.TIME_UP, 1.0) == []


@pytest.mark.parametrize("another", [False, True])
def test_a_drafter_that_is_off_hears_of_a_text_when_it_is_to_draft(another: bool):
    """Its drafts cost more than they bring, until it is off: it hears nothing of what begins then, and all of a text
    once it is tried again, or before that another that has come."""
    (core, costs), now, params = made(9000), 0.0, SessionParams(SamplingParams(), 9000)
    costs.record(1, 0.01)
    opening = replace(OPENING, request=Request(None, PROMPT, params))

    def told(effects: list[vev.Effect]) -> list[m.Message]:
        """What it hears; it drafts at once where it shall, and wrong."""
        said = [effect.what for effect in effects if isinstance(effect, vev.ToDrafter)]
        for one in said:
            if isinstance(one, m.Sync | m.Truth) and one.draft_n:
                known = (*PROMPT, *[4] * (one.base + len(one.ids) - 2))
                core.handle(
                    vev.FromDrafter(
                        DRAFTER, m.Draft(one.session, len(known), Prefix(known).crc, (5, 5))
                    ),
                    now,
                )
        return said

    def step() -> list[m.Message]:
        nonlocal now
        begun, step = now, core.next_step(now)
        [span] = step.spans
        now += 0.01 if len(span.ids) == 1 else 0.03
        return told(
            core.finish(step, [row(*[4] * len(span.ids)) if span.logits else None], begun, now)
        )

    core.handle(vev.DrafterJoined(DRAFTER, 9000), now)
    told(core.handle(opening, now))
    for _ in range(200):
        step()
    assert 2.05 < now < 4, "some of the steps had drafts, less than half"
    core.handle(vev.ClientLeft(CLIENT), now)
    for session in (SESSION + 1, SESSION + 2):
        assert told(core.handle(opening, now)) == [] == step() == step()
        assert session > SESSION + 1 or told(core.handle(vev.ClientLeft(CLIENT), now)) == []
    if another:
        core.handle(vev.DrafterJoined(b"another", 9000), now)
    count = 2
    while not (said := step()):
        count += 1
    assert (count < 20) == another
    assert said == [
        m.Opened(session, 0, 2, params.named()),
        m.Sync(session, 0, 0, (*PROMPT, *[4] * count), 4),
    ]


@pytest.mark.parametrize("host", [False, True])
def test_beside_a_drafter_of_its_host_the_first_steps_are_measured_without_drafts(host: bool):
    core, costs = made()
    costs.record(1, 0.01)
    core.handle(vev.DrafterJoined(DRAFTER, 64), 0.0)
    if host:
        core.handle(vev.ThreadsShared(2, 1, frozenset({DRAFTER})), 0.0)
    core.handle(replace(OPENING, request=Request(None, PROMPT, replace(PARAMS, draft_n=None))), 0.0)
    core.finish(core.next_step(0.0), [None], 0.0, 0.01)
    for begun in (0.01, 0.02, 0.03):
        effects = core.finish(core.next_step(begun), [row(4)], begun, begun + 0.01)
    (asked,) = [effect.draft_n for effect in effects if isinstance(effect, vev.Committed)]
    assert (asked == 0) == host


def test_all_threads_read_a_prompt_and_fewer_step_beside_a_drafter_of_their_host():
    core, _ = made()
    core.handle(vev.DrafterJoined(DRAFTER, 64), 0.0)
    core.handle(vev.ThreadsShared(2, 1, frozenset({DRAFTER})), 0.0)
    core.handle(OPENING, 0.0)
    prefill = core.next_step(0.0)
    core.finish(prefill, [None], 0.0, 0.01)
    assert [prefill.threads, core.next_step(0.01).threads] == [None, 1]


def test_where_drafts_pay_for_one_session_only_nobody_drafts_as_soon_as_another_begins():
    """Once that is certain the drafter hears nothing of what begins."""
    core, costs = made()
    for rows in (1, 2, 3, 4, 8):
        costs.record(rows, 0.01 * (1 if rows < 3 else rows))
    core.handle(vev.DrafterJoined(DRAFTER, 64), 0.0)
    opening = replace(OPENING, request=Request(None, PROMPT, replace(PARAMS, draft_n=None)))

    def opened(client: int) -> tuple[list[int], bool]:
        told = core.handle(replace(opening, client=client), 0.0)
        *_, report = core.handle(vev.Signal.REPORT_WANTED, 0.0)
        return [one["draft_n"] for one in report.sessions], any(
            isinstance(effect, vev.ToDrafter) for effect in told
        )

    assert opened(1) == ([4], True)
    assert opened(2) == ([0, 0], True)
    gate = costs.gate(2)
    while not gate.refuses:
        gate.stepped(2, 2, 0.03 if gate.open else 0.01, asked=True, had=gate.open, alone=0.0)
    core.handle(vev.ClientLeft(2), 0.0)
    assert all(opened(client) == ([0, 0], False) for client in range(3, 9))
    begun = [type(effect) for effect in core.handle(vev.ClientLeft(3), 0.0)]
    assert vev.Began in begun
    assert vev.ToDrafter not in begun, "those that wait share no step"


def test_drafts_that_a_client_has_chosen_do_not_keep_those_of_others_away():
    (core, costs), length, shut = made(9000), len(PROMPT), 0
    for rows in (1, 2, 4, 8):
        costs.record(rows, 0.01)
    core.handle(vev.DrafterJoined(DRAFTER, 9000), 0.0)
    for client, draft_n in ((1, None), (2, 2)):
        request = Request(None, PROMPT, SessionParams(SamplingParams(), 9000, draft_n=draft_n))
        core.handle(replace(OPENING, client=client, request=request), 0.0)
    for begun in range(60):
        drafts = m.Draft(SESSION + 1, length, Prefix((*PROMPT, *[4] * (length - 2))).crc, (4, 4))
        core.handle(vev.FromDrafter(DRAFTER, drafts), begun)
        step = core.next_step(begun)
        rows = [row(*[4] * len(span.ids)) if span.logits else None for span in step.spans]
        effects = core.finish(step, rows, begun, begun + 0.5)
        length += sum(
            len(one.emit.ids)
            for one in effects
            if isinstance(one, vev.Committed) and one.client == 2
        )
        shut += not costs.gate(2).open
    assert length > 150
    assert 16 < shut < 30, "it was measured without, and opened"


@pytest.mark.parametrize(("draft_n", "left"), [(None, set()), (2, {"drafter_changed"})])
def test_no_drafter_is_left_while_none_is_asked(draft_n: int | None, left: set[str]):
    """Steps that sessions share are measured without drafts first, but for those that a client has chosen."""
    (core, costs), noted = made(9000), set[str]()
    for rows in (1, 2, 4, 8):
        costs.record(rows, 0.01)
    for drafter in (DRAFTER, b"another"):
        core.handle(vev.DrafterJoined(drafter, 9000), 0.0)
    for chosen in (None, draft_n):
        request = Request(None, PROMPT, SessionParams(SamplingParams(), 9000, draft_n=chosen))
        core.handle(replace(OPENING, request=request), 0.0)
    for begun in range(20):
        step = core.next_step(begun)
        rows = [row(*[4] * len(span.ids)) if span.logits else None for span in step.spans]
        effects = core.finish(step, rows, begun, begun + 0.9)
        noted |= {effect.name for effect in effects if isinstance(effect, vev.Noted)}
    assert not costs.gate(2).open
    assert noted == left


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
    core = VerifierCore(
        TargetLimits(64, 8, frozenset({7}), 4), StepCosts(), slots, 64, max_sessions=2
    )
    for client, ids in ((1, PROMPT * 10), (2, (5, 6) * 10)):
        core.handle(replace(OPENING, client=client, ids=ids, n_prompt=20), 0.0)
        core.finish(
            core.next_step(0.0), [None] if client == 1 else EngineError("no room"), 0.0, 0.1
        )
        core.handle(vev.ClientLeft(client), 0.2)
    assert slots.snapshot().kept_sequences == 1


def seqs(step: ev.Step | ev.Wait) -> list[int]:
    """The sequences that a step has rows of."""
    return [span.seq for span in step.spans] if isinstance(step, ev.Step) else []


def test_a_session_waits_for_its_reader():
    """Steps go on without it, and with it as soon as its client reads again; alone it has none."""
    core, _ = made()
    core.handle(OPENING, 0.0)
    core.handle(replace(OPENING, client=4), 0.0)
    step = core.next_step(0.0)
    assert seqs(step) == [0, 1]
    core.handle(vev.ClientPaused(CLIENT, paused=True), 0.0)  # while a step runs
    core.finish(step, [None, None], 0.0, 0.1)
    for _ in range(2):
        step = core.next_step(0.1)
        assert seqs(step) == [1]
        core.finish(step, [row(5)], 0.1, 0.2)
    core.handle(vev.ClientPaused(CLIENT, paused=True), 0.2)
    core.handle(vev.ClientLeft(4), 0.2)
    assert core.next_step(0.2) == ev.Wait(0.1 + READER_PATIENCE)
    core.handle(vev.ClientPaused(CLIENT, paused=False), 50.0)
    assert seqs(core.next_step(50.0)) == [0]


def test_a_reader_that_never_comes_back():
    core, _ = made()
    core.handle(OPENING, 0.0)
    core.handle(vev.ClientPaused(CLIENT, paused=True), 1.0)
    wait = core.next_step(1.0)
    assert wait == ev.Wait(1.0 + READER_PATIENCE)
    assert core.handle(vev.Signal.TIME_UP, wait.until - 0.1) == []
    unread = vev.Noted("session_unread", {"session": SESSION, "seconds": READER_PATIENCE})
    assert core.handle(vev.Signal.TIME_UP, wait.until) == [
        unread,
        *ended(SESSION, CLIENT, wait.until),
        vev.Forgotten(SESSION),
    ]
    assert core.next_step(wait.until) == ev.Wait(np.inf)


@pytest.mark.parametrize("by", ["leaving", "name"])
def test_a_text_whose_reader_is_another_does_not_wait(by: str):
    """Neither one that is kept for who comes back, nor one that somebody else has asked for."""
    core, _ = made()
    core.handle(vev.DrafterJoined(DRAFTER, 64), 0.0)
    theirs = replace(
        OPENING, request=Request(None, PROMPT, PARAMS, id="text"), owner=DRAFTER, key="k"
    )
    core.handle(theirs, 0.0)
    core.handle(vev.SessionPaused(b"another", SESSION, paused=True), 0.0)
    core.handle(vev.SessionPaused(DRAFTER, SESSION + 1, paused=True), 0.0)
    assert isinstance(core.next_step(0.0), ev.Step)
    core.handle(vev.SessionPaused(DRAFTER, SESSION, paused=True), 0.0)
    core.finish(ev.Step((), (ev.Span(0, 0, (1,), logits=False),)), [None], 0.0, 0.1)
    assert isinstance(core.next_step(0.1), ev.Wait)
    if by == "leaving":
        core.handle(vev.DrafterLeft(DRAFTER, may_return=True), 0.1)
    else:
        core.handle(replace(theirs, client=9, owner=None), 0.1)
    assert isinstance(core.next_step(0.1), ev.Step)


def test_what_a_reader_takes_is_not_waited_for_drafts():
    """The time does not count as spent on them."""
    core, _ = made()
    core.handle(vev.DrafterJoined(DRAFTER, 64), 0.0)
    core.handle(OPENING, 0.0)
    core.finish(core.next_step(0.0), [None], 0.0, 0.1)
    drafts = m.Draft(SESSION, 2, Prefix(PROMPT).crc, (4, 5))
    core.handle(vev.FromDrafter(DRAFTER, drafts), 0.1)
    core.finish(core.next_step(0.1), [row(4, 5, 6)], 0.1, 0.2)
    assert isinstance(core.next_step(0.2), ev.Wait)  # for drafts
    core.handle(vev.ClientPaused(CLIENT, paused=True), 0.2)
    core.next_step(0.2)
    core.handle(vev.ClientPaused(CLIENT, paused=False), 30.0)
    assert isinstance(core.next_step(30.0), ev.Step)
    assert core.sessions[SESSION].session.times.wait < 1.0
