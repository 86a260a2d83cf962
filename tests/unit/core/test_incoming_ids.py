"""Ids of an OPEN that come before it: those of one OPEN, in their order, and never too many."""

from dataclasses import replace
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmesh.core.prefix import crc_of
from specmesh.core.requests import frames_of
from specmesh.core.verifier.incoming_ids import KEPT_S, IncomingIds
from specmesh.errors import Busy, PromptTooLong, RequestError
from specmesh.wire import messages as m

TEXT = list(range(20_000))
ORDER = m.Open(ref=9, prompt="", options={}, ids=TEXT, n_prompt=12_000, name="n")
*FRAMES, OPEN = frames_of(ORDER)
MOST = 24_000


def taken(*frames, most=MOST):
    """Return ids of frames that came one second after the other."""
    incoming = IncomingIds(most)
    for now, frame in enumerate(frames):
        incoming.take(frame, float(now))
    return incoming


def test_an_open_gets_the_ids_that_came_before_it():
    assert taken(*FRAMES).complete(OPEN) == ORDER


def test_an_open_with_its_own_ids_is_left_as_it_is():
    assert taken(*FRAMES).complete(ORDER) is ORDER


def test_ids_are_for_one_open():
    incoming = taken(*FRAMES)
    incoming.complete(OPEN)
    assert len(incoming) == 0


def test_a_text_begins_anew_with_its_first_frame():
    assert taken(FRAMES[0], *FRAMES).complete(OPEN) == ORDER


first, second, third = FRAMES
INCOMPLETE = {
    "none": (),
    "no first": (second, third),
    "no middle": (first, third),
    "no last": (first, second),
    "one twice": (first, second, second, third),
    "another ref": (first, replace(second, session=8), third),
    "a wrong CRC": (first, replace(second, prefix_crc=1), third),
    "a wrong first CRC": (replace(first, prefix_crc=1), second, third),
    "another text's between": (first, second, replace(first, session=8), third),
    "one id too many": (*FRAMES, m.Ids(9, 20_000, crc_of(TEXT), (1,))),
}


@pytest.mark.parametrize("name", INCOMPLETE)
def test_ids_that_do_not_follow_each_other_are_no_text(name):
    with pytest.raises(Busy, match="not all ids"):
        taken(*INCOMPLETE[name]).complete(OPEN)


@pytest.mark.parametrize(
    ("order", "error"),
    [
        (replace(OPEN, ref=8), Busy),
        (replace(OPEN, n_ids=19_999), Busy),
        (replace(OPEN, n_ids=MOST + 1), PromptTooLong),
        (replace(OPEN, ids=[1]), RequestError),
    ],
    ids=["another ref", "another number", "more than a session can have", "in it too"],
)
def test_opens_that_the_ids_do_not_fit(order, error):
    with pytest.raises(error):
        taken(*FRAMES).complete(order)


def test_more_than_a_session_can_have_are_not_kept():
    assert len(taken(*FRAMES, most=19_999)) == 0


@pytest.mark.parametrize(("after", "left"), [(KEPT_S, 20_000), (KEPT_S + 0.1, 0)])
def test_ids_whose_open_does_not_come_are_forgotten(after, left):
    incoming = taken(*FRAMES)
    incoming.expire(2.0 + after)
    assert len(incoming) == left


def placed(ids, changes):
    """Return the frames of a short text, some of them changed."""
    frames = []
    for base, token in enumerate(ids):
        frame = m.Ids(1, base, crc_of(ids[:base]), (token,))
        frames.append(replace(frame, **changes.get(base, {})))
    return frames


numbers = st.integers(0, 3)
changes = st.fixed_dictionaries(
    {}, optional={"session": numbers, "base": numbers, "prefix_crc": numbers}
)
scripts = st.lists(
    st.builds(placed, st.lists(numbers, max_size=8), st.dictionaries(numbers, changes)), max_size=5
)


@given(scripts, st.integers(0, 6))
def test_whatever_comes_is_bounded_and_only_whole_texts_are_taken(script, most):
    """Each frame is of one id, so the newest frames since the last base of 0 are the text."""
    incoming = IncomingIds(most)
    text = []
    for frame in chain.from_iterable(script):
        if frame.base == 0:
            text = []
        text += frame.ids
        incoming.take(frame, 0.0)
        assert len(incoming) <= most
    count = len(incoming)
    if count:
        order = m.Open(ref=incoming._ref, prompt="", options={}, n_ids=count)
        assert incoming.complete(order).ids == text[-count:]
