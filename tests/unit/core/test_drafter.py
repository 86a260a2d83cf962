"""The drafter's core: the effects of each event and step."""

from dataclasses import replace

from harness.sessions import crc

from specmesh.core import events as ev
from specmesh.core.drafter.core import DrafterCore
from specmesh.core.drafter.session import DraftLimits
from specmesh.core.drafter.window import Windows, slack
from specmesh.core.kv_orders import KVOffload
from specmesh.core.kv_slots import KVSlots
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.statistics.snapshot import PrefixCacheSection
from specmesh.errors import EngineError
from specmesh.wire import messages as m

TEXT = (5, 6, 7)
GREEDY = SamplingParams()
ONE = ev.SessionKey(0, 1)
TWO = ev.SessionKey(0, 2)
THREE = ev.SessionKey(0, 3)
SPEAKS = ev.UpstreamChanged(0, 0.0, speaks=True)


def drafting(max_sessions=2, *, offloads=False):
    limits = DraftLimits(Windows(n_ctx=64), 16, batches=True)
    slots = KVSlots(max_sessions, "cut", 64, offloads=offloads)
    core = DrafterCore(limits, slots)
    core.handle(SPEAKS, 0.0)
    return core


def opening(number, upstream=0, prompt=TEXT):
    key = ev.SessionKey(upstream, number)
    return ev.OpenSession(key=key, session=number, n_vocab=256, n_prompt=len(prompt), params=GREEDY)


def receive(core, message, upstream=0, at=0.0):
    key = ev.SessionKey(upstream, message.session)
    return core.handle(ev.FrameReceived(key, message), at)


def told(core, number, ids, *, after=(), draft_n=4):
    return receive(core, m.Truth(number, len(after), crc(*after), ids, draft_n))


def opened(core, *numbers, upstream=0, prompt=TEXT, draft_n=4):
    for number in numbers:
        core.handle(opening(number, upstream, prompt), 0.0)
        receive(core, m.Sync(number, 0, crc(), prompt, draft_n), upstream)


def drafted(core, step, *drafts, at=0.0):
    """Finish a step after 0.2 ms with drafts for each row; return the effects but for reports."""
    cuts = {cut.seq: cut.length for cut in step.cuts}
    effects = core.finish(step, ev.DraftedRows(cuts, list(drafts)), at, at + 2e-4)
    return [effect for effect in effects if not isinstance(effect, ev.WorkReport)]


def finish(core, step, *drafts, at=0.0):
    """Finish a step of which as many drafts were asked for as each row has."""
    rows = tuple(
        row._replace(draft_n=len(tokens)) for row, tokens in zip(step.rows, drafts, strict=True)
    )
    return drafted(core, step._replace(rows=rows), *drafts, at=at)


def next_row(core):
    """Return the row of the next step, which has no other."""
    [row] = core.next_step(0.0).rows
    return row


def assert_waits(core):
    assert isinstance(core.next_step(0.0), ev.Wait)


def test_a_step_is_in_the_ids_of_one_verifier():
    core = drafting()
    core.handle(replace(SPEAKS, upstream=1), 0.0)
    opened(core, 2)
    opened(core, 3, upstream=1)
    for upstream in (0, 1):
        step = core.next_step(0.0)
        assert step.upstream == upstream
        assert len(step.rows) == 1
        finish(core, step, (8,))


def test_nothing_is_done_where_no_drafts_are_asked_for():
    """Nor before the verifier's vocabulary is known; ids that came meanwhile are read at once."""
    core = drafting()
    opened(core, 1, draft_n=0)
    known = TEXT
    for token in range(10):
        told(core, 1, (token,), after=known, draft_n=0)
        known = (*known, token)
        assert_waits(core)
    core.handle(replace(SPEAKS, speaks=False), 0.0)
    told(core, 1, (99,), after=known)
    assert_waits(core)
    core.handle(SPEAKS, 0.0)
    assert next_row(core).ids == (*known, 99)


