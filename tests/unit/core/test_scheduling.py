"""Steps and the sessions that share them; sequences and the sessions that get them."""

import math
from types import SimpleNamespace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from specmesh.core import events as ev
from specmesh.core.cpu_threads import ThreadShare
from specmesh.core.draft_length.bids import DraftBid
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.kv_slots import NO_CONTENTS, KVContents, KVCopy, KVOffload, KVSlots
from specmesh.core.verifier.scheduler import Batch, Scheduler

# --- steps


class Scripted:
    """A session with a fixed plan. in_hand: drafts that it has if it cannot wait."""

    def __init__(self, wants, in_hand=(), finished=None):
        self.wants = wants
        self.in_hand = tuple(in_hand)
        self.finished = finished
        self.session = self

    def plan(self, now):
        return self.wants

    def verify(self, now):
        return ev.Verify(5, 1, self.in_hand)

    def bid(self, verify):
        return DraftBid((1.0,) * len(verify.drafts))


def verifying(drafts=0):
    return Scripted(ev.Verify(5, 1, tuple(range(drafts))), range(drafts))


def waiting(until=2.0, in_hand=0):
    return Scripted(ev.Wait(until), range(in_hand))


def prefilling(ids, position=0):
    return Scripted(ev.Prefill(position, tuple(range(ids))))


sessions = st.lists(
    st.one_of(
        st.builds(verifying, st.integers(0, 16)),
        st.builds(waiting, st.floats(1, 9), st.integers(0, 16)),
        st.builds(prefilling, st.integers(1, 60)),
        st.just(Scripted(None, finished="stop")),
    ),
    max_size=8,
).map(lambda listed: dict(enumerate(listed)))
batch_sizes = st.integers(8, 40)
prefill_sizes = st.integers(1, 16)


def keys(sessions, kind):
    """The sessions that want this."""
    return [key for key, session in sessions.items() if isinstance(session.wants, kind)]


def parts_of(step, kind):
    """The parts of a step of this kind, by session."""
    return {key: part for key, part in step.parts if isinstance(part, kind)}


def next_batch(sessions, n_batch, prefill_rows):
    """The next step; examples without one are left out."""
    step = Scheduler(n_batch, StepCosts(), prefill_rows).next_batch(sessions, now=0.0)
    assume(isinstance(step, Batch))
    return step


@given(sessions, batch_sizes, prefill_sizes)
def test_nothing_is_ready_while_all_wait(sessions, n_batch, prefill_rows):
    step = Scheduler(n_batch, StepCosts(), prefill_rows).next_batch(sessions, now=0.0)
    assume(isinstance(step, ev.Wait))
    assert not keys(sessions, ev.Verify | ev.Prefill)


@given(sessions, batch_sizes, prefill_sizes)
def test_a_wait_ends_with_the_first_of_the_sessions(sessions, n_batch, prefill_rows):
    step = Scheduler(n_batch, StepCosts(), prefill_rows).next_batch(sessions, now=0.0)
    assume(isinstance(step, ev.Wait))
    ends = [sessions[key].wants.until for key in keys(sessions, ev.Wait)]
    assert step.until == min(ends, default=math.inf)


@given(sessions, batch_sizes, prefill_sizes)
def test_a_step_has_the_rows_of_its_parts(sessions, n_batch, prefill_rows):
    step = next_batch(sessions, n_batch, prefill_rows)
    rows = 0
    for _, part in step.parts:
        rows += len(part.ids) if isinstance(part, ev.Prefill) else 1 + len(part.drafts)
    assert step.rows == rows


@given(sessions, batch_sizes, prefill_sizes)
def test_a_step_fits_the_batch(sessions, n_batch, prefill_rows):
    step = next_batch(sessions, n_batch, prefill_rows)
    assert 0 < step.rows <= n_batch


