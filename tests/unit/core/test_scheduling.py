"""Steps and the sessions that share them; sequences and the sessions that get them."""

import math
from array import array
from types import SimpleNamespace

import pytest
from harness.tables import rows
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from specmesh.core import events as ev
from specmesh.core.cpu_threads import ThreadShare
from specmesh.core.draft_length.bids import DraftBid
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.kv_contents import NO_CONTENTS, KVContents
from specmesh.core.kv_orders import KVCopy, KVOffload
from specmesh.core.kv_slots import KVSlots
from specmesh.core.verifier.scheduler import Batch, Scheduler

# --- steps


class Scripted:
    """A session with a fixed plan. in_hand: drafts that it has if it cannot wait."""

    def __init__(self, wants, in_hand=(), finished=None):
        self.wants = wants
        self.in_hand = tuple(in_hand)
        self.finished = finished
        self.session = self

    def plan(self, now, *, lone=False):
        return self.wants

    def verify(self):
        return ev.Verify(5, 1, self.in_hand)

    def bid(self, verify):
        return DraftBid((1.0,) * len(verify.drafts))


def verifying(drafts=0):
    return Scripted(ev.Verify(5, 1, tuple(range(drafts))), range(drafts))


def waiting(until=2.0, in_hand=0):
    return Scripted(ev.Wait(until), range(in_hand))


def prefilling(ids, position=0):
    return Scripted(ev.Prefill(position, tuple(range(ids))))


IDLE = [
    st.builds(waiting, st.floats(1, 9), st.integers(0, 16)),
    st.just(Scripted(None, finished="stop")),
]
READY = [
    st.builds(verifying, st.integers(0, 16)),
    st.builds(prefilling, st.integers(1, 60)),
]


def stepped(sessions, n_batch, prefill_rows):
    """Return sessions with the next step of their scheduler."""
    step = Scheduler(n_batch, StepCosts(), prefill_rows).next_batch(sessions, now=0.0)
    return SimpleNamespace(sessions=sessions, n_batch=n_batch, prefill_rows=prefill_rows, step=step)


def turns_of(kinds):
    """Return a strategy of turns with up to eight sessions of these kinds."""
    sessions = st.lists(st.one_of(kinds), max_size=8).map(lambda listed: dict(enumerate(listed)))
    return st.builds(stepped, sessions, n_batch=st.integers(8, 40), prefill_rows=st.integers(1, 16))


turns = turns_of(IDLE + READY)
batches = given(turns.filter(lambda turn: isinstance(turn.step, Batch)))


def keys(sessions, kind):
    """The sessions that want this."""
    return [key for key, session in sessions.items() if isinstance(session.wants, kind)]


def parts_of(step, kind):
    """The parts of a step of this kind, by session."""
    return {key: part for key, part in step.parts if isinstance(part, kind)}


@given(turns)
def test_all_wait_only_while_nothing_is_ready(turn):
    ready = keys(turn.sessions, ev.Verify | ev.Prefill)
    assert isinstance(turn.step, ev.Wait) == (not ready)


@given(turns_of(IDLE))
def test_a_wait_ends_with_the_first_of_the_sessions(turn):
    ends = [turn.sessions[key].wants.until for key in keys(turn.sessions, ev.Wait)]
    assert turn.step.until == min(ends, default=math.inf)


@batches
def test_a_step_fits_the_batch(turn):
    """A session has one part of it."""
    width = 0
    for part in dict(turn.step.parts).values():
        width += len(part.ids) if isinstance(part, ev.Prefill) else 1 + len(part.drafts)
    assert 0 < turn.step.rows == width <= turn.n_batch


@batches
def test_a_step_without_prompts_is_pure(turn):
    assert turn.step.pure == (not parts_of(turn.step, ev.Prefill))


@batches
def test_all_join_as_soon_as_one_session_verifies(turn):
    expected = []
    if keys(turn.sessions, ev.Verify):
        expected = keys(turn.sessions, ev.Verify | ev.Wait)
    assert sorted(parts_of(turn.step, ev.Verify)) == expected


@batches
def test_a_step_takes_the_first_drafts_of_each_session(turn):
    for key, part in parts_of(turn.step, ev.Verify).items():
        assert part.drafts == turn.sessions[key].in_hand[: len(part.drafts)]


@batches
def test_a_step_takes_the_first_ids_of_prompts_and_cuts_one_at_most(turn):
    cut = 0
    for key, part in parts_of(turn.step, ev.Prefill).items():
        ids = turn.sessions[key].wants.ids
        assert part.ids == ids[: len(part.ids)]
        cut += part.ids != ids
    assert cut <= 1