def test_events_during_a_step():
    """A row counts as far as its ids are still the session's; an ended session's counts not."""
    core = drafting()
    opened(core, 1, 2)
    finish(core, core.next_step(0.0), (8,), (9,))
    step = core.next_step(0.0)
    told(core, 1, (4,), after=TEXT)
    core.handle(ev.CloseSession(TWO), 0.0)
    assert finish(core, step, (70,), (70,)) == []
    step = core.next_step(0.0)
    [row] = step.rows
    assert row.key == ONE
    assert row.position == 3
    assert row.ids == (4,)
    assert {cut.length for cut in step.cuts} == {3}
    told(core, 1, (5,), after=(*TEXT, 4))
    assert finish(core, step, (5,)) == []
    row = next_row(core)
    assert row.position == 4
    assert row.ids == (5,)


def test_the_session_that_fails_a_step():
    """Each session of the step is tried by itself; only one that fails so is drafted no more."""
    core = drafting()
    opened(core, 1, 2)
    failure = EngineError("no")
    assert core.finish(core.next_step(0.0), failure, 0.0, 0.0) == []
    step = core.next_step(0.0)
    [guilty] = step.rows
    [(key, effect)] = core.finish(step, failure, 0.0, 0.0)
    assert key == guilty.key
    assert effect.name == "drafting_failed"
    step = core.next_step(0.0)
    [other] = step.rows
    assert other.key != guilty.key
    finish(core, step, (8,))
    opened(core, 3)
    keys = [row.key for row in core.next_step(0.0).rows]
    assert sorted(keys) == sorted([other.key, THREE])


def test_drafts_in_a_row():
    """A step has as many as are asked for, if few; truths meanwhile cut or confirm them."""
    core = drafting()
    opened(core, 1)
    [(_, first)] = finish(core, core.next_step(0.0), (8,))
    assert first.ids == (8,)
    step = core.next_step(0.0)
    [row] = step.rows
    assert row.ids == (8,)
    assert row.draft_n == 3
    [(_, sent)] = finish(core, step, (9, 10, 11))
    assert sent.base == 4
    assert sent.ids == (9, 10, 11)
    step = core.next_step(0.0)
    [row] = step.rows
    assert row.position == 6
    assert row.ids == (11,)
    assert row.draft_n == 5
    told(core, 1, (8, 9, 10, 11, 12), after=TEXT)
    [(_, sent)] = finish(core, step, (12, 13, 14), at=0.1)
    assert sent.base == 8
    assert sent.ids == (13, 14)
    step = core.next_step(0.0)
    told(core, 1, (13, 4), after=(*TEXT, 8, 9, 10, 11, 12))
    assert finish(core, step, (15, 16), at=0.2) == []
    step = core.next_step(0.0)
    [cut] = step.cuts
    [row] = step.rows
    assert cut.length == 9
    assert row.position == 9
    assert row.ids == (4,)


def test_drafts_in_a_row_that_end():
    """A model that has none after one of them has read it: nothing is fed twice, all is sent."""
    core = drafting()
    opened(core, 1)
    finish(core, core.next_step(0.0), (8,))
    step = core.next_step(0.0)
    assert step.rows[0].draft_n == 3
    [(_, sent)] = drafted(core, step, (9,))
    assert sent.base == 4
    assert sent.ids == (9,)
    assert_waits(core)
    told(core, 1, (8, 9, 10), after=TEXT)
    step = core.next_step(0.0)
    [row] = step.rows
    assert step.cuts == ()
    assert row.position == 5
    assert row.ids == (10,)


def test_a_session_for_which_drafts_are_asked_takes_the_slot_of_another():
    core = drafting(max_sessions=1)
    opened(core, 1)
    finish(core, core.next_step(0.0), (8,))
    told(core, 1, (8,), after=TEXT, draft_n=0)
    opened(core, 2, prompt=(9, 9, 9))
    step = core.next_step(0.0)
    [row] = step.rows
    [cut] = step.cuts
    assert row.ids == (9, 9, 9)
    assert cut.length == 0