@given(sessions, batch_sizes, prefill_sizes)
def test_a_session_has_one_part_of_a_step(sessions, n_batch, prefill_rows):
    step = next_batch(sessions, n_batch, prefill_rows)
    assert len(dict(step.parts)) == len(step.parts)


@given(sessions, batch_sizes, prefill_sizes)
def test_a_step_without_prompts_is_pure(sessions, n_batch, prefill_rows):
    step = next_batch(sessions, n_batch, prefill_rows)
    assert step.pure == (not parts_of(step, ev.Prefill))


@given(sessions, batch_sizes, prefill_sizes)
def test_all_join_as_soon_as_one_session_verifies(sessions, n_batch, prefill_rows):
    step = next_batch(sessions, n_batch, prefill_rows)
    expected = keys(sessions, ev.Verify | ev.Wait) if keys(sessions, ev.Verify) else []
    assert sorted(parts_of(step, ev.Verify)) == expected


@given(sessions, batch_sizes, prefill_sizes)
def test_a_step_takes_the_first_drafts_of_each_session(sessions, n_batch, prefill_rows):
    step = next_batch(sessions, n_batch, prefill_rows)
    for key, part in parts_of(step, ev.Verify).items():
        assert part.drafts == sessions[key].in_hand[: len(part.drafts)]


@given(sessions, batch_sizes, prefill_sizes)
def test_a_step_takes_the_first_ids_of_each_prompt(sessions, n_batch, prefill_rows):
    step = next_batch(sessions, n_batch, prefill_rows)
    for key, part in parts_of(step, ev.Prefill).items():
        assert part.ids == sessions[key].wants.ids[: len(part.ids)]


@given(sessions, batch_sizes, prefill_sizes)
def test_prompts_come_before_drafts(sessions, n_batch, prefill_rows):
    step = next_batch(sessions, n_batch, prefill_rows)
    prompts = keys(sessions, ev.Prefill)
    others = keys(sessions, ev.Verify | ev.Wait)
    share = prefill_rows * math.ceil(len(prompts) / len(others)) if others else n_batch
    wanted = sum(len(sessions[key].wants.ids) for key in prompts)
    room = n_batch - len(parts_of(step, ev.Verify))
    rows = sum(len(part.ids) for part in parts_of(step, ev.Prefill).values())
    assert rows == min(room, share, wanted)


@given(sessions, batch_sizes, prefill_sizes)
def test_a_step_cuts_one_prompt_at_most(sessions, n_batch, prefill_rows):
    step = next_batch(sessions, n_batch, prefill_rows)
    cut = 0
    for key, part in parts_of(step, ev.Prefill).items():
        if len(part.ids) < len(sessions[key].wants.ids):
            cut += 1
    assert cut <= 1


def test_the_oldest_and_the_shortest_prompt_in_turn():
    scheduler = Scheduler(8, StepCosts(), prefill_rows=8)
    prompts = {0: prefilling(60), 1: prefilling(3)}
    first = [scheduler.next_batch(prompts, 0.0).parts[0][0] for _ in range(4)]
    assert first in ([0, 1, 0, 1], [1, 0, 1, 0])


prompts = st.lists(
    st.builds(prefilling, st.integers(1, 60), st.integers(0, 3).map(lambda cut: 16 * cut)),
    min_size=1,
)


def constant_step(prompts, verifying_rows, waits):
    """Return the parts of prompts in a step of constant rows with other sessions."""
    sessions = dict(enumerate(prompts))
    if verifying_rows:
        sessions[100] = verifying(verifying_rows)
    if waits:
        sessions[101] = waiting()
    step = Scheduler(40, StepCosts(), prefill_rows=16, constant=True).next_batch(sessions, 0.0)
    return parts_of(step, ev.Prefill)


@given(prompts, st.integers(0, 8), st.booleans())
def test_with_constant_rows_some_prompt_always_goes_on(prompts, verifying_rows, waits):
    assert constant_step(prompts, verifying_rows, waits)


