"""Parts of an OPEN that come before it: those of one OPEN, in their order, and never too many."""

from dataclasses import replace
from itertools import chain

import pytest
from harness.long_opens import frames_of, incoming_open
from hypothesis import given
from hypothesis import strategies as st

from specmesh.core.prefix import crc_of
from specmesh.core.verifier.incoming_open import IncomingOpen
from specmesh.errors import Busy, PromptTooLong, RequestError
from specmesh.wire import messages as m

TEXT = list(range(20_000))
ORDER = m.Open(ref=9, prompt="", options={}, ids=TEXT, n_prompt=12_000, name="n")
*FRAMES, OPEN = frames_of(ORDER)
MOST = 24_000


def taken(*frames, most=MOST):
    """Return ids of frames that came one second after the other."""
    incoming = incoming_open(most)
    for now, frame in enumerate(frames):
        take(incoming, frame, float(now))
    return incoming


def take(incoming, frame, now):
    if isinstance(frame, m.Ids):
        incoming.take_ids(frame, now)
    else:
        incoming.take_body(frame, now)


def test_an_open_with_its_own_ids_is_left_as_it_is():
    assert taken(*FRAMES).complete(ORDER) is ORDER


def test_ids_are_for_one_open():
    incoming = taken(*FRAMES)
    incoming.complete(OPEN)
    assert incoming.n_ids == 0


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
    assert taken(*FRAMES, most=19_999).n_ids == 0


@pytest.mark.parametrize(("after", "left"), [(5.0, 20_000), (5.1, 0)])
def test_ids_whose_open_does_not_come_are_forgotten(after, left):
    incoming = taken(*FRAMES)
    incoming.expire(2.0 + after)
    assert incoming.n_ids == left


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
    incoming = incoming_open(most)
    text = []
    ref = 0
    for frame in chain.from_iterable(script):
        if frame.base == 0:
            text = []
        text += frame.ids
        ref = frame.session
        incoming.take_ids(frame, 0.0)
        assert incoming.n_ids <= most
    count = incoming.n_ids
    if count:
        order = m.Open(ref=ref, prompt="", options={}, n_ids=count)
        assert incoming.complete(order).ids == text[-count:]


# --- the body


LETTERS = 'Grüße, 世界 "\\\n' * 20_000
CHAT = replace(ORDER, ids=[], n_prompt=0, messages=[{"role": "user", "content": LETTERS}])
BOTH = replace(CHAT, ids=TEXT, n_prompt=12_000)
*PIECES, CHAT_OPEN = frames_of(CHAT)


def test_an_open_is_the_body_that_came_before_it():
    assert len(PIECES) > 3
    assert taken(*PIECES).complete(CHAT_OPEN) == CHAT


def test_a_body_with_ids_before_it():
    *frames, order = frames_of(BOTH)
    assert taken(*frames).complete(order) == BOTH


def test_a_body_is_for_one_open():
    incoming = taken(*PIECES)
    incoming.complete(CHAT_OPEN)
    assert incoming.n_body == 0


def replaced(**changes):
    """Return the pieces, of which the second one is changed."""
    first, second, *others = PIECES
    return (first, replace(second, **changes), *others)


END = CHAT_OPEN.n_body
NO_BODY = {
    "none": (),
    "no first": PIECES[1:],
    "no second": PIECES[:1] + PIECES[2:],
    "no last": PIECES[:-1],
    "one twice": PIECES[:2] + PIECES[1:],
    "a base before its place": replaced(base=1),
    "a base beyond its place": replaced(base=2**32 - 1),
    "another ref": replaced(ref=8),
    "another request's after it": (*PIECES, m.Body(8, 0, "")),
    "ids of another after it": (*PIECES, m.Ids(8, 0, 0, ())),
    "a letter too many": (*PIECES, m.Body(9, END, "x")),
    "ids of it that do not follow": (*PIECES, FRAMES[1]),
}


@pytest.mark.parametrize("name", NO_BODY)
def test_pieces_that_do_not_follow_each_other_are_no_body(name):
    with pytest.raises(Busy, match="not all of the request"):
        taken(*NO_BODY[name]).complete(CHAT_OPEN)


WRONG_BODIES = r"""
{
[]
{"ref":9,"prompt":""}
{"ref":9,"prompt":1,"options":{}}
{"ref":9,"prompt":"","options":{"seed":1e999}}
{"ref":9,"prompt":"\ud800","options":{}}
{"ref":9,"prompt":"","options":{"a":[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]}}
{"ref":8,"prompt":"","options":{}}
{"ref":9,"prompt":"","options":{},"n_body":1}
"""


def refuses(order, *frames):
    """Expect the refusal of an OPEN behind frames, not for want of some of them."""
    with pytest.raises(RequestError) as caught:
        taken(*frames).complete(order)
    assert not isinstance(caught.value, Busy)


@pytest.mark.parametrize("body", WRONG_BODIES.split())
def test_no_body_enters_that_an_open_could_not_have(body):
    refuses(replace(CHAT_OPEN, n_body=len(body)), m.Body(9, 0, body))


TWICE = {"prompt": "x", "ids": [1], "n_ids": len(TEXT), "name": "n", "adopt": True}


@pytest.mark.parametrize("name", TWICE)
def test_an_open_behind_its_body_has_nothing_of_its_own(name):
    refuses(replace(CHAT_OPEN, **{name: TWICE[name]}), *FRAMES, *PIECES)


def test_an_open_behind_a_body_longer_than_any():
    refuses(replace(CHAT_OPEN, n_body=m.MAX_OPEN_BODY + 1))


def test_a_body_that_is_too_long_is_not_kept():
    incoming = incoming_open(MOST)
    piece = "x" * m.MAX_PIECE
    for at in range(m.MAX_OPEN_BODY // m.MAX_PIECE):
        incoming.take_body(m.Body(9, at * m.MAX_PIECE, piece), 0.0)
    assert incoming.n_body == m.MAX_OPEN_BODY
    incoming.take_body(m.Body(9, m.MAX_OPEN_BODY, "x"), 0.0)
    assert incoming.n_body == 0


@pytest.mark.parametrize(("after", "kept"), [(5.0, True), (5.1, False)])
def test_a_body_whose_open_does_not_come_is_forgotten(after, kept):
    incoming = taken(*PIECES)
    incoming.expire(len(PIECES) - 1 + after)
    assert bool(incoming.n_body) == kept


pieces = st.builds(m.Body, st.integers(0, 1), st.integers(0, 6), st.sampled_from(["", "a", "é"]))


@given(st.lists(pieces, max_size=12))
def test_whatever_pieces_come_only_those_in_a_row_are_kept(script):
    bodies = []

    def read(body):
        bodies.append(bytes(body))
        return m.Open(ref=ref, prompt="", options={})

    incoming = IncomingOpen(MOST, read)
    row = b""
    ref = None
    for piece in script:
        if piece.base == 0 or piece.ref != ref:
            row = b""
        ref = piece.ref if piece.base == len(row) else None
        row = row + piece.text.encode() if ref is not None else b""
        incoming.take_body(piece, 0.0)
        assert incoming.n_body == len(row)
    if row:
        incoming.complete(m.Open(ref=ref, prompt="", options={}, n_body=len(row)))
        assert bodies == [row]