def test_an_ended_sessions_slot_is_offloaded_before_the_next_begins():
    core = drafting(offloads=True)
    opened(core, 1)
    first = core.next_step(0.0)
    finish(core, first, (8,))
    core.handle(ev.CloseSession(ONE), 0.0)
    opened(core, 2, prompt=(9, 8, 7))
    second = core.next_step(0.0)
    finish(core, second, (8,))
    left = first.rows[0].seq
    assert second.rows[0].seq != left
    assert first.offloads == ()
    assert second.offloads == (KVOffload(left),)
    assert core.next_step(0.0).offloads == ()


def test_drafts_of_others_are_not_its_own():
    """Count only this drafter's: a round's may be the grammar's, or of the drafter before."""
    core = drafting()
    opened(core, 1, draft_n=0)
    truth = m.Truth(1, len(TEXT), crc(*TEXT), (8, 9, 10), 0, accepted=2)
    [(_, learned)] = receive(core, truth)
    assert learned.accepted == 2
    assert learned.own == 0
    [_, report] = core.handle(ev.CloseSession(ONE), 0.0)
    assert report.draft_tokens == 0
    assert report.accepted == 0
    assert report.committed == 3


def test_a_drafters_session_from_its_opening_to_its_end():
    core = drafting()
    assert core.handle(opening(1), 0.0) == []
    learned = ev.Learned(TEXT, sync=True)
    assert receive(core, m.Sync(1, 0, 0, TEXT, 2)) == [(ONE, learned)]

    report = ev.WorkReport(ended=0.5, seconds=0.5, draft_seconds=0.5, draft_tokens=1, read=3)
    report.prefix_cache = PrefixCacheSection(0, 0, 0, 0)
    draft = m.Draft(1, 3, crc(*TEXT), (8,))
    rows = ev.DraftedRows({}, [[8]])
    assert core.finish(core.next_step(0.0), rows, 0.0, 0.5) == [(ONE, draft), report]

    truth = m.Truth(1, 3, crc(*TEXT), (8, 9), 2, accepted=1)
    learned = ev.Learned((8, 9), 1, 1)
    assert receive(core, truth, at=0.5) == [(ONE, learned)]

    draft = m.Draft(1, 5, crc(*TEXT, 8, 9), (4,))
    rows = ev.DraftedRows({}, [[4]])
    assert core.finish(core.next_step(0.5), rows, 0.5, 0.75) == [(ONE, draft)]

    report = ev.WorkReport(ended=0.75, seconds=0.25, draft_seconds=0.25, draft_tokens=1, read=2)
    report.rounds = 1
    report.accepted = 1
    report.committed = 2
    report.prefix_cache = PrefixCacheSection(0, 0, 1, 5)
    ended = ev.DraftingEnded(2, 0.75)
    assert core.handle(ev.CloseSession(ONE), 0.8) == [(ONE, ended), report]


# --- windows

SIZE = 64
LONG = tuple(index % 250 for index in range(1000))


N_CTX = SIZE + slack(SIZE)


def sequences(max_sessions=1, spares=2):
    """Return the sequences of a draft model that reads windows."""
    return KVSlots(max_sessions, "cut", N_CTX, guests=spares, n_ctx=N_CTX)


def windowed(slots=None, *, spares=2, endless=False):
    """Return a core whose draft model reads windows of SIZE ids, behind a BOS."""
    windows = Windows(n_ctx=N_CTX, size=SIZE, bos=1, spares=spares, endless=endless)
    slots = slots or sequences(spares=spares)
    core = DrafterCore(DraftLimits(windows, 16), slots)
    core.handle(SPEAKS, 0.0)
    return core


def work(core, until=lambda row: row.sampler is not None):
    """Run steps, each draft being a 7, until a row; return that row and the ids read before it."""
    read = 0
    while True:
        step = core.next_step(0.0)
        if isinstance(step, ev.Wait):
            return None, read
        row = step.rows[0] if step.rows else None
        if row is not None:
            read += len(row.ids)
        drafts = [(7,) * row.draft_n if row.sampler is not None else () for row in step.rows]
        drafted(core, step, *drafts)
        if row is not None and until(row):
            return row, read