@batches
def test_prompts_come_before_drafts(turn):
    prompts = keys(turn.sessions, ev.Prefill)
    others = keys(turn.sessions, ev.Verify | ev.Wait)
    share = turn.n_batch
    if others:
        share = turn.prefill_rows * math.ceil(len(prompts) / len(others))
    wanted = sum(len(turn.sessions[key].wants.ids) for key in prompts)
    room = turn.n_batch - len(parts_of(turn.step, ev.Verify))
    read = sum(len(part.ids) for part in parts_of(turn.step, ev.Prefill).values())
    assert read == min(room, share, wanted)


N_BATCH = 40


def reading(lengths, verifies, constant=False):
    """Let prompts of these lengths be read; yield the ids read of each after each step."""
    scheduler = Scheduler(N_BATCH, StepCosts(), prefill_rows=8, constant=constant)
    sessions = {}
    if verifies:
        sessions[-1] = verifying()
    read = dict.fromkeys(range(len(lengths)), 0)
    while any(read[key] < length for key, length in enumerate(lengths)):
        for key, length in enumerate(lengths):
            sessions[key] = prefilling(length - read[key], read[key])
            if read[key] == length:
                del sessions[key]
        for key, part in parts_of(scheduler.next_batch(sessions, 0.0), ev.Prefill).items():
            read[key] += len(part.ids)
        yield dict(read)


lengths = st.lists(st.integers(1, 400), min_size=1, max_size=6)


@given(lengths, st.booleans(), st.booleans())
def test_long_prompts_advance_alike(lengths, verifies, constant):
    """None is ahead of another by more than a turn and a step, while both need more than a turn."""
    for read in reading(lengths, verifies, constant):
        long = [key for key, length in enumerate(lengths) if length - read[key] > N_BATCH]
        ahead = [read[key] for key in long]
        assert not long or max(ahead) - min(ahead) < 2 * N_BATCH


@given(lengths, st.booleans())
def test_a_short_prompt_waits_for_no_turns_of_long_ones(lengths, verifies):
    """It begins one of the first two steps."""
    short = len(lengths)
    steps = reading([*(length + N_BATCH for length in lengths), 8], verifies)
    read = [next(steps)[short], next(steps)[short]]
    assert 8 in read


def test_short_prompts_again_and_again_do_not_hold_up_a_long_one():
    scheduler = Scheduler(N_BATCH, StepCosts(), prefill_rows=8)
    read = 0
    for key in range(1, 7):
        sessions = {0: prefilling(400, read), key: prefilling(N_BATCH)}
        parts = parts_of(scheduler.next_batch(sessions, 0.0), ev.Prefill)
        if 0 in parts:
            read += len(parts[0].ids)
    assert read == 3 * N_BATCH


@pytest.mark.parametrize("others", [0, 1])
def test_a_prompt_bounds_the_rows_of_all(others):
    bounding = Scripted(ev.Prefill(0, tuple(range(30)), most_rows=12))
    sessions = {0: prefilling(30), 1: bounding}
    for key in range(others):
        sessions[2 + key] = verifying()
    step = Scheduler(N_BATCH, StepCosts(), prefill_rows=16).next_batch(sessions, 0.0)
    assert sum(part.rows for part in parts_of(step, ev.Prefill).values()) == 12


@pytest.mark.parametrize(("constant", "ids", "last"), [(True, 8, None), (False, 12, 5)])
def test_only_the_end_of_a_prompt_chooses_a_token(constant, ids, last):
    scheduler = Scheduler(N_BATCH, StepCosts(), prefill_rows=8, constant=constant)
    prompt = Scripted(ev.Prefill(0, tuple(range(12)), last=5))
    part = parts_of(scheduler.next_batch({0: prompt}, 0.0), ev.Prefill)[0]
    assert (len(part.ids), part.last) == (ids, last)


prompts = st.lists(
    st.builds(prefilling, st.integers(1, 60), st.integers(0, 3).map(lambda cut: 16 * cut)),
    min_size=1,
)


@given(prompts, st.integers(0, 8), st.booleans())
def test_with_constant_rows_prompts_are_cut_at_the_same_places(prompts, verifying_rows, waits):
    """Some prompt always goes on."""
    sessions = dict(enumerate(prompts))
    if verifying_rows:
        sessions[100] = verifying(verifying_rows)
    if waits:
        sessions[101] = waiting()
    step = Scheduler(40, StepCosts(), prefill_rows=16, constant=True).next_batch(sessions, 0.0)
    parts = parts_of(step, ev.Prefill)
    assert parts
    for key, part in parts.items():
        assert part == ev.Prefill(prompts[key].wants.position, prompts[key].wants.ids[:16])


