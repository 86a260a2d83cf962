"""JSON of any length, read and written so that no other thread waits long.

One call into C keeps the interpreter's lock to its end.
"""

import gc
import json
import re
import threading
from collections.abc import Generator
from contextlib import contextmanager

from specmesh.core.fields import Json, is_few, is_list, place_of_text
from specmesh.core.json_reader import FEW_VALUES, PART, read_json
from specmesh.errors import RequestError

MOST_NESTED = 2**18
"""Brackets that open in all JSON that is read; texts may have some too.

Nobody needs as many, and a million lists take a second.
"""

MOST_QUOTES = 2**20
"""Quotes of all JSON that is read."""

HALF = "half a surrogate pair (\\ud800 to \\udfff): no text"

TOO_DEEP = "the request body is nested too deeply"

_ESCAPE = re.compile(
    r"\\(?:\\|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>u[dD][89a-fA-F]))"
)
"""A backslash, a whole surrogate pair, or half of one."""

_HALF_READ = re.compile("[\ud800-\udfff]")
"""Half a pair in a text that was read: whole ones have become one letter."""


@contextmanager
def collector_paused() -> Generator[None]:
    """Keep Python's collector from running in the context.

    Its look at a million values takes as long as reading some, and every thread waits for it.
    """
    global _pauses  # noqa: PLW0603  (there is one collector)
    with _counting:
        _pauses += 1
        gc.disable()
    try:
        yield
    finally:
        with _counting:
            _pauses -= 1
            if not _pauses:
                gc.enable()


_pauses = 0
_counting = threading.Lock()


def parse_json(raw: bytes | bytearray) -> object:
    """Return the value of a body.

    Raises RequestError if it is not JSON in UTF-8, has half a surrogate pair, or has too many
    values or values within values.
    """
    if raw.count(b"[") + raw.count(b"{") > MOST_NESTED or raw.count(b'"') > MOST_QUOTES:
        why = f"the request body has more than {MOST_NESTED} lists and objects, or texts"
        raise RequestError(f"{why}: send fewer")
    try:
        text = raw.decode("utf-8-sig")
        value = read_json(text, FEW_VALUES)
    except RecursionError:
        raise RequestError(TOO_DEEP) from None
    except ValueError:
        raise RequestError("the request body is not JSON") from None
    if b"\\u" in raw and any(escape["half"] for escape in _ESCAPE.finditer(text)):
        raise _half_a_pair(value)
    return value


def _half_a_pair(value: object) -> RequestError:
    """Return the refusal of a body with half a surrogate pair; it names the field, if it has one.

    It has none if it came twice and only its last value counts.
    """
    place = place_of_text(value, lambda text: _HALF_READ.search(text) is not None)
    return RequestError(f"{place or 'the body'} has {HALF}", place or None)


_write = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def write_json(value: Json) -> str:
    """Return an object as compact JSON; its fields may be lists of any length."""
    fields = [f"{_write(name)}:{_value(inner)}" for name, inner in value.items()]
    return f"{{{','.join(fields)}}}"


def _value(value: object) -> str:
    if not is_list(value):
        return _write(value)
    parts = [value[at : at + PART] for at in range(0, len(value), PART)]
    return f"[{','.join(_write(part)[1:-1] for part in parts)}]"


_plain = json.JSONEncoder(ensure_ascii=False, allow_nan=False)

to_json = json.JSONEncoder(ensure_ascii=False).encode
"""Return short JSON as `json.dumps` writes it."""


def write_gently(value: Json) -> str:
    """Return JSON as `json.dumps` writes it, step by step if it is much.

    Raises RequestError if it is nested too deeply, and for a number that no double holds: it was
    read as infinity, which JSON lacks.
    """
    try:
        if is_few(value, FEW_VALUES):
            return _plain.encode(value)
        return "".join(_plain.iterencode(value))
    except RecursionError:
        raise RequestError(TOO_DEEP) from None
    except ValueError:
        raise RequestError("the request body has a number that no double holds") from None
