"""The codec against its golden vectors, and as a total function on bytes.

Every field of a JSON body is checked before a message exists, and before one leaves.
"""

import json
import tracemalloc
from dataclasses import fields
from itertools import chain, islice
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz import codec
from fuzz.mutants import mutants
from specmesh.errors import FrameError
from specmesh.wire import messages as m
from specmesh.wire.codec import (
    HEADER,
    MAX_FRAME,
    MAX_NAME,
    decode,
    decode_body,
    encode,
    encode_body,
    may_be_control,
)

PROFILE = settings(max_examples=200)
VECTORS = Path(__file__).parents[3] / "wire" / "vectors"
MESSAGES = {cls.__name__: cls for cls in get_args(m.Message)}
CONTROL = get_args(m.ControlMessage)
TOKEN_MESSAGES = {cls.__name__ for cls in get_args(m.TokenMessage)}

u8 = st.integers(0, 2**8 - 1)
u16 = st.integers(0, 2**16 - 1)
u32 = st.integers(0, 2**32 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
unicode_text = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
number = st.floats(allow_nan=False, allow_infinity=False)
ids = st.lists(int32, max_size=80).map(tuple)


def objects(values, size):
    return st.dictionaries(unicode_text, values, max_size=size)


def containers(inner):
    return st.lists(inner, max_size=3) | objects(inner, 3)


LEAVES = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | number | unicode_text
json_values = st.recursive(LEAVES, containers, max_leaves=8)
BY_ANNOTATION = {
    int: u32,
    float: number,
    str: unicode_text,
    bool: st.booleans(),
    list[int]: st.lists(u32, max_size=8),
    list[float]: st.lists(number, max_size=8),
    list[str]: st.lists(unicode_text, max_size=8),
    dict[str, object]: objects(json_values, 4),
    list[dict[str, object]]: st.lists(objects(unicode_text, 3), max_size=3),
}


def control(cls):
    hints = get_type_hints(cls)
    values = {field.name: BY_ANNOTATION[hints[field.name]] for field in fields(cls)}
    return st.builds(cls, **values)


def with_probs(frame, drafts):
    """Return the DRAFT_PROBS of drafts as (id, distribution)."""
    tokens = tuple(token for token, _ in drafts)
    sizes = tuple(len(probs) for _, probs in drafts)
    entries = tuple(chain.from_iterable(probs for _, probs in drafts))
    support = tuple(token for token, _ in entries)
    weights = tuple(weight for _, weight in entries)
    return m.DraftProbs(*frame, tokens, sizes, support=support, weights=weights)


probs = st.lists(st.tuples(int32, u16), max_size=m.MAX_SUPPORT)
drafts_with_probs = st.lists(st.tuples(int32, probs), max_size=6)
token_messages = [
    st.builds(m.Draft, u32, u32, u32, ids),
    st.builds(m.Truth, u32, u32, u32, ids, draft_n=u8, accepted=u8),
    st.builds(m.Sync, u32, u32, u32, ids, draft_n=u8),
    st.builds(m.Nack, u32, u32, u32),
    st.builds(with_probs, st.tuples(u32, u32, u32), drafts_with_probs),
]
messages = st.one_of([*token_messages, *map(control, CONTROL)])


def vectors(*names):
    found = list[Any]()
    for name in names:
        text = (VECTORS / f"{name}.json").read_text(encoding="utf-8")
        found += json.loads(text)["vectors"]
    return found


def sealed(frame):
    return bytes(frame) + crc32(frame).to_bytes(4, "little")


def header(kind, count=0):
    return HEADER.pack(b"SM", m.PROTOCOL_VERSION, kind, 1, 0, 0, count, 0, 0)


def decode_or_reason(frame):
    """Return the message, or the reason of the FrameError; no other error is caught."""
    try:
        return decode(frame)
    except FrameError as error:
        return error.reason


def body_of(cls, **values):
    return decode_body(cls, json.dumps(values).encode())


# --- golden vectors


@pytest.mark.parametrize("vector", vectors("token", "control", "accepted"), ids=lambda v: v["name"])
def test_golden_vector_both_ways(vector):
    """The bytes decode to the fields; but for tolerated frames the fields encode to the bytes."""
    values = dict(vector["fields"])
    for name, value in values.items():
        if isinstance(value, list) and vector["message"] in TOKEN_MESSAGES:
            values[name] = tuple(value)
    message = MESSAGES[vector["message"]](**values)
    raw = bytes.fromhex(vector["hex"])
    assert decode(raw) == message
    assert encode(message) == raw or vector in vectors("accepted")


@pytest.mark.parametrize("vector", vectors("rejected"), ids=lambda v: v["name"])
def test_rejected_vector(vector):
    assert decode_or_reason(bytes.fromhex(vector["hex"])) == vector["reason"]


def test_vectors_cover_every_message():
    assert {vector["message"] for vector in vectors("token", "control")} == set(MESSAGES)


def test_vectors_cover_every_reason():
    reasons = {vector["reason"] for vector in vectors("rejected")}
    assert reasons == {"length", "magic", "checksum", "version", "kind", "count", "body"}


# --- sizes


def test_largest_messages_fit_a_frame():
    largest = m.Sync(1, 0, 0, tuple(range(m.MAX_TOKENS)), 0)
    assert decode(encode(largest)) == largest
    assert HEADER.size + 4 * m.MAX_TOKENS <= MAX_FRAME


def test_one_id_too_many():
    with pytest.raises(ValueError, match="8193 ids"):
        encode(m.Sync(1, 0, 0, (0,) * (m.MAX_TOKENS + 1), 0))


@pytest.mark.parametrize(
    "message",
    [
        m.Draft(-1, 0, 0, ()),
        m.Draft(1, 2**32, 0, ()),
        m.Draft(1, 0, 2**32, ()),
        m.Draft(1, 0, 0, (2**31,)),
        m.Draft(1, 0, 0, (-(2**31) - 1,)),
        m.Truth(1, 0, 0, (), 2**8),
        m.Truth(1, 0, 0, (), 0, accepted=2**8),
        m.Nack(2**32, 0, 0),
        m.DraftProbs(1, 0, 0, (1,), (1,), support=(1,), weights=(2**16,)),
    ],
    ids=repr,
)
def test_field_out_of_range_is_a_value_error(message):
    with pytest.raises(ValueError, match="does not fit"):
        encode(message)


@pytest.mark.parametrize(
    ("sizes", "support", "weights"),
    [((), (), ()), ((2,), (1,), (1,)), ((1,), (1,), ()), ((129,), (1,) * 129, (1,) * 129)],
    ids=["no size", "too few tokens", "too few weights", "too many"],
)
def test_distributions_that_are_none_are_a_value_error(sizes, support, weights):
    message = m.DraftProbs(1, 0, 0, (1,), sizes, support=support, weights=weights)
    with pytest.raises(ValueError, match="distribution"):
        encode(message)


# --- totality


@PROFILE
@given(messages)
def test_round_trip(message):
    assert decode(encode(message)) == message


@pytest.mark.fault("E1.16")
def test_mutated_frames_decode_or_raise_frame_error():
    """Bytes are flipped, cut, put in or doubled, with a right CRC too."""
    for frame in islice(mutants(seed=1), 5_000):
        codec.run(frame)


GOLDEN = {vector["message"]: vector["hex"] for vector in vectors("token", "control")}


def flipped_bits(frame):
    """Yield the place and the frame of each bit that is flipped."""
    for at in range(len(frame)):
        for bit in range(8):
            changed = bytearray(frame)
            changed[at] ^= 1 << bit
            yield at, bytes(changed)


@pytest.mark.parametrize("name", GOLDEN)
def test_a_flipped_bit_anywhere_is_damage(name):
    """Only a right checksum proves another version."""
    for at, frame in flipped_bits(bytes.fromhex(GOLDEN[name])):
        expected = "magic" if at < 2 else "checksum"
        assert decode_or_reason(frame) == expected
        if at == 2:
            assert decode_or_reason(sealed(frame[:-4])) == "version"


@pytest.mark.parametrize("name", GOLDEN)
def test_drafts_are_not_taken_for_control_frames(name):
    """Lost tokens are sent again, so that damage to them need not restart anything."""
    whole = bytes.fromhex(GOLDEN[name])
    for at, frame in flipped_bits(whole):
        with pytest.raises(FrameError) as caught:
            decode(frame)
        is_control = may_be_control(frame, caught.value)
        if whole[3] >= 16:
            assert is_control
        elif at >= HEADER.size:
            assert not is_control


@pytest.mark.fault("E1.6")
def test_count_allocates_nothing():
    frames = [sealed(header(kind, 65535)) for kind in m.Kind if kind < 16]
    frames.append(sealed(header(m.Kind.SYNC, m.MAX_TOKENS)))
    for frame in frames:
        decode_or_reason(frame)
    tracemalloc.start()
    try:
        for frame in frames:
            decode_or_reason(frame)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4096


def test_oversized_control_frame_is_refused():
    frame = header(m.Kind.PING) + b" " * (m.MAX_BODY + 1)
    assert decode_or_reason(sealed(frame)) == "length"


# --- JSON bodies

PING = b'{"number":1,"sessions":2}'
OPEN = {"ref": 1, "prompt": "p", "options": {"max_tokens": 8, "temperature": 0.5}}
LONG = "x" * (MAX_NAME + 1)


def test_a_name_is_bounded():
    assert body_of(m.Error, code=LONG[1:], message="").code == LONG[1:]
    with pytest.raises(FrameError):
        body_of(m.Error, code=LONG, message="")


@pytest.mark.parametrize(
    "message",
    [m.Error("busy", LONG), m.Vocab(0, [LONG]), m.Open(**OPEN | {"prompt": LONG * 10})],
    ids=lambda message: type(message).__name__,
)
def test_only_the_body_bounds_a_text(message):
    assert decode_body(type(message), encode_body(message)) == message


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"x"',
        b"1",
        b"\xff\xfe{",
        b"[" * 100_000,
        b"9" * 10_000,
        PING + b"{}",
        PING + b",",
        b"\x0b" + PING,
        PING + b"\xc2\xa0",
        PING.decode().encode("utf-16"),
        PING.decode().encode("utf-32"),
        PING.decode().encode("utf-8-sig"),
    ],
    ids=lambda raw: repr(raw[:40]),
)
def test_what_is_not_one_object_in_utf_8_is_refused(raw):
    with pytest.raises(FrameError) as caught:
        decode_body(m.Ping, raw)
    assert caught.value.reason == "body"


