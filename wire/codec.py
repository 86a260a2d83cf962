"""Bytes <-> messages (PROTOCOL.md section 3). Total: any bytes decode to a message or raise FrameError, no more."""

import json
import math
import struct
import sys
from collections.abc import Callable, Iterable
from dataclasses import MISSING, asdict, fields
from typing import TypeVar, cast, get_args, get_type_hints
from zlib import crc32

from specmesh.errors import FrameError
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
MAX_NAME = 1024
MAX_DEPTH = 16  # objects and arrays within each other, in a field that is one: json writes less deep than it reads
M = TypeVar("M", bound=ControlMessage)
FieldCheck = Callable[[object], bool]

_LONG_TEXT = frozenset(
    {"prompt", "message"}
)  # only MAX_BODY bounds these; every other string is a name

_read = json.JSONDecoder(
    parse_constant=int
).decode  # NaN and Infinity, which are no JSON, are no int either


def encode_body(message: ControlMessage) -> bytes:
    """Serialise to compact UTF-8 JSON; raises ValueError where a peer would refuse a field or the length."""
    for name, (check, _) in _FIELDS[type(message)].items():
        if not check(getattr(message, name)):
            raise ValueError(f"{type(message).__name__}.{name} is out of its range")
    body = json.dumps(
        asdict(message), separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()
    if len(body) > MAX_BODY:
        raise ValueError(f"a control body of {len(body)} bytes exceeds {MAX_BODY}")
    return body


def decode_body(cls: type[M], raw: bytes) -> M:
    """Parse a body into `cls`; raises FrameError (reason "body") on anything that does not fit its fields."""
    try:
        text = raw.decode()
        body: dict[str, object] | list[object] | str | float | None = _read(text)
        if "\\u" in text:
            json.dumps(
                body, ensure_ascii=False
            ).encode()  # an escape can hide half a surrogate pair
    except (ValueError, RecursionError) as error:
        raise FrameError("body", str(error)[:80]) from None
    if not isinstance(body, dict):
        raise FrameError("body", type(body).__name__)
    for name, (check, required) in _FIELDS[cls].items():
        if name not in body:
            if required:
                raise FrameError("body", f"{cls.__name__}.{name} missing")
        elif not check(body[name]):
            raise FrameError("body", f"{cls.__name__}.{name}")
    make = cast("Callable[..., M]", cls)
    return make(**{name: body[name] for name in _FIELDS[cls].keys() & body.keys()})


def _is_u32(value: object) -> bool:
    return type(value) is int and 0 <= value <= U32_MAX


def _is_number(value: object) -> bool:
    return type(value) in (float, int) and abs(cast("float", value)) <= sys.float_info.max


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_json(value: object, depth: int) -> bool:
    """Whether numbers are finite, and containers, of which the value may be the first, fewer than `depth` deep."""
    if not isinstance(value, dict | list):
        return not isinstance(value, float) or math.isfinite(value)
    inner = cast("Iterable[object]", value.values() if isinstance(value, dict) else value)
    return depth > 1 and all(_is_json(one, depth - 1) for one in inner)


def _is_object(value: object) -> bool:
    return _is_json(value, MAX_DEPTH + 1) and isinstance(value, dict)


def _each(check: FieldCheck) -> FieldCheck:
    return lambda value: isinstance(value, list) and all(map(check, value))  # pyright: ignore[reportUnknownArgumentType]  # of anything


_CHECKS: dict[object, FieldCheck] = {
    int: _is_u32,
    float: _is_number,
    str: lambda value: isinstance(value, str) and len(value) <= MAX_NAME,
    bool: lambda value: isinstance(value, bool),
    list[int]: _each(_is_u32),
    list[float]: _each(_is_number),
    list[str]: _each(_is_text),
    list[dict[str, object]]: _each(_is_object),
    dict[str, object]: _is_object,
}


def _fields(cls: type[ControlMessage]) -> dict[str, tuple[FieldCheck, bool]]:
    """For each field of a message: its check, and whether it must be present."""
    hints = get_type_hints(cls)
    return {
        f.name: (
            _is_text if f.name in _LONG_TEXT else _CHECKS[hints[f.name]],
            f.default is MISSING and f.default_factory is MISSING,
        )
        for f in fields(cls)
    }


_FIELDS = {cls: _fields(cls) for cls in get_args(ControlMessage)}

MAGIC = b"SM"
HEADER = struct.Struct("<2sBBIIIHBB")
CRC = struct.Struct("<I")
IDS_COUNT = slice(
    16, 18
)  # of a frame not decoded yet: a length that does not bear it out is refused then
MAX_FRAME = (
    HEADER.size + MAX_BODY + CRC.size
)  # bytes of the longest frame; sockets are set to refuse more

_CLASSES: tuple[type[Message], ...] = get_args(m.TokenMessage) + get_args(ControlMessage)
_KIND_OF: dict[type[Message], Kind] = dict(
    zip(_CLASSES, Kind, strict=True)
)  # both are in the order of their numbers
_CONTROL: dict[Kind, type[ControlMessage]] = {
    _KIND_OF[cls]: cls for cls in get_args(ControlMessage)
}
_KINDS: dict[int, Kind] = {int(kind): kind for kind in Kind}
_INTACT = (
    0x2144DF1C  # the CRC-32 of any bytes with their own CRC-32 behind them: one pass, and no copy
)


def encode(message: Message) -> bytes:
    """Serialise one message. Raises ValueError when the caller asks for more than a frame holds (ids over MAX_TOKENS, a
    field out of range)."""
    kind = _KIND_OF[type(message)]
    if not isinstance(message, m.TokenMessage):
        frame = HEADER.pack(MAGIC, PROTOCOL_VERSION, kind, 0, 0, 0, 0, 0, 0) + encode_body(message)
        return frame + CRC.pack(crc32(frame))
    ids: tuple[int, ...] = getattr(message, "ids", ())
    if len(ids) > MAX_TOKENS:
        raise ValueError(f"{len(ids)} ids exceed the {MAX_TOKENS} of one frame")
    place = message.session, message.base, message.prefix_crc
    try:
        counts = getattr(message, "draft_n", 0), getattr(message, "accepted", 0)
        header = HEADER.pack(MAGIC, PROTOCOL_VERSION, kind, *place, len(ids), *counts)
        frame = header + struct.pack(f"<{len(ids)}i", *ids)
        if isinstance(message, m.DraftProbs):
            frame += _encode_distributions(message)
    except struct.error as error:
        raise ValueError(f"a field does not fit its place in the frame: {error}") from None
    return frame + CRC.pack(crc32(frame))


def decode(frame: bytes) -> Message:
    """Parse one frame; raises FrameError on anything else, before allocating from a count."""
    if not HEADER.size <= len(frame) <= MAX_FRAME:
        raise FrameError("length", len(frame))
    magic, version, kind_code, session, base, crc, count, draft_n, accepted = HEADER.unpack_from(
        frame
    )
    if magic != MAGIC:
        raise FrameError("magic", magic)
    if crc32(frame) != _INTACT:
        raise FrameError("checksum", len(frame))
    if version != PROTOCOL_VERSION:
        raise FrameError("version", version)
    kind = _KINDS.get(kind_code)
    if kind is None:
        raise FrameError("kind", kind_code)
    cls = _CONTROL.get(kind)
    if cls is not None:
        return decode_body(cls, frame[HEADER.size : -CRC.size])
    if count > MAX_TOKENS:
        raise FrameError("count", count)
    if kind is Kind.DRAFT_PROBS:
        return _decode_probs(frame, session, base, crc, count)
    ids = _decode_ids(frame, count)
    if kind is Kind.DRAFT:
        return m.Draft(session, base, crc, ids)
    if kind is Kind.TRUTH:
        return m.Truth(session, base, crc, ids, draft_n, accepted)
    if kind is Kind.SYNC:
        return m.Sync(session, base, crc, ids, draft_n)
    if ids:
        raise FrameError("count", count)
    return m.Nack(session, base, crc)


def may_be_control(frame: bytes, error: FrameError) -> bool:
    """Whether a frame that was refused came damaged and may have been a control one, which nobody says again.
    Those have zeros behind their kind, so that damage to the kind does not hide them."""
    if error.reason not in ("magic", "checksum"):
        return False
    return frame[3] >= Kind.HELLO or not any(frame[4 : HEADER.size])


def _decode_ids(frame: bytes, count: int) -> tuple[int, ...]:
    if len(frame) != HEADER.size + 4 * count + CRC.size:
        raise FrameError("length", len(frame))
    return struct.unpack_from(f"<{count}i", frame, HEADER.size)


def _encode_distributions(message: m.DraftProbs) -> bytes:
    sizes, total = message.sizes, sum(message.sizes)
    if len(sizes) != len(message.ids) or not len(message.support) == len(message.weights) == total:
        raise ValueError(
            "each id needs the size of its distribution, and each token of one its weight"
        )
    if any(size > MAX_SUPPORT for size in sizes):
        raise ValueError(f"a distribution of more than {MAX_SUPPORT} tokens")
    return struct.pack(
        f"<{len(sizes)}H{total}i{total}H", *sizes, *message.support, *message.weights
    )


def _decode_probs(frame: bytes, session: int, base: int, crc: int, count: int) -> m.DraftProbs:
    """Ids, the sizes of their distributions, then all tokens of these, then all weights."""
    end = HEADER.size + 6 * count
    if len(frame) < end + CRC.size:
        raise FrameError("length", len(frame))
    numbers = struct.unpack_from(f"<{count}i{count}H", frame, HEADER.size)
    ids, sizes = numbers[:count], numbers[count:]
    total = sum(sizes)
    if sizes and max(sizes) > MAX_SUPPORT:
        raise FrameError("count", max(sizes))
    if len(frame) != end + 6 * total + CRC.size:
        raise FrameError("length", len(frame))
    counts = struct.unpack_from(f"<{total}i{total}H", frame, end)
    return m.DraftProbs(session, base, crc, ids, sizes, counts[:total], counts[total:])