@given(prompts, st.integers(0, 8), st.booleans())
def test_with_constant_rows_prompts_are_cut_at_the_same_places(prompts, verifying_rows, waits):
    for key, part in constant_step(prompts, verifying_rows, waits).items():
        assert part == ev.Prefill(prompts[key].wants.position, prompts[key].wants.ids[:16])


# --- threads

HERE = SimpleNamespace(host="h", cpu_threads=2)
ELSEWHERE = SimpleNamespace(host="other", cpu_threads=8)


def beside(*drafters):
    """Return the threads of a verifier of 8 cores with these drafters, one after the other."""
    share = ThreadShare(8, 8, "h", drafter=False, follows=True)
    for present in drafters:
        share.beside(present)
    return share.threads


@pytest.mark.parametrize(
    ("drafters", "threads"),
    [([[ELSEWHERE]], 8), ([[HERE, ELSEWHERE]], 6), ([[HERE], []], 8)],
    ids=["another host", "this host", "this host no more"],
)
def test_default_threads_follow_the_drafters_of_this_host(drafters, threads):
    assert beside(*drafters) == threads


def test_a_change_of_threads_is_logged():
    share = ThreadShare(8, 8, "h", drafter=False, follows=True)
    assert share.beside([HERE]).name == "cpu_threads"


def test_threads_that_stay_are_not_logged():
    share = ThreadShare(8, 8, "h", drafter=False, follows=True)
    assert share.beside([ELSEWHERE]) is None


# --- sequences

ROOM = 10_000
CHATS = [tuple(range(start, start + 500)) for start in (0, 1000, 2000)]


def had(slots, ids, prompt=0):
    """Let a session on these ids come and go; its sequence."""
    slot = slots.acquire((*ids, 1), prompt)
    slots.release(slot.seq, KVContents(ids, prompt))
    slots.orders()
    return slot.seq


def found(slots, ids, prompt=0, others=()):
    """The sequence of a session on these ids, and how many of them it holds."""
    slot = slots.acquire((*ids, 1), prompt, others)
    return slot.seq, slot.length


def test_sessions_on_other_ids_get_other_sequences():
    slots = KVSlots(2, "copied", ROOM)
    assert had(slots, CHATS[0]) != had(slots, CHATS[1])


def test_a_text_that_goes_on_gets_its_sequence_again():
    slots = KVSlots(2, "copied", ROOM)
    first = had(slots, CHATS[0])
    had(slots, CHATS[1])
    assert had(slots, (*CHATS[0], 5)) == first


def test_the_least_recently_used_goes():
    slots = KVSlots(2, "copied", ROOM)
    had(slots, CHATS[0])
    second = had(slots, CHATS[1])
    had(slots, (*CHATS[0], 5))
    assert had(slots, CHATS[2]) == second


def test_a_beginning_is_copied_while_a_sequence_is_empty():
    slots = KVSlots(3, "copied", ROOM)
    taken = {had(slots, CHATS[0]), had(slots, CHATS[1])}
    assert had(slots, (*CHATS[0][:400], 5)) not in taken


def test_a_copy_is_a_use_of_its_source():
    slots = KVSlots(3, "copied", ROOM)
    had(slots, CHATS[0])
    second = had(slots, CHATS[1])
    had(slots, (*CHATS[0][:400], 5))
    assert had(slots, CHATS[2]) == second


def full():
    """Slots with room for two of the three texts that were there; the last one's sequence."""
    slots = KVSlots(4, "copied", 1000)
    for text in CHATS:
        seq = had(slots, text[:400])
    return slots, seq


def test_no_more_is_kept_than_there_is_room_for():
    slots, _ = full()
    assert slots.snapshot().kept_tokens == 800


def test_the_least_recently_used_is_emptied_for_room():
    slots, _ = full()
    assert found(slots, CHATS[0][:400])[1] == 0


