"""JSON bodies of control frames, checked field by field against the message's annotations.

A peer's JSON is never trusted: types, ranges and lengths are checked before a value exists. Unknown keys are ignored,
so that a later version may add fields; missing ones without a default are an error.
"""

import json
import math
from collections.abc import Callable, Collection
from dataclasses import MISSING, asdict, fields
from typing import TypeVar, cast, get_args, get_type_hints

from specmesh.errors import FrameError
from specmesh.wire.messages import MAX_BODY, ControlMessage

U32_MAX = 2**32 - 1
MAX_NAME = 1024
MAX_DEPTH = 16
"""Objects and arrays within each other, in a field that is an object: json writes less deep than it reads."""
M = TypeVar("M", bound=ControlMessage)

_LONG_TEXT = frozenset({"prompt", "message", "grammar"})
"""Text that only MAX_BODY bounds; every other string is a name."""


def encode_body(message: ControlMessage) -> bytes:
    """Serialise to compact UTF-8 JSON; raises ValueError where a peer would refuse a field or the length."""
    for name, (check, _) in _FIELDS[type(message)].items():
        if not check(getattr(message, name)):
            raise ValueError(f"{type(message).__name__}.{name} is out of its range")
    body = json.dumps(asdict(message), separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    if len(body) > MAX_BODY:
        raise ValueError(f"a control body of {len(body)} bytes exceeds {MAX_BODY}")
    return body


def decode_body(cls: type[M], raw: bytes) -> M:
    """Parse a body into `cls`; raises FrameError (reason "body") on anything that does not fit its fields."""
    try:
        text = raw.decode().strip(_SPACE)
        body, end = _JSON.raw_decode(text)
        if end < len(text):
            raise FrameError("body", "more than one value")
        if "\\u" in text:
            json.dumps(body, ensure_ascii=False).encode()  # an escape can hide half a surrogate pair
    except (ValueError, RecursionError) as error:
        raise FrameError("body", str(error)[:80]) from None
    if not isinstance(body, dict):
        raise FrameError("body", type(body).__name__)
    values: dict[str, object] = {}
    for name, (check, required) in _FIELDS[cls].items():
        if name in body:
            if not check(body[name]):
                raise FrameError("body", f"{cls.__name__}.{name}")
            values[name] = body[name]
        elif required:
            raise FrameError("body", f"{cls.__name__}.{name} missing")
    make = cast("Callable[..., M]", cls)
    return make(**values)


def _finite(literal: str) -> float:
    """A JSON number with a fraction or exponent; raises ValueError for NaN, Infinity and 1e999."""
    value = float(literal)
    if not math.isfinite(value):
        raise ValueError(f"{literal} is not finite")
    return value


_CONTAINERS, _INTEGERS, _STRINGS = frozenset({dict, list}), frozenset({int}), frozenset({str})
_SPACE = " \t\n\r"
_JSON = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)


def _is_u32(value: object) -> bool:
    return type(value) is int and 0 <= value <= U32_MAX


def _is_number(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return type(value) is int and abs(value) <= U32_MAX


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_flat(level: list[Collection[object]]) -> bool:
    """Whether containers are at most MAX_DEPTH within each other, these being the first."""
    for _ in range(MAX_DEPTH):
        deeper = [items for items in map(_items, level) if not _CONTAINERS.isdisjoint(map(type, items))]
        if not deeper:
            return True
        level = [inner for items in deeper for inner in items if isinstance(inner, dict | list)]
    return False


def _items(container: Collection[object]) -> Collection[object]:
    return container.values() if isinstance(container, dict) else container


def _is_ids(value: object) -> bool:
    if not isinstance(value, list) or not _INTEGERS.issuperset(map(type, value)):
        return False
    return not value or (min(value) >= 0 and max(value) <= U32_MAX)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and _STRINGS.issuperset(map(type, value))


_CHECKS: dict[object, Callable[[object], bool]] = {
    int: _is_u32,
    float: _is_number,
    str: lambda value: isinstance(value, str) and len(value) <= MAX_NAME,
    bool: lambda value: isinstance(value, bool),
    list[int]: _is_ids,
    list[float]: lambda value: isinstance(value, list) and all(map(_is_number, value)),
    list[str]: _is_texts,
    list[dict[str, str]]: lambda value: (
        isinstance(value, list) and all(isinstance(item, dict) and _is_texts([*item.values()]) for item in value)
    ),
    dict[str, object]: lambda value: isinstance(value, dict) and _is_flat([value]),
}


def _fields(cls: type[ControlMessage]) -> dict[str, tuple[Callable[[object], bool], bool]]:
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
