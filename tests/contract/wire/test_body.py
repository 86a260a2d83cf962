"""JSON bodies: every field is checked before a message exists, and before one leaves."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmesh.errors import FrameError
from specmesh.wire import messages as m
from specmesh.wire.codec import MAX_DEPTH, MAX_NAME, decode_body, encode_body

PROFILE = settings(derandomize=True, deadline=None, max_examples=200)

PING = b'{"number":1,"sessions":2}'
OPEN = {"ref": 1, "prompt": "p", "options": {"max_tokens": 8, "temperature": 0.5}}

junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def open_with(**changed):
    return json.dumps(OPEN | changed).encode()


def test_defaults_fill_missing_fields():
    """Fields with a default may be missing; the others may not."""
    assert decode_body(m.Open, open_with()) == m.Open(**OPEN, ids=[])
    for name in OPEN:
        partial = {key: value for key, value in OPEN.items() if key != name}
        with pytest.raises(FrameError, match=rf"Open\.{name} missing"):
            decode_body(m.Open, json.dumps(partial).encode())


def test_unknown_keys_are_ignored():
    """A later version may add fields: what is not known is dropped, not refused."""
    assert decode_body(m.Ping, b'{"number":1,"sessions":2,"later":[{}]}') == m.Ping(1, sessions=2)


WRONG = {
    "ref": [-1, 2**32, True, 1.0, "1", None],
    "prompt": [None, ["p"]],
    "messages": ["hi", ["hi"], {"role": "user"}],
    "options": ["hot", [1], {"temperature": float("nan")}, {"a": {"b": float("inf")}}],
    "ids": [5, [1, "2"], [-1], [True], {"0": 1}],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_wrong_field_is_refused(name, value):
    with pytest.raises(FrameError) as caught:
        decode_body(m.Open, open_with(**{name: value}))
    assert caught.value.reason == "body"


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


@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b"{", b"null", b"[]", b'"x"', b"1", b"\xff\xfe{", b"[" * 100_000, b"9" * 10_000),
        *(around % PING for around in (b"%b{}", b"%b,", b"\x0b%b", b"%b\xc2\xa0")),
        *(PING.decode().encode(encoding) for encoding in ("utf-16", "utf-32", "utf-8-sig")),
    ],
    ids=lambda raw: repr(raw[:40]),
)
def test_what_is_not_one_object_in_utf_8_is_refused(raw):
    with pytest.raises(FrameError) as caught:
        decode_body(m.Ping, raw)
    assert caught.value.reason == "body"


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


@pytest.mark.parametrize(
    "message",
    [
        *(m.Ping(-1, 0), m.Ping(0, queued=2**32), m.Error("x" * (MAX_NAME + 1), ""), m.Error("busy", "\ud800")),
        *(m.Ping(1, float("inf")), m.Done(1, "stop", 1, {"rate": float("nan")})),
        m.Open(**OPEN | {"prompt": "x" * m.MAX_BODY}),
    ],
    ids=lambda message: type(message).__name__,
)
def test_nothing_leaves_that_a_peer_refuses(message):
    with pytest.raises(ValueError, match=r"range|surrogates|JSON compliant|exceeds"):
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
