"""The codec: frames from messages, and messages from frames (PROTOCOL.md, section 3).

Decoding is total: any bytes decode to a message or raise FrameError, and nothing is allocated from
a count before the length bears it out.

Every frame has the same header of 20 bytes, then a body, then a CRC-32 of all before it:

    offset  0      2        3     4        8     12          16     18       19        20
            magic  version  kind  session  base  prefix_crc  count  draft_n  accepted  body ...

- Frames of the token plane have `count` ids as their body, 4 bytes each, and no length field: a
  frame of any other length is refused. DRAFT_PROBS has the drafts' distributions behind the ids.
- Frames of the control plane have zeros from `session` on, and a JSON object as their body. Its
  fields are those of the message's class; their types are the checks that a body must pass.

The two planes differ for a reason. A token frame is sent in each round, must be small, and may be
lost: the prefix CRC shows it. A control frame is rare, must be readable, and may get new fields.
"""

import json
import math
import struct
import sys
from collections.abc import Callable, Collection
from dataclasses import MISSING, dataclass, fields
from typing import TypeVar, cast, get_args, get_type_hints
from zlib import crc32

from specmesh.errors import FrameError, UnfitMessage
from specmesh.wire import messages as m
from specmesh.wire.messages import (
    MAX_BODY,
    MAX_SUPPORT,
    MAX_TOKENS,
    PROTOCOL_VERSION,
    ControlMessage,
    Kind,
    Message,
)

U32_MAX = 2**32 - 1
MAX_NAME = 1024  # characters of a string field that is no text
MAX_DEPTH = 16
"""Objects and arrays within each other, in a field that is one. The json module writes less deeply
than it reads.
"""

MAGIC = b"SM"
HEADER = struct.Struct("<2sBBIIIHBB")
CRC = struct.Struct("<I")
IDS_COUNT = slice(16, 18)
"""The place of the number of ids in a frame. Decoding refuses a frame of another length."""
MAX_FRAME = HEADER.size + MAX_BODY + CRC.size  # bytes; sockets are set to refuse longer ones
INTACT = 0x2144DF1C
"""The CRC-32 of any bytes that end in their own CRC-32: checked in one pass, without a copy."""

M = TypeVar("M", bound=ControlMessage)

_CONTROL: dict[int, type[ControlMessage]] = {int(cls.kind): cls for cls in get_args(ControlMessage)}
_TOKEN: dict[int, type[m.TokenMessage]] = {int(cls.kind): cls for cls in get_args(m.TokenMessage)}


# --- any frame


def encode(message: Message) -> bytes:
    """Return the frame of a message.

    Raise UnfitMessage for a message that no frame holds: more than MAX_TOKENS ids, or a field out
    of its range.
    """
    if isinstance(message, m.TokenFrame):
        frame = _encode_token_frame(message)
    else:
        # A control frame has no session in its header: its body names one, if it is about one.
        header = HEADER.pack(MAGIC, PROTOCOL_VERSION, message.kind, 0, 0, 0, 0, 0, 0)
        frame = header + encode_body(message)
    return frame + CRC.pack(crc32(frame))


def decode(frame: bytes) -> Message:
    """Return the message of a frame; raise FrameError for any other bytes.

    The checksum is checked before version, kind and count, so that a damaged one of these is not
    taken for another.
    """
    # The length comes first, before a byte is looked at: the longest frame bounds all work below.
    if not HEADER.size <= len(frame) <= MAX_FRAME:
        raise FrameError("length", len(frame))
    magic, version, kind, session, base, crc, count, draft_n, accepted = HEADER.unpack_from(frame)
    if magic != MAGIC:
        raise FrameError("magic", magic)
    if crc32(frame) != INTACT:
        raise FrameError("checksum", len(frame))
    if version != PROTOCOL_VERSION:
        raise FrameError("version", version)
    cls = _TOKEN.get(kind)
    if cls is None:
        control = _CONTROL.get(kind)
        if control is None:
            raise FrameError("kind", kind)
        return decode_body(control, frame[HEADER.size : -CRC.size])
    if count > MAX_TOKENS:
        raise FrameError("count", count)
    # Its length depends on the sizes within it, so it checks that by itself.
    if cls is m.DraftProbs:
        return _decode_probs(frame, session, base, crc, count)
    # The ids are unpacked only now: `count` is borne out by bytes that are there.
    if len(frame) != HEADER.size + 4 * count + CRC.size:
        raise FrameError("length", len(frame))
    ids = struct.unpack_from(f"<{count}i", frame, HEADER.size)
    if cls is m.Draft:
        return m.Draft(session, base, crc, ids)
    if cls is m.Truth:
        return m.Truth(session, base, crc, ids, draft_n, accepted=accepted)
    if cls is m.Sync:
        return m.Sync(session, base, crc, ids, draft_n)
    if cls is m.Ids:
        return m.Ids(session, base, crc, ids)
    if ids:
        # Only NACK is left, which names a position and has no ids.
        raise FrameError("count", count)
    return m.Nack(session, base, crc)


