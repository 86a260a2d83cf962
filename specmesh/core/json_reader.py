"""JSON read in short steps: a call into C keeps the interpreter's lock from other threads.

A body of 2 MiB may have a million values, for which the json module needs a large part of a second
in one call. For so long neither frames nor steps go on, at the will of one client. So a text with
many values is read by the module's own scanner in Python, which lets other threads in between two
values. It takes longer, but of its own thread only. Few values are read in one call: most requests
are one long text.

What is read is the same on both ways.
"""

import json
from collections.abc import Callable
from json import decoder, scanner
from typing import NoReturn, cast

FEW_VALUES = 2**16
"""Values, about, of JSON that one call reads: each takes 0.1 to 0.3 us."""

PART = 2**12
"""Items of a list that one call writes, or letters of one that one call reads."""

_Scan = Callable[[str, int], tuple[object, int]]
"""Read the value that begins at a place of a text; return it, and the place of its end."""

# Parts of json in Python, beside its C, that have no types.
_make_scanner = cast("Callable[[json.JSONDecoder], _Scan]", vars(scanner)["py_make_scanner"])
_read_list = cast(
    "Callable[[tuple[str, int], _Scan], tuple[list[object], int]]", vars(decoder)["JSONArray"]
)


def _refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and Infinity, which Python reads and JSON lacks."""
    raise ValueError(name)


def _object_of(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return an object of its fields, and take them: `dict` of many is one long call into C."""
    fields: dict[str, object] = {}
    pairs.reverse()
    while pairs:
        name, value = pairs.pop()
        fields[name] = value
    return fields


class _InSteps(json.JSONDecoder):
    """Reads in Python; `array` reads lists."""

    def __init__(self, array: object, parse_constant: Callable[[str], object] | None) -> None:
        super().__init__(object_pairs_hook=_object_of, parse_constant=parse_constant)
        self.parse_array = array
        self.scan_once = _make_scanner(self)


class _Reader:
    """Reads JSON in one call into C, or step by step in Python.

    Step by step, long lists of numbers are read in parts by C.
    """

    def __init__(self, parse_constant: Callable[[str], object] | None = None) -> None:
        self.at_once = json.JSONDecoder(parse_constant=parse_constant)
        self.in_steps = _InSteps(self._array, parse_constant)

    def _array(self, at: tuple[str, int], scan: _Scan) -> tuple[list[object], int]:
        """Read a list from behind its bracket; return it, and the place of its end."""
        text, begin = at
        values = list[object]()
        end = _end_of_numbers(text, begin)
        while (cut := text.find(",", begin + PART, end)) >= 0:
            values += self.at_once.decode(f"[{text[begin:cut]}]")
            begin = cut + 1
        rest, end = _read_list((text, begin), scan)
        if values and not rest:  # nothing after a comma
            raise json.JSONDecodeError("Expecting value", text, begin)
        return values + rest, end


def _end_of_numbers(text: str, begin: int) -> int:
    """Return the place of the first list, object or text after `begin`, or of a list's end."""
    end = text.find("]", begin)
    for mark in '[{"':
        found = text.find(mark, begin, end)
        if found >= 0:
            end = found
    return end


_lenient = _Reader()
_strict = _Reader(_refuse_constant)


def read_json(text: str, few: int = FEW_VALUES, *, strict: bool = True) -> object:
    """Return the value of JSON.

    few: values, about, above which it is read step by step.
    strict: NaN and Infinity are no JSON.

    Raises ValueError for text that is no JSON, and RecursionError.
    """
    reader = _strict if strict else _lenient
    values = 1 + sum(map(text.count, ",[{:"))
    read = reader.at_once if values <= few else reader.in_steps
    value: object = read.decode(text)
    return value
