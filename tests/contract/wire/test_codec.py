"""The codec against its golden vectors, and as a total function on bytes. Every field of a JSON body is checked before
a message exists, and before one leaves."""

import json
import tracemalloc
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import get_args, get_origin, get_type_hints
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

u8, u16 = st.integers(0, 2**8 - 1), st.integers(0, 2**16 - 1)
u32 = st.integers(0, 2**32 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
unicode_text = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
number = st.floats(allow_nan=False, allow_infinity=False)
_ids = st.lists(int32, max_size=80).map(tuple)
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | number | unicode_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(unicode_text, inner, max_size=3),
    max_leaves=8,
)
_BY_ANNOTATION = {
    int: u32,
    float: number,
    str: unicode_text,
    bool: st.booleans(),
    list[int]: st.lists(u32, max_size=8),
    list[float]: st.lists(number, max_size=8),
    list[str]: st.lists(unicode_text, max_size=8),
    dict[str, object]: st.dictionaries(unicode_text, _json, max_size=4),
    list[dict[str, object]]: st.lists(
        st.dictionaries(unicode_text, unicode_text, max_size=3), max_size=3
    ),
}


def control(cls):
    hints = get_type_hints(cls)
    return st.builds(
        cls, **{field.name: _BY_ANNOTATION[hints[field.name]] for field in fields(cls)}
    )


_probs = st.lists(st.tuples(int32, u16), max_size=m.MAX_SUPPORT)


def _with_probs(session, base, crc, drafts):
    """DRAFT_PROBS of drafts as (id, distribution)."""
    entries = [entry for _, probs in drafts for entry in probs]
    ids, sizes = tuple(token for token, _ in drafts), tuple(len(probs) for _, probs in drafts)
    return m.DraftProbs(
        session=session,
        base=base,
        prefix_crc=crc,
        ids=ids,
        sizes=sizes,
        support=tuple(t for t, _ in entries),
        weights=tuple(w for _, w in entries),
    )


messages = st.one_of(
    st.builds(m.Draft, u32, u32, u32, _ids),
    st.builds(m.Truth, u32, u32, u32, _ids, u8, u8),
    st.builds(m.Sync, u32, u32, u32, _ids, u8),
    st.builds(m.Nack, u32, u32, u32),
    st.builds(_with_probs, u32, u32, u32, st.lists(st.tuples(int32, _probs), max_size=6)),
    *(control(cls) for cls in get_args(m.ControlMessage)),
)


def vectors(*names):
    files = [VECTORS / f"{name}.json" for name in names]
    return [
        vector
        for file in files
        for vector in json.loads(file.read_text(encoding="utf-8"))["vectors"]
    ]


def sealed(frame):
    return bytes(frame) + crc32(frame).to_bytes(4, "little")


def decode_or_reason(frame):
    """The message, or the reason of the FrameError; anything else escapes and fails the test."""
    try:
        return decode(frame)
    except FrameError as error:
        return error.reason


# --- golden vectors


@pytest.mark.parametrize("vector", vectors("token", "control", "accepted"), ids=lambda v: v["name"])
def test_golden_vector_both_ways(vector):
    """Fields are the recorded bytes, but for what a receiver must tolerate only, and bytes the fields."""
    cls, values, raw = (
        MESSAGES[vector["message"]],
        dict(vector["fields"]),
        bytes.fromhex(vector["hex"]),
    )
    if cls in get_args(m.TokenMessage):
        values = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
        }
    message = cls(**values)
    assert decode(raw) == message
    assert encode(message) == raw or vector in vectors("accepted")


@pytest.mark.parametrize("vector", vectors("rejected"), ids=lambda v: v["name"])
def test_rejected_vector(vector):
    assert decode_or_reason(bytes.fromhex(vector["hex"])) == vector["reason"]


def test_vectors_cover_every_message_and_every_reason():
    assert {vector["message"] for vector in vectors("token", "control")} == set(MESSAGES)
    reasons = {vector["reason"] for vector in vectors("rejected")}
    assert reasons == {"length", "magic", "checksum", "version", "kind", "count", "body"}


# --- sizes


def test_largest_messages_fit_a_frame():
    ids = tuple(range(m.MAX_TOKENS))
    assert decode(encode(m.Sync(1, 0, 0, ids, 0))).ids == ids
    assert HEADER.size + 4 * m.MAX_TOKENS <= MAX_FRAME
    with pytest.raises(ValueError, match="8193 ids"):
        encode(m.Sync(1, 0, 0, (*ids, 0), 0))


