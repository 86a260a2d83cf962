"""The codec against its golden vectors, and as a total function on bytes.

Every field of a JSON body is checked before a message exists, and before one leaves.
"""

import json
import tracemalloc
from dataclasses import fields, replace
from itertools import islice
from typing import get_args, get_origin, get_type_hints

import pytest
from harness.tables import vectors
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz import codec
from fuzz.frames import repaired
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
MESSAGES = {cls.__name__: cls for cls in get_args(m.Message)}
CONTROL = get_args(m.ControlMessage)
TOKEN_MESSAGES = {cls.__name__ for cls in get_args(m.TokenMessage)}


def unsigned(bits):
    return st.integers(0, 2**bits - 1)


u8 = unsigned(8)
u16 = unsigned(16)
u32 = unsigned(32)
int32 = st.integers(-(2**31), 2**31 - 1)
characters = st.characters(exclude_categories=("Cs",))
unicode_text = st.text(characters, max_size=20)
number = st.floats(allow_nan=False, allow_infinity=False)
ids = st.lists(int32, max_size=80).map(tuple)


def objects(values, size):
    return st.dictionaries(unicode_text, values, max_size=size)


def containers(inner):
    return st.lists(inner, max_size=3) | objects(inner, 3)


def lists(values):
    return st.lists(values, max_size=8)


LEAVES = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | number | unicode_text
json_values = st.recursive(LEAVES, containers, max_leaves=8)
BY_ANNOTATION = {int: u32, float: number, str: unicode_text, bool: st.booleans()}
BY_ANNOTATION[list[int]] = lists(u32)
BY_ANNOTATION[list[float]] = lists(number)
BY_ANNOTATION[list[str]] = lists(unicode_text)
BY_ANNOTATION[dict[str, object]] = objects(json_values, 4)
BY_ANNOTATION[list[dict[str, object]]] = st.lists(objects(unicode_text, 3), max_size=3)


def several(values, count):
    """Return a strategy of tuples of so many values."""
    return st.lists(values, min_size=count, max_size=count).map(tuple)


def control(cls):
    """Return a strategy of a control message's class."""
    hints = get_type_hints(cls)
    values = {}
    for field in fields(cls):
        values[field.name] = BY_ANNOTATION[hints[field.name]]
    return st.builds(cls, **values)


@st.composite
def with_probs(draw):
    """Draw a DRAFT_PROBS."""
    place = draw(st.tuples(u32, u32, u32))
    sizes = draw(st.lists(st.integers(0, m.MAX_SUPPORT), max_size=6))
    tokens = draw(several(int32, len(sizes)))
    support = draw(several(int32, sum(sizes)))
    weights = draw(several(u16, sum(sizes)))
    return m.DraftProbs(*place, tokens, tuple(sizes), support=support, weights=weights)


place = (u32, u32, u32)
drafts = st.builds(m.Draft, *place, ids) | with_probs()
truths = st.builds(m.Truth, *place, ids, draft_n=u8, accepted=u8)
syncs = st.builds(m.Sync, *place, ids, draft_n=u8)
nacks = st.builds(m.Nack, *place)
ids_before = st.builds(m.Ids, *place, ids)
token_frames = drafts | truths | syncs | nacks | ids_before
messages = st.one_of(token_frames, *map(control, CONTROL))


def each_vector(vectors):
    return pytest.mark.parametrize("vector", vectors, ids=lambda vector: vector["name"])


GOLDEN = vectors("token") + vectors("control")
TOLERATED = vectors("accepted")
REJECTED = vectors("rejected")
FRAMES = {vector["message"]: vector["hex"] for vector in GOLDEN}


def sealed(frame):
    return repaired(frame + bytes(4))


def header(kind, count=0):
    fields = (b"SM", m.PROTOCOL_VERSION, kind, 1, 0, 0, count, 0, 0)
    return HEADER.pack(*fields)


def decode_or_reason(frame):
    """Return the message, or the reason of the FrameError; no other error is caught."""
    try:
        return decode(frame)
    except FrameError as error:
        return error.reason


def body_of(cls, **values):
    return decode_body(cls, json.dumps(values).encode())


# --- golden vectors


@each_vector(GOLDEN + TOLERATED)
def test_golden_vector_both_ways(vector):
    """The bytes decode to the fields; but for tolerated frames the fields encode to the bytes."""
    name = vector["message"]
    values = vector["fields"]
    if name in TOKEN_MESSAGES:
        for field, value in values.items():
            if isinstance(value, list):
                values[field] = tuple(value)
    message = MESSAGES[name](**values)
    raw = bytes.fromhex(vector["hex"])
    assert decode(raw) == message
    if vector not in TOLERATED:
        assert encode(message) == raw


@each_vector(REJECTED)
def test_rejected_vector(vector):
    frame = bytes.fromhex(vector["hex"])
    assert decode_or_reason(frame) == vector["reason"]


def test_vectors_cover_every_message():
    assert set(FRAMES) == set(MESSAGES)


def test_vectors_cover_every_reason():
    reasons = {vector["reason"] for vector in REJECTED}
    assert reasons == {"length", "magic", "checksum", "version", "kind", "count", "body"}


# --- sizes


def test_largest_messages_fit_a_frame():
    largest = m.Sync(1, 0, 0, tuple(range(m.MAX_TOKENS)), 0)
    assert decode(encode(largest)) == largest
    assert HEADER.size + 4 * m.MAX_TOKENS <= MAX_FRAME


