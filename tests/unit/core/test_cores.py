"""The verifier's core and the drafter's: what comes of each event and step, as whole lists of effects. Whole texts
through them are in tests/properties."""

from dataclasses import replace
from unittest.mock import ANY

import numpy as np
import pytest
from harness.sessions import crc

from specmesh.core import events as ev
from specmesh.core import verifier_events as vev
from specmesh.core.draft_length.estimates import StepCosts
from specmesh.core.draft_session import DraftLimits
from specmesh.core.drafter import DrafterCore
from specmesh.core.prefix import Prefix
from specmesh.core.requests import Request
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.scheduling.kv_slots import KVSlots
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.core.snapshot import PrefixCacheSection
from specmesh.core.statistics import RoundCounts
from specmesh.core.verifier import VerifierCore
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
    return VerifierCore(TargetLimits(n_ctx, 8, frozenset({7}), 4), costs, slots, 8, max_sessions=2), costs


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
    assert core.handle(vev.FromDrafter(DRAFTER, m.Draft(SESSION, 2, Prefix(PROMPT).crc, (4, 5))), 0.1) == []
    step = core.next_step(0.1)
    assert step.spans == (ev.Span(0, 1, (2, 4, 5), logits=True),)
    assert core.finish(step, [row(4, 6, 6)], 0.1, 0.2) == [
        vev.ToDrafter(DRAFTER, m.Truth(SESSION, 2, Prefix(PROMPT).crc, (4, 6), 2, 1)),
        vev.Committed(SESSION, CLIENT, ev.Emit((4, 6), 1, (4, 5), (), 0), 0.2, 2, first=True),
        vev.Ran(0.1, 0.2, 3, 2),
    ]
    assert core.handle(vev.DrafterLeft(DRAFTER, may_return=True), 0.2) == []
    assert core.handle(vev.ClientLeft(CLIENT), 0.3) == [*ended(SESSION, CLIENT, 0.3), vev.Forgotten(SESSION)]
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
    theirs = replace(OPENING, request=Request(None, PROMPT, PARAMS, id="text"), owner=DRAFTER, key="k")
    began = vev.Began(CLIENT, SESSION, PROMPT, PARAMS, "text", 0.0, 0, False)
    sync = vev.ToDrafter(DRAFTER, m.Sync(SESSION, 0, 0, PROMPT, 2))
    assert core.handle(theirs, 0.0) == [vev.Noted("session_opened", ANY), began, sync]
    assert core.handle(vev.RoundTrip(DRAFTER, 0.5), 0.0) == core.handle(vev.ThreadsShared(2, 1, frozenset()), 0.0) == []
    left = vev.DrafterLeft(DRAFTER, may_return=True)
    assert core.handle(left, 1.0) == [vev.Noted("session_kept", {"session": SESSION, "seconds": 30.0})]
    core.handle(vev.DrafterJoined(DRAFTER, 64), 2.0)
    [refused] = core.handle(replace(theirs, client=4, key="another"), 2.0)
    assert isinstance(refused, vev.RequestRefused)
    resumed = vev.Noted("session_resumed", {"session": SESSION, "tokens": 0})
    assert core.handle(replace(theirs, client=4), 2.0) == [resumed, replace(began, client=4, adopted=True), sync]
    assert core.handle(vev.SessionClosed(b"another", SESSION), 2.0) == []
    done = vev.ToDrafter(DRAFTER, m.Done(SESSION, m.FinishReason.CANCELLED, 2, ANY))
    closed = core.handle(vev.SessionClosed(DRAFTER, SESSION), 2.0)
    assert closed == [*ended(SESSION, 4, 2.0), done, vev.Forgotten(SESSION)]