@pytest.mark.parametrize("number", [2**32, -1.5, 10**308])
def test_a_number_is_any_finite_one(number):
    assert body_of(m.Ping, number=1, step_ms=number).step_ms == number


def test_an_infinite_number():
    with pytest.raises(FrameError):
        body_of(m.Ping, number=1, step_ms=10**309)


@pytest.mark.parametrize(
    "message",
    [
        m.Ping(-1, 0),
        m.Ping(0, queued=2**32),
        m.Error(LONG, ""),
        m.Error("busy", "\ud800"),
        m.Ping(1, float("inf")),
        m.Done(1, "stop", 1, {"rate": float("nan")}),
        m.Open(**OPEN | {"prompt": "x" * m.MAX_BODY}),
    ],
    ids=lambda message: type(message).__name__,
)
def test_nothing_leaves_that_a_peer_refuses(message):
    with pytest.raises(ValueError, match=r"range|surrogates|JSON compliant|exceeds"):
        encode_body(message)


def is_a(value, kind):
    """Return True for a value of an annotated type; True and False are no numbers."""
    if get_origin(kind) is list:
        [item] = get_args(kind)
        return isinstance(value, list) and all(is_a(inner, item) for inner in value)
    if isinstance(value, bool):
        return kind is bool
    if kind is float:
        return isinstance(value, int | float)
    return isinstance(value, get_origin(kind) or kind)


@settings(PROFILE, max_examples=1000)
@given(st.sampled_from(CONTROL).flatmap(control), st.data())
def test_any_json_is_a_message_or_a_frame_error(message, data):
    body = json.loads(encode_body(message))
    name = data.draw(st.sampled_from([*body, "other"]))
    body[name] = data.draw(json_values | st.lists(json_values))
    cls = type(message)
    try:
        found = body_of(cls, **body)
    except FrameError:
        return
    hints = get_type_hints(cls)
    for field in fields(cls):
        assert is_a(getattr(found, field.name), hints[field.name])
    assert decode_body(cls, encode_body(found)) == found
