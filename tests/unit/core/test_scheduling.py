"""Which sessions share a step, and with what rows and threads; which sequence a session gets, and that it holds what is
said of it."""

import math
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from specmesh.core import events as ev
from specmesh.core.draft_length.estimates import StepCosts
from specmesh.core.draft_length.gate import DraftBid
from specmesh.core.kv_slots import NO_CONTENTS, KVContents, KVCopy, KVOffload, KVSlots
from specmesh.core.verifier.scheduler import Scheduler, ThreadShare


class Scripted:
    def __init__(self, wants, in_hand=(), finished=None):
        self.wants, self.in_hand, self.finished = wants, tuple(in_hand), finished
        self.session = self

    def plan(self, now):
        return self.wants

    def verify(self):
        return ev.Verify(5, 1, self.in_hand)

    def bid(self, verify):
        return DraftBid((1.0,) * len(verify.drafts))


def verifying(drafts=0):
    return Scripted(ev.Verify(5, 1, tuple(range(drafts))))


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


@given(sessions, st.integers(8, 40), st.integers(1, 16))
def test_every_step(sessions, n_batch, prefill_rows):
    """Any mix: rows fit the batch, who is ready takes part, no one waits beside a verification, prefill goes on."""
    step = Scheduler(n_batch, StepCosts(), prefill_rows=prefill_rows).next_batch(sessions, now=0.0)
    ready, waiting, prefilling = (
        [key for key, session in sessions.items() if isinstance(session.wants, kind)]
        for kind in (ev.Verify, ev.Wait, ev.Prefill)
    )
    if isinstance(step, ev.Wait):
        assert not ready
        assert not prefilling
        assert step.until == min((sessions[key].wants.until for key in waiting), default=math.inf)
        return
    parts = dict(step.parts)
    assert len(parts) == len(step.parts) > 0
    assert step.rows == sum(
        len(p.ids) if isinstance(p, ev.Prefill) else 1 + len(p.drafts) for p in parts.values()
    )
    assert 0 < step.rows <= n_batch
    assert step.pure == all(isinstance(part, ev.Verify) for part in parts.values())
    verified = {key for key, part in parts.items() if isinstance(part, ev.Verify)}
    assert verified == set(ready + waiting if ready else [])
    for key in verified:
        wants = sessions[key].wants
        drafts = wants.drafts if isinstance(wants, ev.Verify) else sessions[key].in_hand
        assert parts[key].drafts == drafts[: len(parts[key].drafts)]
    filled = {key: part.ids for key, part in parts.items() if isinstance(part, ev.Prefill)}
    assert all(ids == sessions[key].wants.ids[: len(ids)] for key, ids in filled.items())
    rows = sum(map(len, filled.values()))
    others = len(ready) + len(waiting)
    share = prefill_rows * math.ceil(len(prefilling) / others) if others else n_batch
    wanted = sum(len(sessions[key].wants.ids) for key in prefilling)
    assert rows == min(n_batch - len(verified), share, wanted), "prompts come before drafts"
    assert sum(len(filled[key]) < len(sessions[key].wants.ids) for key in filled) <= 1


def test_the_oldest_and_the_shortest_prompt_in_turn():
    scheduler, prompts = (
        Scheduler(8, StepCosts(), prefill_rows=8),
        {0: prefilling(60), 1: prefilling(3)},
    )
    first = [scheduler.next_batch(prompts, 0.0).parts[0][0] for _ in range(4)]
    assert first in ([0, 1, 0, 1], [1, 0, 1, 0])


@given(
    st.lists(
        st.builds(prefilling, st.integers(1, 60), st.integers(0, 3).map(lambda cut: 16 * cut)),
        min_size=1,
    ),
    st.integers(0, 8),
    st.booleans(),
)
def test_prompts_are_cut_where_they_always_are(prompts, verifying_rows, waits):
    """With a constant width a part of a prompt ends at a multiple of `prefill_rows` or at its end, whoever is there;
    and some part of one always goes on."""
    others = {100: verifying(verifying_rows)} if verifying_rows else {}
    others |= {101: waiting()} if waits else {}
    sessions = dict(enumerate(prompts)) | others
    step = Scheduler(40, StepCosts(), prefill_rows=16, constant=True).next_batch(sessions, 0.0)
    filled = {key: part for key, part in step.parts if isinstance(part, ev.Prefill)}
    assert filled
    for key, part in filled.items():
        wants = sessions[key].wants
        assert part.ids == wants.ids[:16]
        assert part.position == wants.position


