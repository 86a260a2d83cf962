"""Long SYNCs on their way to a drafter: bounded, in order, and no others wait behind them."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmesh.core.verifier.outgoing_frames import (
    FRAME_BYTES,
    MOST_FRAMES,
    MOST_ON_WAY,
    SHORT_SYNC,
    OutgoingFrames,
)
from specmesh.wire import messages as m
from specmesh.wire.codec import encode

AT_ONCE = 2  # frames of the largest size that the window lets pass


def syncs(session, count, base=0, size=m.MAX_TOKENS):
    """Return the SYNC frames of a text."""
    return [m.Sync(session, base + at, 0, (1,) * size, 4) for at in range(0, count, size)]


def truth(session, base=0):
    return m.Truth(session, base, 0, (1,), 4)


TEXT = syncs(1, 100_000)
END = TEXT[-1].base + m.MAX_TOKENS


@pytest.fixture
def outgoing():
    """Frames to a drafter, of which all but AT_ONCE of a long text wait."""
    made = OutgoingFrames()
    assert put(made, *TEXT) == TEXT[:AT_ONCE]
    assert made.ping_due(0.0)
    return made


def put(outgoing, *frames):
    sent = []
    for frame in frames:
        sent += outgoing.put(frame)
    return sent


def rest(outgoing):
    """Return the frames that are sent while the drafter answers each PING."""
    sent = outgoing.acknowledged()
    for _ in range(1000):
        outgoing.ping_due(0.0)
        sent += outgoing.acknowledged()
    return sent


def test_a_frame_has_as_many_bytes_as_it_counts_for():
    assert len(encode(TEXT[0])) == FRAME_BYTES + 4 * m.MAX_TOKENS


def test_an_answer_lets_as_many_frames_pass(outgoing):
    assert outgoing.acknowledged() == TEXT[AT_ONCE : 2 * AT_ONCE]


def test_one_ping_waits_for_its_answer(outgoing):
    assert not outgoing.ping_due(0.5)


def test_a_ping_that_is_not_answered(outgoing):
    early = outgoing.expire(0.9)
    assert (early, outgoing.expire(1.0)) == ([], TEXT[AT_ONCE : 2 * AT_ONCE])


def test_other_sessions_pass(outgoing):
    others = [
        m.Opened(2, 0, 3, {}),
        *syncs(2, SHORT_SYNC, size=SHORT_SYNC),
        truth(2),
        m.Done(2, "stop", 4),
    ]
    assert put(outgoing, *others) == others


def test_frames_of_a_session_keep_their_order(outgoing):
    later = [truth(1, END), m.Nack(1, 3, 0), truth(1, END + 1), m.Done(1, "stop", 5)]
    assert put(outgoing, *later) == []
    assert rest(outgoing) == [*TEXT[AT_ONCE:], *later]


def test_sessions_whose_frames_wait_take_turns(outgoing):
    put(outgoing, *syncs(2, 100_000))
    sessions = [frame.session for frame in rest(outgoing)]
    waited = sessions[: 2 * (len(TEXT) - AT_ONCE)]
    assert all(one != other for one, other in pairwise(waited))


def test_an_answer_anew_replaces_the_text_that_waits(outgoing):
    again = syncs(1, 100_000)
    put(outgoing, truth(1, END), m.Logprobs(session=1, base=END, chosen=[0.0]), *again)
    assert rest(outgoing) == again


def test_an_answer_anew_replaces_nothing_but_text(outgoing):
    others = [m.Opened(1, 0, 3, {}), m.Nack(1, 3, 0), m.Done(1, "stop", 4)]
    again = syncs(1, 100_000)
    put(outgoing, *others, *again)
    assert rest(outgoing) == [*others, *again]


def test_a_short_answer_anew_does_not_wait(outgoing):
    short = m.Sync(1, 0, 0, (1,), 4)
    assert put(outgoing, short) == [short]
    assert rest(outgoing) == []


def test_nacks_again_and_again_let_nothing_grow(outgoing):
    for _ in range(1000):
        assert put(outgoing, *TEXT) == []
    assert rest(outgoing) == TEXT


def test_an_answer_with_log_probabilities_goes_on(outgoing):
    scores = m.Logprobs(session=1, base=END - 1, chosen=[0.0])
    more = syncs(1, 8192, base=END)
    put(outgoing, scores, *more)
    assert rest(outgoing) == [*TEXT[AT_ONCE:], scores, *more]


def test_a_session_that_moves_away_is_over_at_once(outgoing):
    moved = m.Done(1, m.FinishReason.MOVED, END)
    assert put(outgoing, truth(1, END), moved) == [moved]
    assert rest(outgoing) == []


def test_a_session_that_is_closed_costs_nothing_more(outgoing):
    outgoing.forget(1)
    assert rest(outgoing) == []


def test_a_drafter_that_does_not_keep_up(outgoing):
    put(outgoing, *[truth(1, END + at) for at in range(MOST_FRAMES - len(TEXT) + AT_ONCE)])
    assert not outgoing.full
    put(outgoing, truth(1))
    assert outgoing.full


orders = st.lists(
    st.tuples(
        st.integers(1, 3), st.sampled_from(["sync", "more", "truth", "nack", "ping", "pong"])
    ),
    max_size=60,
)


class Drafter:
    """Frames for a drafter, as they are put and as they are sent.

    ends: position after the newest id of each session. got: the same of the frames that were sent.
    on_way: bytes of long SYNCs since the newest PING that was answered.
    """

    def __init__(self):
        self.outgoing = OutgoingFrames()
        self.ends = dict.fromkeys((1, 2, 3), 0)
        self.got = dict(self.ends)
        self.unanswered = [0, 0]  # bytes before the newest PING, and after it

    def act(self, session, action):
        match action:
            case "sync":
                self.text(m.Sync(session, 0, 0, (1,) * max(self.ends[session], 1), 4))
            case "more":
                self.text(m.Sync(session, self.ends[session], 0, (1,) * 8192, 4))
            case "truth":
                self.text(truth(session, self.ends[session]))
            case "nack":
                self.sent(self.outgoing.put(m.Nack(session, 0, 0)))
            case "ping":
                if self.outgoing.ping_due(0.0):
                    self.unanswered = [sum(self.unanswered), 0]
            case "pong":
                self.unanswered[0] = 0
                self.sent(self.outgoing.acknowledged())

    def text(self, frame):
        self.ends[frame.session] = frame.base + len(frame.ids)
        self.sent(self.outgoing.put(frame))

    def sent(self, frames):
        for frame in frames:
            if isinstance(frame, m.Nack):
                continue
            assert frame.base <= self.got[frame.session], "a gap"
            self.got[frame.session] = frame.base + len(frame.ids)
            if isinstance(frame, m.Sync) and len(frame.ids) > SHORT_SYNC:
                assert sum(self.unanswered) < MOST_ON_WAY, "too much is on its way"
                self.unanswered[1] += FRAME_BYTES + 4 * len(frame.ids)


@given(orders)
def test_texts_arrive_whole_without_a_gap(script):
    drafter = Drafter()
    for session, action in script:
        drafter.act(session, action)
    for _ in range(200):
        drafter.act(1, "ping")
        drafter.act(1, "pong")
    assert drafter.got == drafter.ends