def test_beginnings_that_any_two_prompts_share_are_not_reused():
    slots, _ = full()
    assert found(slots, (2000, 2001, *range(400)))[1] == 0


def test_the_newest_text_is_kept():
    slots, newest = full()
    assert found(slots, CHATS[2][:400]) == (newest, 400)


def offloading():
    """Slots of four sequences, one of which has a text; its number."""
    slots = KVSlots(4, "copied", ROOM, offloads=True)
    return slots, had(slots, CHATS[0])


def test_the_rest_is_offloaded_before_a_first_session_begins():
    slots, first = offloading()
    found(slots, CHATS[1])
    assert slots.orders() == (KVOffload(first),)


def test_nothing_is_offloaded_beside_another_session():
    slots, first = offloading()
    found(slots, CHATS[1])
    slots.orders()
    seq, _ = found(slots, CHATS[0][:400])
    assert slots.orders() == (KVCopy(seq, first, 400),)


def test_a_copy_is_of_a_sessions_sequence_rather_than_an_offloaded_one():
    slots, _ = offloading()
    third, _ = found(slots, CHATS[0][:400])
    slots.orders()
    held = KVContents(CHATS[0][:400], 0)
    fourth, _ = found(slots, CHATS[0][:400], others=[(third, held)])
    assert slots.orders() == (KVCopy(fourth, third, 400),)


def test_of_sessions_that_begin_together_none_is_offloaded():
    slots, first = offloading()
    second, _ = found(slots, CHATS[1])
    third, _ = found(slots, CHATS[2])
    slots.release(second, KVContents(CHATS[1], 0))
    slots.release(third, KVContents(CHATS[2], 0))
    slots.orders()
    together = [found(slots, CHATS[0]), found(slots, CHATS[2])]
    assert (together, slots.orders()) == ([(first, 500), (third, 500)], (KVOffload(second),))


@pytest.mark.parametrize(
    ("length", "kinds"), [(400, [KVCopy]), (200, [KVCopy, KVOffload])], ids=["most", "few"]
)
def test_a_sequence_that_shares_most_of_its_cells_is_not_offloaded(length, kinds):
    slots = KVSlots(2, "copied", ROOM, offloads=True)
    had(slots, CHATS[0])
    found(slots, CHATS[0][:length])
    assert [type(order) for order in slots.orders()] == kinds


# --- equal bits: only ids are reused that a session would read in the same parts

PART = 512
PROMPT = 2 * PART + 5  # of the session before
TEXT = tuple(range(4 * PART))


def reused(held, ids, prompt):
    """The ids that a session of `ids` ids, `prompt` of them to be read as one, finds there."""
    slots = KVSlots(1, "cut", ROOM, PART)
    had(slots, TEXT[:held], PROMPT)
    return slots.acquire(TEXT[:ids], prompt).length


def test_whole_parts_of_both_prompts_are_reused():
    assert reused(held=3 * PART + 9, ids=4 * PART, prompt=3 * PART) == 2 * PART


def test_whole_parts_of_a_shorter_prompt_are_reused():
    assert reused(held=3 * PART + 9, ids=4 * PART, prompt=PART + 3) == PART


def test_a_text_after_the_same_prompt_is_reused():
    assert reused(held=3 * PART + 9, ids=4 * PART, prompt=PROMPT) == 3 * PART + 9


def test_a_text_after_the_same_prompt_is_reused_but_for_the_last_id():
    assert reused(held=3 * PART + 9, ids=3 * PART, prompt=PROMPT) == 3 * PART - 1


def test_the_same_prompt_is_reused():
    assert reused(held=PROMPT, ids=PROMPT + 1, prompt=PROMPT) == PROMPT


def test_whole_parts_of_a_prompt_that_broke_off_are_reused():
    assert reused(held=PART + 5, ids=4 * PART, prompt=PROMPT) == PART