def may_be_control(frame: bytes, error: FrameError) -> bool:
    """Return True for a damaged frame that may have been a control frame, which nobody repeats.

    Control frames have zeros behind their kind, so damage to the kind does not hide them.
    """
    if error.reason not in ("magic", "checksum"):
        return False
    # Byte 3 is the kind. A token frame has numbers behind it, so all zeros mean a control frame
    # whose kind was damaged.
    return frame[3] >= Kind.HELLO or not any(frame[4 : HEADER.size])


# --- frames of the token plane


def _encode_token_frame(message: m.TokenMessage) -> bytes:
    """Return a frame but for its checksum; raise UnfitMessage as `encode`.

    A field that a message does not have is 0.
    """
    ids: tuple[int, ...] = getattr(message, "ids", ())
    count = len(ids)
    if count > MAX_TOKENS:
        raise UnfitMessage(f"{count} ids exceed the {MAX_TOKENS} of one frame")
    try:
        frame = HEADER.pack(
            MAGIC,
            PROTOCOL_VERSION,
            message.kind,
            message.session,
            message.base,
            message.prefix_crc,
            count,
            getattr(message, "draft_n", 0),
            getattr(message, "accepted", 0),
        )
        frame += struct.pack(f"<{count}i", *ids)
        if isinstance(message, m.DraftProbs):
            frame += _encode_distributions(message)
    except struct.error as error:
        raise UnfitMessage(f"a field does not fit its place in the frame: {error}") from None
    return frame


def _encode_distributions(message: m.DraftProbs) -> bytes:
    """Return the sizes, the tokens and the weights of all distributions, as one block each."""
    sizes = message.sizes
    total = sum(sizes)
    # The layout has no lengths of its own. Lists that do not fit each other would be read as
    # others.
    complete = len(message.support) == len(message.weights) == total
    if len(sizes) != len(message.ids) or not complete:
        raise UnfitMessage(
            "each id needs the size of its distribution, and each token of one its weight"
        )
    if sizes and max(sizes) > MAX_SUPPORT:
        raise UnfitMessage(f"a distribution of more than {MAX_SUPPORT} tokens")
    # One block for each kind of number: one call packs them all, and no entry needs padding.
    layout = f"<{len(sizes)}H{total}i{total}H"
    return struct.pack(layout, *sizes, *message.support, *message.weights)


def _decode_probs(frame: bytes, session: int, base: int, crc: int, count: int) -> m.DraftProbs:
    """Return the message of a DRAFT_PROBS frame.

    Behind the header are the ids (i32), the sizes of their distributions (u16), the tokens of all
    distributions (i32) and their weights (u16).
    """
    # Ids and sizes are there for certain before they are read. Their sum then decides the rest.
    end = HEADER.size + 6 * count
    if len(frame) < end + CRC.size:
        raise FrameError("length", len(frame))
    numbers = struct.unpack_from(f"<{count}i{count}H", frame, HEADER.size)
    sizes = numbers[count:]
    total = sum(sizes)
    if sizes and max(sizes) > MAX_SUPPORT:
        # The limit comes before the sum is compared with the length, so the error names the cause.
        raise FrameError("count", max(sizes))
    if len(frame) != end + 6 * total + CRC.size:
        raise FrameError("length", len(frame))
    entries = struct.unpack_from(f"<{total}i{total}H", frame, end)
    return m.DraftProbs(
        session,
        base,
        crc,
        numbers[:count],
        sizes,
        support=entries[:total],
        weights=entries[total:],
    )


# --- bodies of the control plane


def encode_body(message: ControlMessage) -> bytes:
    """Return a message's fields as compact JSON in UTF-8.

    Raise UnfitMessage for a field or a length that a peer would refuse.
    """
    body = write_body(message)
    if len(body) > MAX_BODY:
        raise UnfitMessage(f"a control body of {len(body)} bytes exceeds {MAX_BODY}")
    return body


def write_body(message: ControlMessage) -> bytes:
    """Return the same of any length. Raise UnfitMessage for a field that a peer would refuse."""
    body: dict[str, object] = {}
    for name, rule in _RULES[type(message)].items():
        body[name] = value = getattr(message, name)
        if not rule.accepts(value):
            raise UnfitMessage(f"{type(message).__name__}.{name} is out of its range")
    try:
        return _write_json(body).encode()
    except ValueError as error:  # half a surrogate pair
        raise UnfitMessage(f"{type(message).__name__}: {error}") from None