def test_what_is_kept_is_dropped_by_a_verifier_that_stops():
    core, _ = made()
    core.handle(vev.DrafterJoined(DRAFTER, 64), 0.0)
    core.handle(replace(OPENING, request=Request(None, PROMPT, PARAMS, id="text"), owner=DRAFTER), 0.0)
    core.handle(vev.DrafterLeft(DRAFTER, may_return=True), 0.0)
    dropped = vev.Noted("session_dropped", {"session": SESSION, "tokens": 0})
    assert core.handle(vev.Signal.STOPPING, 1.0) == [vev.Forgotten(SESSION), dropped, *ended(SESSION, None, 1.0)]
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
                core.handle(vev.FromDrafter(DRAFTER, m.Draft(one.session, len(known), Prefix(known).crc, (5, 5))), now)
        return said

    def step() -> list[m.Message]:
        nonlocal now
        begun, step = now, core.next_step(now)
        [span] = step.spans
        now += 0.01 if len(span.ids) == 1 else 0.03
        return told(core.finish(step, [row(*[4] * len(span.ids)) if span.logits else None], begun, now))

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
    assert said == [m.Opened(session, 0, 2, params.named()), m.Sync(session, 0, 0, (*PROMPT, *[4] * count), 4)]


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
        [report] = core.handle(vev.Signal.REPORT_WANTED, 0.0)
        return [one["draft_n"] for one in report.sessions], any(isinstance(effect, vev.ToDrafter) for effect in told)

    assert opened(1) == ([4], True)
    assert opened(2) == ([0, 0], True)
    gate = costs.gate(2)
    while not gate.refuses:
        gate.stepped(2, 2, 0.03 if gate.drafts else 0.01, asked=True, had=gate.drafts, alone=0.0)
    core.handle(vev.ClientLeft(2), 0.0)
    assert all(opened(client) == ([0, 0], False) for client in range(3, 9))
    begun = [type(effect) for effect in core.handle(vev.ClientLeft(3), 0.0)]
    assert (vev.Began in begun, vev.ToDrafter in begun) == (True, False), "those that wait share no step"


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
        length += sum(len(one.emit.ids) for one in effects if isinstance(one, vev.Committed) and one.client == 2)
        shut += not costs.gate(2).drafts
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
    assert (costs.gate(2).drafts, noted) == (False, left)


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


# --- the drafter's core

TEXT = (5, 6, 7)
GREEDY = SamplingParams()
SPEAKS = ev.UpstreamChanged(0, 0.0, speaks=True)


def drafting(max_sessions=2, *, offloads=False):
    core = DrafterCore(DraftLimits(64, 16, batches=True), KVSlots(max_sessions, "cut", 64, offloads=offloads))
    core.handle(SPEAKS, 0.0)
    return core


def told(core, key, *ids, after=(), draft_n=4, sync=False):
    truth = (m.Sync if sync else m.Truth)(key, len(after), crc(*after), ids, draft_n)
    return core.handle(ev.Heard(key, truth), 0.0)


def opened(core, *keys, upstream=0, prompt=TEXT, draft_n=4):
    for key in keys:
        core.handle(ev.DraftFor(key, upstream, key, 256, len(prompt), GREEDY), 0.0)
        told(core, key, *prompt, draft_n=draft_n, sync=True)


def finish(core, step, *tokens, at=0.0, whole=True):
    """A step of 0.2 ms; tokens: of each row its guess, its guesses, or None. whole: so many were asked for."""
    rows = [one if isinstance(one, tuple) else () if one is None else (one,) for one in tokens]
    if whole:
        asked = [replace(row, drafts=max(len(said), 1)) for row, said in zip(step.rows, rows, strict=True)]
        step = replace(step, rows=tuple(asked))
    effects = core.finish(step, ev.DraftedRows({cut.seq: cut.length for cut in step.cuts}, rows), at, at + 2e-4)
    return [effect for effect in effects if not isinstance(effect, ev.Worked)]


def test_a_step_is_in_the_ids_of_one_verifier():
    core = drafting()
    core.handle(replace(SPEAKS, upstream=1), 0.0)
    opened(core, 2)
    opened(core, 3, upstream=1)
    first = core.next_step(0.0)
    finish(core, first, 8)
    second = core.next_step(0.0)
    assert [len(step.rows) for step in (first, second)] == [1, 1]
    assert [first.upstream, second.upstream] == [0, 1]


