"""The committed text on its way to a drafter: what is held back, and what one frame can count."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from specmesh.core.draft_length import MAX_COPIED
from specmesh.core.prefix import Prefix
from specmesh.core.verifier.truth_sender import IDLE_INTERVAL, TruthSender
from specmesh.wire.codec import encode
from specmesh.wire.messages import MAX_ACCEPTED

STEPS = st.lists(
    st.tuples(
        st.sampled_from([0, MAX_COPIED // 2, MAX_COPIED]),
        st.sampled_from([True, True, True, False]),
        st.sampled_from([0.0, 0.0, 0.0, IDLE_INTERVAL]),
    ),
    min_size=4,
    max_size=16,
)
"""Accepted drafts of each step, whether nothing is drafted then, and seconds since the last one."""


def truths_of(steps):
    """Return the TRUTHs after steps of so many accepted drafts each; the last one is not idle."""
    prefix = Prefix(range(5))
    pace = SimpleNamespace(draft_n=0, probing=False, round_trip=0.01)
    sender = TruthSender(7, prefix, pace)
    sender.begin()
    truths = []
    now = 0.0
    for accepted, idle, seconds in [*steps, (0, False, 0.0)]:
        base = len(prefix)
        now += seconds
        prefix.extend(range(base, base + accepted + 1))
        truths += sender.grown(base, accepted, now, idle=idle)
    return truths


@given(STEPS)
def test_every_id_is_sent_once_and_in_order(steps):
    sent = [id_ for truth in truths_of(steps) for id_ in truth.ids]
    assert sent == list(range(5, 5 + len(steps) + 1 + sum(step[0] for step in steps)))


@given(STEPS)
def test_every_accepted_draft_is_counted_once(steps):
    assert sum(truth.accepted for truth in truths_of(steps)) == sum(step[0] for step in steps)


@given(STEPS)
def test_every_truth_has_a_frame(steps):
    for truth in truths_of(steps):
        encode(truth)


@given(STEPS)
def test_every_truth_begins_where_it_says(steps):
    for truth in truths_of(steps):
        assert truth.prefix_crc == Prefix(range(truth.base)).crc


def test_drafts_that_one_frame_cannot_count_are_two():
    steps = [(0, True, IDLE_INTERVAL), *[(MAX_ACCEPTED // 2 + 1, True, 0.0)] * 2]
    counts = [truth.accepted for truth in truths_of(steps)]
    assert counts == [0, MAX_ACCEPTED // 2 + 1, MAX_ACCEPTED // 2 + 1]