HERE = SimpleNamespace(host="h", cpu_threads=2)
ELSEWHERE = SimpleNamespace(host="other", cpu_threads=8)


def test_default_threads_follow_who_computes_here():
    share = ThreadShare(8, 8, "h", drafter=False, follows=True)
    assert share.beside([ELSEWHERE]) is None
    assert share.threads == 8
    assert share.beside([HERE, ELSEWHERE]).name == "cpu_threads"
    assert share.threads == 6
    assert share.beside([]).name == "cpu_threads"
    assert share.threads == 8


# --- sequences

ROOM = 10_000


def had(made, ids, prompt=0):
    """Let a session on these ids come and go; which sequence it had."""
    seq, _ = made.acquire((*ids, 1), prompt)
    made.release(seq, KVContents(ids, prompt))
    made.orders()
    return seq


def test_the_least_recently_used_goes():
    made = KVSlots(2, "copied", ROOM)
    chats = [tuple(range(start, start + 500)) for start in (0, 1000, 2000)]
    first, second = had(made, chats[0]), had(made, chats[1])
    assert first != second
    assert had(made, (*chats[0], 5)) == first
    assert had(made, chats[2]) == second
    made = KVSlots(3, "copied", ROOM)
    first, second = had(made, chats[0]), had(made, chats[1])
    assert had(made, (*chats[0][:400], 5)) not in (first, second), (
        "it has a copy, which is a use of the first"
    )
    assert had(made, chats[2]) == second


def test_room():
    made = KVSlots(4, "copied", 1000)
    seqs = [had(made, tuple(range(start, start + 400))) for start in (0, 1000, 2000)]
    assert made.snapshot().kept_tokens == 800
    assert made.acquire((*range(400), 1), 0)[1] == 0
    assert made.acquire((2000, 2001, *range(400)), 0)[1] == 0, "any two prompts may begin alike"
    assert made.acquire((*range(2000, 2400), 1), 0) == (seqs[2], 400)


def test_what_others_left_is_offloaded_before_the_first_session_begins():
    made = KVSlots(4, "copied", ROOM, offloads=True)
    chats = [tuple(range(start, start + 500)) for start in (0, 1000, 2000)]
    first = had(made, chats[0])
    second, _ = made.acquire((*chats[1], 1), 0)
    assert made.orders() == (KVOffload(first),)
    third, _ = made.acquire((*chats[0][:400], 5), 0)
    assert made.orders() == (KVCopy(third, first, 400),), (
        "its cells and those of others lie among each other"
    )
    fourth, _ = made.acquire((*chats[0][:400], 6), 0, [(third, KVContents(chats[0][:400], 0))])
    assert made.orders() == (KVCopy(fourth, third, 400),), "not of one that was offloaded"
    for seq, ids in ((second, chats[1]), (third, chats[2]), (fourth, ())):
        made.release(seq, KVContents(ids, 0) if ids else NO_CONTENTS)
    made.orders()
    assert [made.acquire((*chats[chat], 1), 0) for chat in (0, 2)] == [(first, 500), (third, 500)]
    assert made.orders() == (KVOffload(second),), "no other of those that begin together"
    for length, kinds in (
        (400, [KVCopy]),
        (200, [KVCopy, KVOffload]),
    ):  # most of its cells are in use, or few
        made = KVSlots(2, "copied", ROOM, offloads=True)
        first = had(made, chats[0])
        assert made.acquire((*chats[0][:length], 5), 0) == (1 - first, length)
        assert [type(order) for order in made.orders()] == kinds


PART = 512
LONG = tuple(range(4 * PART))