def test_less_than_a_part_is_not_reused():
    assert reused(held=PART - 1, ids=4 * PART, prompt=PROMPT) == 0


# --- any order of events

IDS = st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=4)
BLOCK = 8


class Machine(RuleBasedStateMachine):
    """Slots with an engine that carries the orders out; its steps may fail."""

    room = 12 * BLOCK

    def __init__(self):
        super().__init__()
        self.slots = KVSlots(3, self.reuse, self.room)
        self.engine = [[] for _ in range(3)]
        self.sessions = {}  # seq: [ids, held]

    def _orders(self):
        orders = self.slots.orders()
        for order in orders:
            held = self.engine[order.seq]
            if isinstance(order, KVCopy):
                assert self.reuse == "copied"
                assert not held
                assert 0 < order.length <= len(self.engine[order.source])
                self.engine[order.seq] = self.engine[order.source][: order.length]
            else:
                assert order.length <= len(held)
                assert order.length in (0, len(held)) or self.reuse != "whole"
                self.engine[order.seq] = held[: order.length]
        return orders

    @precondition(lambda self: bool(self.slots))
    @rule(blocks=IDS, cached=st.booleans())
    def begin(self, blocks, cached):
        ids = [token for token in blocks for _ in range(BLOCK)]
        others = [(seq, KVContents(ids[:held], 0)) for seq, (ids, held) in self.sessions.items()]
        slot = self.slots.acquire(ids, len(ids) - 1, others, cached=cached)
        assert slot.seq not in self.sessions
        assert slot.length < len(ids)
        assert cached or not slot.length
        self.sessions[slot.seq] = [ids, slot.length]

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def step(self, data):
        """Some sessions decode a few of their ids, and drafts that are cut off."""
        for seq in data.draw(st.sets(st.sampled_from(sorted(self.sessions)), min_size=1)):
            self._orders()
            session = self.sessions[seq]
            ids, held = session
            assert self.engine[seq] == ids[:held], "a session's sequence holds its ids"
            wrong = [] if self.reuse == "whole" else [9] * data.draw(st.integers(0, 2))
            right = ids[held : held + data.draw(st.integers(1, 12))]
            self.engine[seq] = self.engine[seq] + right + wrong
            session[1] += len(right)
            if wrong:
                self.slots.cut(seq, session[1])
            if session[1] == len(ids):
                session[0] = [*ids, 4]

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def fail(self, data):
        """A step fails, and leaves anything in the sequences that it had to do with."""
        doubtful = data.draw(st.sets(st.sampled_from(sorted(self.sessions)), min_size=1))
        doubtful |= {order.seq for order in self._orders()}
        for seq in doubtful:
            self.engine[seq] = self.engine[seq][: data.draw(st.integers(0, len(self.engine[seq])))]
        self.slots.doubt(doubtful)
        for seq in doubtful.intersection(self.sessions):
            del self.sessions[seq]
            self.slots.release(seq, NO_CONTENTS)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), keeps=st.booleans())
    def leave(self, data, keeps):
        seq = data.draw(st.sampled_from(sorted(self.sessions)))
        ids, held = self.sessions.pop(seq)
        self.slots.release(seq, KVContents(ids[:held], len(ids) - 1) if keeps else NO_CONTENTS)

    @rule()
    def clear(self):
        self.slots.clear()

    @invariant()
    def adds_up(self):
        """No sequence is lost, and no more is kept than there is room for."""
        assert self.slots.snapshot().kept_tokens <= self.room
        assert bool(self.slots) == (len(self.sessions) < 3)


MACHINES = [
    type(f"{reuse}Machine", (Machine,), {"reuse": reuse}) for reuse in ("copied", "cut", "whole")
]
for machine in MACHINES:
    machine.TestCase.settings = settings(
        max_examples=settings().max_examples // 2, stateful_step_count=30
    )
TestCopied, TestCut, TestWhole = (machine.TestCase for machine in MACHINES)
