"""Which sequence a session gets, and that it holds what is said of it."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from specmesh.core.scheduling.kv_slots import NO_CONTENTS, KVContents, KVCopy, KVOffload, KVSlots

ROOM = 10_000


def had(made, ids, prompt=0, live=()):
    """Let a session on these ids come and go; which sequence it had."""
    seq, _ = made.acquire((*ids, 1), prompt, live)
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
    assert had(made, (*chats[0][:400], 5)) not in (first, second), "it has a copy, which is a use of the first"
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
    assert made.orders() == (KVCopy(third, first, 400),), "its cells and those of others lie among each other"
    fourth, _ = made.acquire((*chats[0][:400], 6), 0, [(third, KVContents(chats[0][:400], 0))])
    assert made.orders() == (KVCopy(fourth, third, 400),), "not of one that was offloaded"
    for seq, ids in ((second, chats[1]), (third, chats[2]), (fourth, ())):
        made.release(seq, KVContents(ids, 0) if ids else NO_CONTENTS)
    made.orders()
    assert [made.acquire((*chats[chat], 1), 0) for chat in (0, 2)] == [(first, 500), (third, 500)]
    assert made.orders() == (KVOffload(second),), "no other of those that begin together"
    for length, kinds in ((400, [KVCopy]), (200, [KVCopy, KVOffload])):  # most of its cells are in use, or few
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
        (3 * PART + 9, 2 * PART + 5, 3 * PART, 2 * PART + 5, 3 * PART - 1),  # gone on with from its own prompt on
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
        told = self.places.snapshot()
        assert told.kept_tokens <= self.room
        assert bool(self.places) == (len(self.sessions) < 3)


MACHINES = [type(f"{reuse}Machine", (Machine,), {"reuse": reuse}) for reuse in ("copied", "cut", "whole")]
for machine in MACHINES:
    machine.TestCase.settings = settings(max_examples=settings().max_examples // 2, stateful_step_count=30)
TestCopied, TestCut, TestWhole = (machine.TestCase for machine in MACHINES)