@pytest.mark.parametrize(
    ("held", "prompt", "ids", "begins", "found"),
    [
        (3 * PART + 9, 2 * PART + 5, 4 * PART, 3 * PART, 2 * PART),  # whole parts of both prompts
        (3 * PART + 9, 2 * PART + 5, 4 * PART, PART + 3, PART),
        (
            3 * PART + 9,
            2 * PART + 5,
            3 * PART,
            2 * PART + 5,
            3 * PART - 1,
        ),  # gone on with from its own prompt on
        (3 * PART + 9, 2 * PART + 5, 4 * PART, 2 * PART + 5, 3 * PART + 9),
        (2 * PART + 5, 2 * PART + 5, 2 * PART + 6, 2 * PART + 5, 2 * PART + 5),  # the same prompt
        (PART + 5, 2 * PART + 5, 4 * PART, 2 * PART + 5, PART),  # it broke off within its prompt
        (PART - 1, 2 * PART + 5, 4 * PART, 2 * PART + 5, 0),
    ],
)
def test_the_same_bits(held, prompt, ids, begins, found):
    """Only what a session on nothing would compute in the same way: whole parts of the prompt, and what was generated
    where that begins at the same place."""
    made = KVSlots(1, "cut", ROOM, PART)
    had(made, LONG[:held], prompt)
    assert made.acquire(LONG[:ids], begins)[1] == found


IDS = st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=4)
BLOCK = 8


class Machine(RuleBasedStateMachine):
    """Places beside an engine that carries the orders out; its steps may fail."""

    room = 12 * BLOCK

    def __init__(self):
        super().__init__()
        self.places = KVSlots(3, self.reuse, self.room)
        self.engine = [[] for _ in range(3)]
        self.sessions = {}  # seq: [ids, held]

    def _orders(self):
        orders = self.places.orders()
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

    @precondition(lambda self: bool(self.places))
    @rule(blocks=IDS, cached=st.booleans())
    def begin(self, blocks, cached):
        ids = [token for token in blocks for _ in range(BLOCK)]
        live = [(seq, KVContents(ids[:held], 0)) for seq, (ids, held) in self.sessions.items()]
        seq, held = self.places.acquire(ids, len(ids) - 1, live, cached=cached)
        assert seq not in self.sessions
        assert held < len(ids)
        assert cached or not held
        self.sessions[seq] = [ids, held]

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def step(self, data):
        """Some sessions decode a few of their ids, and some that come to nothing, which are cut off."""
        for seq in data.draw(st.sets(st.sampled_from(sorted(self.sessions)), min_size=1)):
            self._orders()
            session = self.sessions[seq]
            ids, held = session
            assert self.engine[seq] == ids[:held], "a session's sequence holds what it believes"
            wrong = [] if self.reuse == "whole" else [9] * data.draw(st.integers(0, 2))
            right = ids[held : held + data.draw(st.integers(1, 12))]
            self.engine[seq] = self.engine[seq] + right + wrong
            session[1] += len(right)
            if wrong:
                self.places.cut(seq, session[1])
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
        self.places.doubt(doubtful)
        for seq in doubtful.intersection(self.sessions):
            del self.sessions[seq]
            self.places.release(seq, NO_CONTENTS)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), keeps=st.booleans())
    def leave(self, data, keeps):
        seq = data.draw(st.sampled_from(sorted(self.sessions)))
        ids, held = self.sessions.pop(seq)
        self.places.release(seq, KVContents(ids[:held], len(ids) - 1) if keeps else NO_CONTENTS)

    @rule()
    def clear(self):
        self.places.clear()

    @invariant()
    def adds_up(self):
        """No sequence is lost, and no more is kept than there is room for."""
        assert self.places.snapshot().kept_tokens <= self.room
        assert bool(self.places) == (len(self.sessions) < 3)


MACHINES = [
    type(f"{reuse}Machine", (Machine,), {"reuse": reuse}) for reuse in ("copied", "cut", "whole")
]
for machine in MACHINES:
    machine.TestCase.settings = settings(
        max_examples=settings().max_examples // 2, stateful_step_count=30
    )
TestCopied, TestCut, TestWhole = (machine.TestCase for machine in MACHINES)