def test_nothing_is_done_where_no_drafts_are_asked_for():
    """Nor before the verifier's vocabulary is known; what was told meanwhile is read at once."""
    core = drafting()
    opened(core, 1, draft_n=0)
    known = TEXT
    for token in range(10):
        told(core, 1, token, after=known, draft_n=0)
        known = (*known, token)
        assert isinstance(core.next_step(0.0), ev.Wait)
    core.handle(replace(SPEAKS, speaks=False), 0.0)
    told(core, 1, 99, after=known)
    assert isinstance(core.next_step(0.0), ev.Wait)
    core.handle(SPEAKS, 0.0)
    [row] = core.next_step(0.0).rows
    assert row.ids == (*known, 99)


def test_what_is_heard_during_a_step():
    """A row counts as far as its ids are still the session's; one of a session that has ended counts for nobody."""
    core = drafting()
    opened(core, 1, 2)
    step = core.next_step(0.0)
    assert [(row.position, row.ids, row.sampler is not None) for row in step.rows] == [(0, TEXT, True)] * 2
    assert len({row.seq for row in step.rows}) == 2
    finish(core, step, 8, 9)
    step = core.next_step(0.0)
    assert [row.ids for row in step.rows] == [(8,), (9,)]
    told(core, 1, 4, after=TEXT)
    core.handle(ev.Dropped(2), 0.0)
    assert finish(core, step, 70, 70) == []
    step = core.next_step(0.0)
    assert [(row.key, row.position, row.ids) for row in step.rows] == [(1, 3, (4,))]
    assert {cut.length for cut in step.cuts} == {3}
    told(core, 1, 5, after=(*TEXT, 4))
    assert finish(core, step, 5) == []
    [row] = core.next_step(0.0).rows
    assert (row.position, row.ids) == (4, (5,))


def test_who_is_to_blame_for_a_failed_step():
    """Each that had rows in it tries alone; only who fails so gets no more drafts."""
    core = drafting()
    opened(core, 1, 2)
    assert core.finish(core.next_step(0.0), EngineError("no"), 0.0, 0.0) == []
    step = core.next_step(0.0)
    [guilty] = step.rows
    failed = core.finish(step, EngineError("no"), 0.0, 0.0)
    assert [(key, effect.name) for key, effect in failed] == [(guilty.key, "drafting_failed")]
    step = core.next_step(0.0)
    [other] = step.rows
    assert other.key != guilty.key
    finish(core, step, 8)
    opened(core, 3)
    assert sorted(row.key for row in core.next_step(0.0).rows) == sorted((other.key, 3))


def test_drafts_in_a_row():
    """As many in a step as are asked for, where that is short; what is heard meanwhile cuts or confirms them."""
    core = drafting()
    opened(core, 1)
    [(_, first)] = finish(core, core.next_step(0.0), 8)
    step = core.next_step(0.0)
    [row] = step.rows
    assert (first.ids, row.ids, row.drafts) == ((8,), (8,), 3)
    [(_, sent)] = finish(core, step, (9, 10, 11))
    assert (sent.base, sent.ids) == (4, (9, 10, 11))
    step = core.next_step(0.0)
    [row] = step.rows
    assert (row.position, row.ids, row.drafts) == (6, (11,), 5)
    told(core, 1, 8, 9, 10, 11, 12, after=TEXT)
    [(_, sent)] = finish(core, step, (12, 13, 14), at=0.1)
    assert (sent.base, sent.ids) == (8, (13, 14))
    step = core.next_step(0.0)
    told(core, 1, 13, 4, after=(*TEXT, 8, 9, 10, 11, 12))
    assert finish(core, step, (15, 16), at=0.2) == []
    step = core.next_step(0.0)
    [cut], [row] = step.cuts, step.rows
    assert (cut.length, row.position, row.ids) == (9, 9, (4,))