@pytest.mark.parametrize(
    "message",
    [
        *(
            m.Draft(-1, 0, 0, ()),
            m.Draft(1, 2**32, 0, ()),
            m.Draft(1, 0, 2**32, ()),
            m.Draft(1, 0, 0, (2**31,)),
        ),
        *(
            m.Draft(1, 0, 0, (-(2**31) - 1,)),
            m.Truth(1, 0, 0, (), 2**8),
            m.Truth(1, 0, 0, (), 0, accepted=2**8),
        ),
        m.Nack(2**32, 0, 0),
        m.DraftProbs(
            session=1, base=0, prefix_crc=0, ids=(1,), sizes=(1,), support=(1,), weights=(2**16,)
        ),
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
    with pytest.raises(ValueError, match="distribution"):
        encode(
            m.DraftProbs(
                session=1,
                base=0,
                prefix_crc=0,
                ids=(1,),
                sizes=sizes,
                support=support,
                weights=weights,
            )
        )


# --- totality


@PROFILE
@given(messages)
def test_round_trip(message):
    assert decode(encode(message)) == message


@pytest.mark.fault("E1.16")
def test_mutated_frames_decode_or_raise_frame_error():
    """Bytes flipped, cut, put in or doubled, with a right CRC too: a message, which survives being sent on, or that."""
    for frame in islice(mutants(seed=1), 5_000):
        codec.run(frame)


GOLDEN = {vector["message"]: vector["hex"] for vector in vectors("token", "control")}


@pytest.mark.parametrize("name", GOLDEN)
def test_a_flipped_bit_anywhere_is_refused(name):
    """As damage, that of the version too, unless its checksum proves it. Drafts are not taken for control frames: what
    of the token plane is lost is said again, so that nobody need begin anew for it."""
    whole = bytes.fromhex(GOLDEN[name])
    for at in range(len(whole)):
        for bit in range(8):
            frame = bytearray(whole)
            frame[at] ^= 1 << bit
            with pytest.raises(FrameError) as caught:
                decode(bytes(frame))
            assert caught.value.reason == ("magic" if at < 2 else "checksum")
            control = may_be_control(bytes(frame), caught.value)
            assert control if whole[3] >= 16 else not control or at < HEADER.size
            assert at != 2 or decode_or_reason(sealed(bytes(frame[:-4]))) == "version"


@pytest.mark.fault("E1.6")
def test_count_allocates_nothing():
    version = m.PROTOCOL_VERSION
    frames = [
        sealed(HEADER.pack(b"SM", version, kind, 1, 0, 0, 65535, 0, 0))
        for kind in m.Kind
        if kind < 16
    ]
    frames += [sealed(HEADER.pack(b"SM", version, m.Kind.SYNC, 1, 0, 0, m.MAX_TOKENS, 0, 0))]
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
    frame = HEADER.pack(b"SM", m.PROTOCOL_VERSION, m.Kind.PING, 0, 0, 0, 0, 0, 0) + b" " * (
        m.MAX_BODY + 1
    )
    assert decode_or_reason(sealed(frame)) == "length"


# --- JSON bodies

PING = b'{"number":1,"sessions":2}'
OPEN = {"ref": 1, "prompt": "p", "options": {"max_tokens": 8, "temperature": 0.5}}


def test_names_are_bounded_and_texts_are_not():
    """A name may have MAX_NAME characters and no more; a prompt, a sentence, a piece by the body alone."""
    long = "x" * (MAX_NAME + 1)
    assert (
        decode_body(m.Error, json.dumps({"code": long[1:], "message": ""}).encode()).code
        == long[1:]
    )
    with pytest.raises(FrameError):
        decode_body(m.Error, json.dumps({"code": long, "message": ""}).encode())
    assert (
        decode_body(m.Open, json.dumps(OPEN | {"prompt": long * 10}).encode()).prompt == long * 10
    )
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


@pytest.mark.parametrize("number", [2**32, -1.5, 10**308])
def test_a_number_is_any_finite_one(number):
    assert (
        decode_body(m.Ping, json.dumps({"number": 1, "step_ms": number}).encode()).step_ms == number
    )
    with pytest.raises(FrameError):
        decode_body(m.Ping, json.dumps({"number": 1, "step_ms": 10**309}).encode())


@pytest.mark.parametrize(
    "message",
    [
        *(
            m.Ping(-1, 0),
            m.Ping(0, queued=2**32),
            m.Error("x" * (MAX_NAME + 1), ""),
            m.Error("busy", "\ud800"),
        ),
        *(m.Ping(1, float("inf")), m.Done(1, "stop", 1, {"rate": float("nan")})),
        m.Open(**OPEN | {"prompt": "x" * m.MAX_BODY}),
    ],
    ids=lambda message: type(message).__name__,
)
def test_nothing_leaves_that_a_peer_refuses(message):
    with pytest.raises(ValueError, match=r"range|surrogates|JSON compliant|exceeds"):
        encode_body(message)


def is_a(value, kind):
    if get_origin(kind) is list:
        return isinstance(value, list) and all(is_a(one, *get_args(kind)) for one in value)
    return isinstance(value, (int, float) if kind is float else get_origin(kind) or kind) and (
        kind is bool or not isinstance(value, bool)
    )


@settings(PROFILE, max_examples=1000)
@given(st.sampled_from(get_args(m.ControlMessage)).flatmap(control), st.data())
def test_any_json_is_a_message_or_a_frame_error(message, data):
    body = json.loads(encode_body(message))
    name = data.draw(st.sampled_from([*body, "other"]))
    body[name] = data.draw(_json | st.lists(_json))
    try:
        found = decode_body(type(message), json.dumps(body).encode())
    except FrameError:
        return
    hints = get_type_hints(type(message))
    assert all(is_a(getattr(found, one.name), hints[one.name]) for one in fields(found))
    assert decode_body(type(message), encode_body(found)) == found
