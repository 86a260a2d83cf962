"""JSON bodies: every field is checked before a message exists, and before one leaves."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmesh.errors import FrameError
from specmesh.wire import messages as m
from specmesh.wire.codec import MAX_DEPTH, MAX_NAME, decode_body, encode_body

PROFILE = settings(derandomize=True, deadline=None, max_examples=200)

OPEN = {
    "ref": 1,
    "prompt": "p",
    "max_tokens": 8,
    "temperature": 0.5,
    "top_k": 4,
    "top_p": 0.9,
    "seed": 1,
    "draft_n": 2,
}

junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def open_with(**changed):
    """An OPEN body with some fields replaced."""
    return json.dumps(OPEN | changed).encode()


def test_defaults_fill_missing_fields():
    """Fields with a default may be missing; the others may not."""
    assert decode_body(m.Open, open_with()) == m.Open(**OPEN, rounds=False, ids=[])
    for name in OPEN:
        partial = {key: value for key, value in OPEN.items() if key != name}
        with pytest.raises(FrameError, match=rf"Open\.{name} missing"):
            decode_body(m.Open, json.dumps(partial).encode())


def test_defaults_are_not_shared():
    """A list or object left out is a fresh one for each message."""
    first, second = (decode_body(m.Vocab, b'{"start":0}') for _ in range(2))
    assert first.pieces == []
    assert first.pieces is not second.pieces


def test_unknown_keys_are_ignored():
    """A later version may add fields: what is not known is dropped, not refused."""
    assert decode_body(m.Ping, b'{"number":1,"progress":2,"later":[{}]}') == m.Ping(1, 2)


@pytest.mark.parametrize(
    "changed",
    [
        {"ref": -1},
        {"ref": 2**32},
        {"ref": True},
        {"ref": 1.0},
        {"ref": "1"},
        {"ref": None},
        {"prompt": None},
        {"prompt": ["p"]},
        {"messages": "hi"},
        {"messages": ["hi"]},
        {"messages": [{"role": 5}]},
        {"messages": {"role": "user"}},
        {"stop": "x"},
        {"stop": [None]},
        {"temperature": "hot"},
        {"temperature": True},
        {"temperature": 10**400},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"rounds": 1},
        {"ids": 5},
        {"ids": [1, "2"]},
        {"ids": [-1]},
        {"ids": [True]},
        {"ids": {"0": 1}},
    ],
    ids=repr,
)
def test_wrong_field_is_refused(changed):
    """A field of the wrong type or range is refused, whatever Python would make of it."""
    with pytest.raises(FrameError) as caught:
        decode_body(m.Open, open_with(**changed))
    assert caught.value.reason == "body"


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"null", b"[]", b'"x"', b"1", b"\xff\xfe{", b"\xef\xbb\xbf{}", b"[" * 100_000, b"9" * 10_000],
    ids=lambda raw: repr(raw[:8]),
)
def test_not_an_object_is_refused(raw):
    """Bytes that are not one UTF-8 JSON object are refused, nested or long as they may be."""
    with pytest.raises(FrameError) as caught:
        decode_body(m.Ping, raw)
    assert caught.value.reason == "body"


def test_space_around_is_json():
    """JSON's own space may stand around the object, and nothing else: another value, or other spaces."""
    assert decode_body(m.Ping, b' \r\n\t{"number":1,"progress":2}\n') == m.Ping(1, 2)
    for around in (b"%b{}", b"%b,", b"\x0b%b", b"%b\xc2\xa0"):
        with pytest.raises(FrameError):
            decode_body(m.Ping, around % b'{"number":1,"progress":2}')


def test_only_utf_8_is_read():
    """JSON in another Unicode encoding is refused, though Python's parser would guess it."""
    for encoding in ("utf-16", "utf-32", "utf-8-sig"):
        with pytest.raises(FrameError):
            decode_body(m.Ping, '{"number":1,"progress":2}'.encode(encoding))


def test_text_is_unicode():
    """An escaped half of a surrogate pair is refused, as no one could print it; a pair is a character."""
    with pytest.raises(FrameError):
        decode_body(m.Error, rb'{"code":"busy","message":"\ud83d"}')
    with pytest.raises(FrameError):
        decode_body(m.Done, rb'{"session":1,"finish_reason":"stop","length":1,"report":{"a":["\udc00"]}}')
    assert decode_body(m.Error, rb'{"code":"busy","message":"\ud83d\ude00"}').message == "\N{GRINNING FACE}"


def test_names_are_bounded_and_texts_are_not():
    """A name may have MAX_NAME characters and no more; a prompt, a sentence, a piece by the body alone."""
    long = "x" * (MAX_NAME + 1)
    assert decode_body(m.Error, json.dumps({"code": long[1:], "message": ""}).encode()).code == long[1:]
    with pytest.raises(FrameError):
        decode_body(m.Error, json.dumps({"code": long, "message": ""}).encode())
    assert decode_body(m.Open, open_with(prompt=long * 10)).prompt == long * 10
    for message in (m.Error("busy", long), m.Vocab(0, [long])):
        assert decode_body(type(message), encode_body(message)) == message


@pytest.mark.parametrize("pair", [("[", "]"), ('{"a":', "}")], ids=["arrays", "objects"])
def test_objects_are_bounded_in_depth(pair):
    """What is read can be written again: in an object field at most MAX_DEPTH containers, itself one, in each other."""
    opened, closed = pair

    def done(depth: int) -> bytes:
        inner = opened * (depth - 1) + "1" + closed * (depth - 1)
        return f'{{"session":1,"finish_reason":"stop","length":1,"report":{{"a":{inner}}}}}'.encode()

    message = decode_body(m.Done, done(MAX_DEPTH))
    assert decode_body(m.Done, encode_body(message)) == message
    for depth in (MAX_DEPTH + 1, 900):
        with pytest.raises(FrameError, match=r"Done\.report"):
            decode_body(m.Done, done(depth))


def test_long_body_is_a_value_error():
    """A body over MAX_BODY is the sender's mistake."""
    message = m.Open(**OPEN | {"prompt": "x" * m.MAX_BODY})
    with pytest.raises(ValueError, match="exceeds"):
        encode_body(message)


@pytest.mark.parametrize(
    "message",
    [
        m.Ping(-1, 0),
        m.Ping(0, 2**32),
        m.Error("x" * (MAX_NAME + 1), ""),
        m.Error("busy", "\ud800"),
        m.Close(1, 0, float("inf")),
        m.Round(1, [-1], 0),
        m.Done(1, "stop", 1, {"rate": float("nan")}),
    ],
    ids=lambda message: type(message).__name__,
)
def test_nothing_leaves_that_a_peer_refuses(message):
    """What decode would refuse, encode refuses first: as a ValueError, at the side that is wrong."""
    with pytest.raises(ValueError, match=r"range|surrogates|JSON compliant"):
        encode_body(message)


@PROFILE
@given(st.sampled_from([m.Open, m.Ping, m.Done, m.Vocab, m.Welcome]), junk, st.data())
def test_any_json_is_a_message_or_a_frame_error(cls, value, data):
    """Arbitrary JSON in any field gives a message whose fields have their types, or FrameError."""
    names = list(cls.__dataclass_fields__)
    body = {name: data.draw(junk) if data.draw(st.booleans()) else value for name in names}
    try:
        message = decode_body(cls, json.dumps(body).encode())
    except FrameError:
        return
    assert decode_body(cls, encode_body(message)) == message