def decode_body(cls: type[M], raw: bytes | bytearray) -> M:
    """Return the message of a body; raise FrameError ("body") for one that does not fit `cls`.

    - A field without default must be there.
    - A field that is there must be in its range.
    - Unknown fields are ignored.
    """
    body = _read_json(raw)
    if not isinstance(body, dict):
        raise FrameError("body", type(body).__name__)
    rules = _RULES[cls]
    for name, rule in rules.items():
        if name not in body:
            if rule.required:
                raise FrameError("body", f"{cls.__name__}.{name} missing")
        elif not rule.accepts(body[name]):
            raise FrameError("body", f"{cls.__name__}.{name}")
    # Unknown fields are left out here: a newer peer may send more than this one knows.
    build = cast("Callable[..., M]", cls)
    return build(**{name: body[name] for name in rules.keys() & body.keys()})


Json = dict[str, object] | list[object] | str | float | None

_write_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode
# NaN and Infinity are no JSON. As their names are no digits, `int` refuses them.
_parse_json = json.JSONDecoder(parse_constant=int).decode


def _read_json(raw: bytes | bytearray) -> Json:
    """Return the value of a JSON text; raise FrameError for anything else."""
    try:
        text = raw.decode()
        value: Json = _parse_json(text)
        if "\\u" in text:
            # An escape can hide half a surrogate pair, which does not encode.
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise FrameError("body", str(error)[:80]) from None
    return value


# --- checks of fields

FieldCheck = Callable[[object], bool]


@dataclass(frozen=True, slots=True)
class _FieldRule:
    """A check of one field of a body.

    accepts: returns True for a value that the field may have.
    required: the field must be there, as its class has no default.
    """

    accepts: FieldCheck
    required: bool


def _is_u32(value: object) -> bool:
    """Return True for an integer of 32 bits; `True` is none."""
    return type(value) is int and 0 <= value <= U32_MAX


def _is_number(value: object) -> bool:
    """Return True for a number that a float can hold; `True` is none."""
    return type(value) in (float, int) and abs(cast("float", value)) <= sys.float_info.max


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_name(value: object) -> bool:
    """Return True for a short text, such as one that logs and metrics may repeat."""
    return isinstance(value, str) and len(value) <= MAX_NAME


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_object(value: object) -> bool:
    """Return True for an object that the json module can write again."""
    return _is_json(value, MAX_DEPTH + 1) and isinstance(value, dict)


def _is_json(value: object, depth: int) -> bool:
    """Return True if all numbers are finite and containers, itself included, under `depth` deep."""
    if isinstance(value, dict):
        items = cast("Collection[object]", value.values())
    elif isinstance(value, list):
        items = cast("Collection[object]", value)
    else:
        return not isinstance(value, float) or math.isfinite(value)
    if depth <= 1:
        return False
    return all(_is_json(item, depth - 1) for item in items)


def _list_of(check: FieldCheck) -> FieldCheck:
    """Return the check of a list whose items all pass `check`."""

    def passes(value: object) -> bool:
        return isinstance(value, list) and all(map(check, cast("list[object]", value)))

    return passes


_CHECKS: dict[object, FieldCheck] = {
    int: _is_u32,
    float: _is_number,
    str: _is_name,
    bool: _is_flag,
    list[int]: _list_of(_is_u32),
    list[float]: _list_of(_is_number),
    list[str]: _list_of(_is_text),
    list[dict[str, object]]: _list_of(_is_object),
    dict[str, object]: _is_object,
}
_TEXTS = frozenset({"prompt", "message", "text", "prediction"})
"""String fields that are texts, which only MAX_BODY bounds. Every other string is a name."""


def _rules_of(cls: type[ControlMessage]) -> dict[str, _FieldRule]:
    """Return the rules of a message's fields, by name."""
    # A message class is its own schema: PROTOCOL.md, the class and this check cannot disagree. A
    # field of a new type is a KeyError when this module is loaded, not a hole in the check.
    hints = get_type_hints(cls)
    rules: dict[str, _FieldRule] = {}
    for field in fields(cls):
        check = _is_text if field.name in _TEXTS else _CHECKS[hints[field.name]]
        required = field.default is MISSING and field.default_factory is MISSING
        rules[field.name] = _FieldRule(check, required)
    return rules


_RULES = {cls: _rules_of(cls) for cls in get_args(ControlMessage)}