def test_guesses_in_a_row_that_end():
    """Where the model has none after one of them, it has taken all in: nothing is fed twice, and all is sent."""
    core = drafting()
    opened(core, 1)
    finish(core, core.next_step(0.0), 8)
    step = core.next_step(0.0)
    assert step.rows[0].drafts == 3
    [(_, sent)] = finish(core, step, (9,), whole=False)
    assert (sent.base, sent.ids) == (4, (9,))
    assert isinstance(core.next_step(0.0), ev.Wait)
    told(core, 1, 8, 9, 10, after=TEXT)
    step = core.next_step(0.0)
    [row] = step.rows
    assert (step.cuts, row.position, row.ids) == ((), 5, (10,))


def test_a_session_for_which_drafts_are_asked_takes_the_slot_of_another():
    core = drafting(max_sessions=1)
    opened(core, 1)
    finish(core, core.next_step(0.0), 8)
    told(core, 1, 8, after=TEXT, draft_n=0)
    opened(core, 2, prompt=(9, 9, 9))
    step = core.next_step(0.0)
    assert [row.ids for row in step.rows] == [(9, 9, 9)]
    assert [cut.length for cut in step.cuts] == [0]


def test_what_an_ended_session_left_is_offloaded_before_the_next_begins():
    core = drafting(offloads=True)
    opened(core, 1)
    first = core.next_step(0.0)
    finish(core, first, 8)
    core.handle(ev.Dropped(1), 0.0)
    opened(core, 2, prompt=(9, 8, 7))
    second = core.next_step(0.0)
    finish(core, second, 8)
    assert second.rows[0].seq != first.rows[0].seq
    assert [step.offloads for step in (first, second, core.next_step(0.0))] == [(), (first.rows[0].seq,), ()]


def test_what_others_drafted_is_not_its_own():
    """A round's drafts may be the grammar's, or of the drafter before: only those that this one made count here."""
    core = drafting()
    opened(core, 1, draft_n=0)
    [(_, learned)] = core.handle(ev.Heard(1, m.Truth(1, len(TEXT), crc(*TEXT), (8, 9, 10), 0, accepted=2)), 0.0)
    assert (learned.accepted, learned.own) == (2, 0)
    [worked] = core.handle(ev.Dropped(1), 0.0)
    assert (worked.drafts, worked.accepted, worked.committed) == (0, 0, 3)


def test_a_drafters_session_from_its_opening_to_its_end():
    core, done = drafting(), m.Done(1, "stop", 5, {})
    assert core.handle(ev.DraftFor(1, 0, 1, 256, len(TEXT), GREEDY, learns=True), 0.0) == []
    assert core.handle(ev.Heard(1, m.Sync(1, 0, 0, TEXT, 2)), 0.0) == [(1, ev.Learned(TEXT, sync=True))]
    assert core.finish(core.next_step(0.0), ev.DraftedRows({}, [[8]]), 0.0, 0.5) == [
        (1, m.Draft(1, 3, crc(*TEXT), (8,))),
        ev.Worked(0.5, 0.5, 0.5, 1, prefix_cache=PrefixCacheSection(0, 0, 0, 0)),
    ]
    assert core.handle(ev.Heard(1, m.Truth(1, 3, crc(*TEXT), (8, 9), 2, 1)), 0.5) == [(1, ev.Learned((8, 9), 1, 1))]
    step = core.next_step(0.5)
    assert core.finish(step, ev.DraftedRows({}, [[4]]), 0.5, 0.75) == [(1, m.Draft(1, 5, crc(*TEXT, 8, 9), (4,)))]
    assert core.handle(ev.FollowUp(1, done), 0.8) == [(1, ev.FollowUp(1, done, 2, 0.75))]
    assert core.handle(ev.Dropped(1), 0.8) == [ev.Worked(0.75, 0.25, 0.25, 1, 1, 1, 2, PrefixCacheSection(0, 0, 1, 5))]
