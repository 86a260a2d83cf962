"""The drafter's core: what comes of each event and step."""

from dataclasses import replace

from harness.sessions import crc

from specmesh.core import events as ev
from specmesh.core.drafter.core import DrafterCore
from specmesh.core.drafter.session import DraftLimits
from specmesh.core.kv_slots import KVSlots
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.statistics.snapshot import PrefixCacheSection
from specmesh.errors import EngineError
from specmesh.wire import messages as m

TEXT = (5, 6, 7)
GREEDY = SamplingParams()
ONE = ev.SessionKey(0, 1)
SPEAKS = ev.UpstreamChanged(0, 0.0, speaks=True)


def drafting(max_sessions=2, *, offloads=False):
    core = DrafterCore(
        DraftLimits(64, 16, batches=True), KVSlots(max_sessions, "cut", 64, offloads=offloads)
    )
    core.handle(SPEAKS, 0.0)
    return core


def opening(number, upstream=0, prompt=TEXT):
    key = ev.SessionKey(upstream, number)
    return ev.OpenSession(key=key, session=number, n_vocab=256, n_prompt=len(prompt), params=GREEDY)


def told(core, number, *ids, upstream=0, after=(), draft_n=4, sync=False):
    truth = (m.Sync if sync else m.Truth)(number, len(after), crc(*after), ids, draft_n)
    return core.handle(ev.FrameReceived(ev.SessionKey(upstream, number), truth), 0.0)


def opened(core, *numbers, upstream=0, prompt=TEXT, draft_n=4):
    for number in numbers:
        core.handle(opening(number, upstream, prompt), 0.0)
        told(core, number, *prompt, upstream=upstream, draft_n=draft_n, sync=True)


def finish(core, step, *tokens, at=0.0, whole=True):
    """A step of 0.2 ms; tokens: of each row its guess, its guesses, or None. whole: so many were asked for."""
    rows = [one if isinstance(one, tuple) else () if one is None else (one,) for one in tokens]
    if whole:
        asked = [
            replace(row, draft_n=max(len(said), 1))
            for row, said in zip(step.rows, rows, strict=True)
        ]
        step = replace(step, rows=tuple(asked))
    effects = core.finish(
        step, ev.DraftedRows({cut.seq: cut.length for cut in step.cuts}, rows), at, at + 2e-4
    )
    return [effect for effect in effects if not isinstance(effect, ev.WorkReport)]


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
    assert [(row.position, row.ids, row.sampler is not None) for row in step.rows] == [
        (0, TEXT, True)
    ] * 2
    assert len({row.seq for row in step.rows}) == 2
    finish(core, step, 8, 9)
    step = core.next_step(0.0)
    assert [row.ids for row in step.rows] == [(8,), (9,)]
    told(core, 1, 4, after=TEXT)
    core.handle(ev.CloseSession(ev.SessionKey(0, 2)), 0.0)
    assert finish(core, step, 70, 70) == []
    step = core.next_step(0.0)
    assert [(row.key, row.position, row.ids) for row in step.rows] == [(ONE, 3, (4,))]
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
    assert sorted(row.key for row in core.next_step(0.0).rows) == sorted(
        (other.key, ev.SessionKey(0, 3))
    )


def test_drafts_in_a_row():
    """As many in a step as are asked for, where that is short; what is heard meanwhile cuts or confirms them."""
    core = drafting()
    opened(core, 1)
    [(_, first)] = finish(core, core.next_step(0.0), 8)
    step = core.next_step(0.0)
    [row] = step.rows
    assert (first.ids, row.ids, row.draft_n) == ((8,), (8,), 3)
    [(_, sent)] = finish(core, step, (9, 10, 11))
    assert (sent.base, sent.ids) == (4, (9, 10, 11))
    step = core.next_step(0.0)
    [row] = step.rows
    assert (row.position, row.ids, row.draft_n) == (6, (11,), 5)
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
    assert step.rows[0].draft_n == 3
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
    core.handle(ev.CloseSession(ONE), 0.0)
    opened(core, 2, prompt=(9, 8, 7))
    second = core.next_step(0.0)
    finish(core, second, 8)
    assert second.rows[0].seq != first.rows[0].seq
    assert [step.offloads for step in (first, second, core.next_step(0.0))] == [
        (),
        (first.rows[0].seq,),
        (),
    ]


def test_what_others_drafted_is_not_its_own():
    """A round's drafts may be the grammar's, or of the drafter before: only those that this one made count here."""
    core = drafting()
    opened(core, 1, draft_n=0)
    [(_, learned)] = core.handle(
        ev.FrameReceived(ONE, m.Truth(1, len(TEXT), crc(*TEXT), (8, 9, 10), 0, accepted=2)), 0.0
    )
    assert (learned.accepted, learned.own) == (2, 0)
    [_, report] = core.handle(ev.CloseSession(ONE), 0.0)
    assert (report.drafted, report.accepted, report.committed) == (0, 0, 3)


def test_a_drafters_session_from_its_opening_to_its_end():
    core = drafting()
    assert core.handle(opening(1), 0.0) == []
    assert core.handle(ev.FrameReceived(ONE, m.Sync(1, 0, 0, TEXT, 2)), 0.0) == [
        (ONE, ev.Learned(TEXT, sync=True))
    ]
    first = ev.WorkReport(ended=0.5, seconds=0.5, draft_seconds=0.5, drafted=1)
    first.prefix_cache = PrefixCacheSection(0, 0, 0, 0)
    assert core.finish(core.next_step(0.0), ev.DraftedRows({}, [[8]]), 0.0, 0.5) == [
        (ONE, m.Draft(1, 3, crc(*TEXT), (8,))),
        first,
    ]
    truth = m.Truth(1, 3, crc(*TEXT), (8, 9), 2, accepted=1)
    assert core.handle(ev.FrameReceived(ONE, truth), 0.5) == [(ONE, ev.Learned((8, 9), 1, 1))]
    step = core.next_step(0.5)
    assert core.finish(step, ev.DraftedRows({}, [[4]]), 0.5, 0.75) == [
        (ONE, m.Draft(1, 5, crc(*TEXT, 8, 9), (4,)))
    ]
    last = ev.WorkReport(ended=0.75, seconds=0.25, draft_seconds=0.25, drafted=1)
    last.rounds, last.accepted, last.committed = 1, 1, 2
    last.prefix_cache = PrefixCacheSection(0, 0, 1, 5)
    assert core.handle(ev.CloseSession(ONE), 0.8) == [(ONE, ev.DraftingEnded(2, 0.75)), last]