# --- threads

HERE = SimpleNamespace(host="h", cpu_threads=2)
ELSEWHERE = SimpleNamespace(host="other", cpu_threads=8)


@pytest.mark.parametrize(
    ("drafters", "threads", "logged"),
    [([[ELSEWHERE]], 8, False), ([[HERE, ELSEWHERE]], 6, True), ([[HERE], []], 8, True)],
    ids=["another host", "this host", "this host no more"],
)
def test_default_threads_follow_the_drafters_of_this_host(drafters, threads, logged):
    """A change is logged."""
    share = ThreadShare(8, 8, "h", drafter=False, follows=True)
    for present in drafters:
        noted = share.beside(present)
    assert (share.threads, noted is not None) == (threads, logged)


def test_a_step_takes_only_its_part_of_a_long_prompt():
    """Nothing is made of the rest of the prompt: there are many steps."""
    ids = array("i", range(100_000))
    [(_, part)] = (
        Scheduler(16, StepCosts(), 8).next_batch({1: Scripted(ev.Prefill(0, ids))}, 0.0).parts
    )
    assert part.ids == tuple(range(16))


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


def test_a_text_that_goes_on_gets_its_sequence_again():
    slots = KVSlots(2, "copied", ROOM)
    first = had(slots, CHATS[0])
    had(slots, CHATS[1])
    assert had(slots, (*CHATS[0], 5)) == first


@pytest.mark.parametrize(("count", "length"), [(2, 500), (3, 400)], ids=["read on", "copied"])
def test_the_least_recently_used_goes(count, length):
    """A copy is a use of its source."""
    slots = KVSlots(count, "copied", ROOM)
    had(slots, CHATS[0])
    second = had(slots, CHATS[1])
    had(slots, (*CHATS[0][:length], 5))
    assert had(slots, CHATS[2]) == second


def test_a_beginning_is_copied_while_a_sequence_is_empty():
    slots = KVSlots(3, "copied", ROOM)
    taken = {had(slots, CHATS[0]), had(slots, CHATS[1])}
    assert had(slots, (*CHATS[0][:400], 5)) not in taken


def test_the_newest_texts_are_kept_for_which_there_is_room():
    """Beginnings that any two prompts share are not reused."""
    slots = KVSlots(4, "copied", 1000)
    for text in CHATS:
        newest = had(slots, text[:400])
    assert slots.snapshot().kept_tokens == 800
    assert found(slots, CHATS[2][:400]) == (newest, 400)
    for ids in (CHATS[0][:400], (2000, 2001, *range(400))):
        assert found(slots, ids)[1] == 0


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
    assert [*map(type, slots.orders())] == kinds


# --- equal bits: only ids are reused that a session would read in the same parts

PART = 512
PROMPT = 2 * PART + 5  # of the session before
TEXT = tuple(range(4 * PART))


REUSED = dict(
    rows("""
    ["whole parts of both prompts", [1545, 2048, 1536, 1024]]
    ["of a shorter prompt", [1545, 2048, 515, 512]]
    ["a text after the prompt", [1545, 2048, 1029, 1545]]
    ["but for its last id", [1545, 1536, 1029, 1535]]
    ["the same prompt", [1029, 1030, 1029, 1029]]
    ["of a prompt that broke off", [517, 2048, 1029, 512]]
    ["less than a part", [511, 2048, 1029, 0]]
    """)
)


@pytest.mark.parametrize(("held", "ids", "prompt", "reused"), REUSED.values(), ids=REUSED)
def test_only_ids_that_are_read_in_the_same_parts_are_reused(held, ids, prompt, reused):
    """A session of `ids` ids, `prompt` of them to be read as one, finds so many of those held."""
    slots = KVSlots(1, "cut", ROOM, PART)
    had(slots, TEXT[:held], PROMPT)
    assert slots.acquire(TEXT[:ids], prompt).length == reused


# --- any order of events

IDS = st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=4)
BLOCK = 8


occupied = precondition(lambda self: self.sessions)


class Machine(RuleBasedStateMachine):
    """Slots with an engine that carries the orders out; its steps may fail."""

    room = 12 * BLOCK

    def __init__(self):
        super().__init__()
        self.slots = KVSlots(3, self.reuse, self.room)
        self.engine = [[], [], []]
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

    @occupied
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

    @occupied
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

    @occupied
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


@pytest.mark.parametrize("reuse", ["copied", "cut", "whole"])
def test_events_in_any_order(reuse):
    machine = type("AnyMachine", (Machine,), {"reuse": reuse})
    examples = settings().max_examples // 2
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=30)
    )