def test_one_id_too_many():
    ids = (0,) * (m.MAX_TOKENS + 1)
    message = m.Sync(1, 0, 0, ids, 0)
    with pytest.raises(ValueError, match="8193 ids"):
        encode(message)


def drafted(sizes, support, weights):
    return m.DraftProbs(1, 0, 0, (1,), sizes, support=support, weights=weights)


DRAFT = m.Draft(1, 0, 0, ())
TRUTH = m.Truth(1, 0, 0, (), 0)
NACK = m.Nack(1, 0, 0)
UNFIT = [replace(message, session=-1) for message in (DRAFT, NACK)]
UNFIT += [replace(message, base=2**32) for message in (DRAFT, NACK)]
UNFIT += [replace(message, prefix_crc=2**32) for message in (DRAFT, NACK)]
UNFIT += [replace(DRAFT, ids=(token,)) for token in (2**31, -(2**31) - 1)]
UNFIT += [replace(TRUTH, draft_n=2**8), replace(TRUTH, accepted=2**8)]
UNFIT += [drafted((1,), (1,), (2**16,))]


@pytest.mark.parametrize("message", UNFIT, ids=repr)
def test_a_number_out_of_range_is_a_value_error(message):
    with pytest.raises(ValueError, match="does not fit"):
        encode(message)


MANY = (1,) * (m.MAX_SUPPORT + 1)
NO_SIZE = drafted((), (), ())
FEW_TOKENS = drafted((2,), (1,), (1,))
FEW_WEIGHTS = drafted((1,), (1,), ())
TOO_MANY = drafted((len(MANY),), MANY, MANY)


@pytest.mark.parametrize("message", [NO_SIZE, FEW_TOKENS, FEW_WEIGHTS, TOO_MANY])
def test_distributions_that_are_none_are_a_value_error(message):
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


def flipped_bits(frame):
    """Yield the place and the frame of each bit that is flipped."""
    for at in range(len(frame)):
        for bit in range(8):
            changed = bytearray(frame)
            changed[at] ^= 1 << bit
            yield at, bytes(changed)


@pytest.mark.parametrize("name", FRAMES)
def test_a_flipped_bit_anywhere_is_damage(name):
    """Only a right checksum proves another version."""
    whole = bytes.fromhex(FRAMES[name])
    for at, frame in flipped_bits(whole):
        expected = "magic" if at < 2 else "checksum"
        assert decode_or_reason(frame) == expected
        if at == 2:
            assert decode_or_reason(repaired(frame)) == "version"


@pytest.mark.parametrize("name", FRAMES)
def test_drafts_are_not_taken_for_control_frames(name):
    """Lost tokens are sent again, so that damage to them need not restart anything."""
    whole = bytes.fromhex(FRAMES[name])
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
    headers = [header(kind, 65535) for kind in m.Kind if kind < 16]
    headers.append(header(m.Kind.SYNC, m.MAX_TOKENS))
    frames = [sealed(head) for head in headers]
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
LONG = "x" * (MAX_NAME + 1)
INFINITY = float("inf")


def opening(prompt):
    return m.Open(ref=1, prompt=prompt, options={"max_tokens": 8, "temperature": 0.5})


def class_name(message):
    return type(message).__name__


def shortened(raw):
    return repr(raw[:40])


def test_a_name_is_bounded():
    longest = LONG[1:]
    error = body_of(m.Error, code=longest, message="")
    assert error.code == longest
    with pytest.raises(FrameError):
        body_of(m.Error, code=LONG, message="")


LONG_TEXTS = [m.Error("busy", LONG), m.Vocab(0, [LONG]), opening("x" * 10_000)]


@pytest.mark.parametrize("message", LONG_TEXTS, ids=class_name)
def test_only_the_body_bounds_a_text(message):
    raw = encode_body(message)
    assert decode_body(type(message), raw) == message


NO_OBJECTS = [b"", b"{", b"null", b"[]", b'"x"', b"1"]
NO_JSON = [b"\xff\xfe{", b"[" * 100_000, b"9" * 10_000]
AROUND = [PING + b"{}", PING + b",", b"\x0b" + PING, PING + b"\xc2\xa0"]
OTHER_ENCODINGS = [PING.decode().encode(name) for name in ("utf-16", "utf-32", "utf-8-sig")]


@pytest.mark.parametrize("raw", NO_OBJECTS + NO_JSON + AROUND + OTHER_ENCODINGS, ids=shortened)
def test_bytes_other_than_one_object_in_utf_8_are_refused(raw):
    with pytest.raises(FrameError) as caught:
        decode_body(m.Ping, raw)
    assert caught.value.reason == "body"


@pytest.mark.parametrize("number", [2**32, -1.5, 10**308])
def test_a_number_is_any_finite_one(number):
    ping = body_of(m.Ping, number=1, step_ms=number)
    assert ping.step_ms == number


def test_an_infinite_number():
    with pytest.raises(FrameError):
        body_of(m.Ping, number=1, step_ms=10**309)


OUT_OF_RANGE = [m.Ping(-1, 0), m.Ping(0, queued=2**32), m.Error(LONG, "")]
NO_NUMBERS = [m.Ping(1, INFINITY), m.Done(1, "stop", 1, {"rate": float("nan")})]
NO_TEXTS = [m.Error("busy", "\ud800"), opening("x" * m.MAX_BODY)]


@pytest.mark.parametrize("message", OUT_OF_RANGE + NO_NUMBERS + NO_TEXTS, ids=class_name)
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


@settings(PROFILE, max_examples=300)
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