def generated(core, number, text, count):
    """Have the verifier commit so many ids, one a round, which are the drafts; return the text."""
    for _ in range(count):
        work(core, until=lambda _: False)
        told(core, number, (7,), after=text)
        text = (*text, 7)
    work(core, until=lambda _: False)
    return text


def test_a_late_drafter_reads_one_window():
    core = windowed()
    opened(core, 1, prompt=LONG)
    row, read = work(core)
    assert read == SIZE // 2
    assert row.text_position + len(row.ids) == 1000
    assert row.text_position - row.position == 1000 - SIZE // 2 - 1


def test_a_window_begins_with_bos():
    core = windowed()
    opened(core, 1, prompt=LONG)
    row = next_row(core)
    assert (row.position, row.bos, row.text_position) == (0, 1, 1000 - SIZE // 2)


def test_the_next_window_takes_over():
    """The text goes on in another sequence, and none of its rounds waits."""
    core = windowed()
    opened(core, 1, prompt=LONG)
    first = next_row(core).seq
    text = generated(core, 1, LONG, 40)
    session = core.sessions()[ONE]
    assert session.reading.slot.seq != first
    assert session.reading.slot.end >= len(text)
    assert session.reading.slot.start > 1000 - SIZE // 2
    assert core.windows().takeovers == 1
    assert core.windows().held_up == 0


def test_a_text_of_thousands_never_waits():
    core = windowed()
    opened(core, 1, prompt=LONG)
    generated(core, 1, LONG, 400)
    assert core.windows().takeovers > 8
    assert core.windows().held_up == 0


def test_the_next_turn_goes_on_in_the_window():
    slots = sequences()
    core = windowed(slots)
    opened(core, 1, prompt=LONG)
    text = generated(core, 1, LONG, 5)
    core.handle(ev.CloseSession(ONE), 0.0)
    opened(core, 2, prompt=(*text, 8, 8, 8))
    _, read = work(core)
    assert read == 3
    assert slots.snapshot().hits == 1


def test_a_window_of_another_text_is_not_gone_on_in():
    core = windowed()
    opened(core, 1, prompt=LONG)
    generated(core, 1, LONG, 5)
    core.handle(ev.CloseSession(ONE), 0.0)
    opened(core, 2, prompt=(9, *LONG[1:], 7, 7, 7, 7, 7, 8))
    _, read = work(core)
    assert read == SIZE // 2


def test_sessions_share_the_spare_sequences():
    """Where there is one, a session waits for that of another, and begins anew in its own."""
    slots = sequences(2, spares=1)
    core = windowed(slots, spares=1)
    opened(core, 1, 2, prompt=LONG)
    texts = {1: LONG, 2: LONG}
    for _ in range(60):
        for number in (1, 2):
            texts[number] = generated(core, number, texts[number], 1)
    assert core.windows().takeovers >= 2
    assert slots.free == 1


def test_a_model_without_end_reads_a_window_and_goes_on():
    core = windowed(endless=True, spares=0)
    opened(core, 1, prompt=LONG)
    _, read = work(core)
    assert read == SIZE
    generated(core, 1, LONG, 300)
    assert core.windows().takeovers == 0
    assert core.sessions()[ONE].reading.slot.start == 1000 - SIZE


def test_a_window_without_a_spare_sequence_begins_anew():
    core = windowed(spares=0)
    opened(core, 1, prompt=LONG)
    text = generated(core, 1, LONG, 200)
    assert core.sessions()[ONE].reading.slot.end >= len(text)


def test_a_session_that_heard_nothing_for_long_begins_a_new_window():
    core = windowed()
    opened(core, 1, prompt=LONG)
    work(core)
    more = LONG[::-1]
    receive(core, m.Sync(1, 1000, crc(*LONG), more, 4))
    _, read = work(core)
    assert read == SIZE // 2


def test_a_text_that_is_corrected_before_its_window_is_read_anew():
    core = windowed()
    opened(core, 1, prompt=LONG)
    work(core)
    other = LONG[500:400:-1]
    receive(core, m.Sync(1, 500, crc(*LONG[:500]), (*other, *LONG), 4))
    row, read = work(core)
    assert read == SIZE // 2
    assert row.text_position + len(row.ids) == 1600
