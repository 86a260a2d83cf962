"""JSON values: the fields of a request, checked as they are read, and values at a path.

Two kinds of JSON need two ways:

- A client's request is judged. `Fields` reads each field by its name, and a wrong one is an error
  that names it. It knows afterwards which fields nobody has read: these are refused, or reported
  as ignored, but never dropped silently.
- A daemon's answer, or a template's metadata, is used as far as it goes. `at(value, "a.b")` and its
  kin return what is there, or an empty value of the kind that is asked for.
"""

import math
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import TypeGuard

from specmesh.errors import RemoteProtocolError, RequestError

Json = dict[str, object]


def is_object(value: object) -> TypeGuard[Json]:
    """Return True for a JSON object."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[object]]:
    """Return True for a JSON array."""
    return isinstance(value, list)


class Fields:
    """The fields of a request that are not null, each read by its name.

    Each method raises RequestError, with the name, for a field of another kind.

    given: the fields.
    """

    def __init__(self, given: object) -> None:
        """Take a request's body; raise RequestError if it is no object."""
        if not is_object(given):
            raise RequestError("the request body must be a JSON object")
        self.given: Json = {}
        for name, value in given.items():
            if value is not None:
                self.given[name] = value
        self._read: set[str] = set()

    def get(self, name: str, default: object = None) -> object:
        """Return a field of any kind, or the default."""
        self._read.add(name)
        return self.given.get(name, default)

    def text(self, name: str, default: str = "") -> str:
        """Return a string, or the default."""
        value = self.get(name, default)
        if not isinstance(value, str):
            raise RequestError(f"{name} must be a text", name)
        return value

    def number(self, name: str, default: float, low: float, high: float) -> float:
        """Return a number from `low` to `high`, or the default."""
        value = self.get(name, default)
        is_flag = isinstance(value, bool)
        if isinstance(value, int | float) and not is_flag and low <= value <= high:
            return float(value)
        raise RequestError(f"{name} must be a number from {low:g} to {high:g}", name)

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        """Return a whole number from `low` to `high`, also one written 1.0, or the default."""
        value = self.get(name, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is not int or not low <= value <= high:
            raise RequestError(f"{name} must be a whole number from {low} to {high}", name)
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """Return True or False, or the default."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise RequestError(f"{name} must be true or false", name)
        return value

    def listed(self, name: str) -> list[object]:
        """Return a list, empty by default."""
        value = self.get(name, [])
        if not is_list(value):
            raise RequestError(f"{name} must be a list", name)
        return value

    def mapping(self, name: str) -> Json:
        """Return a copy of an object, empty by default."""
        value = self.get(name, {})
        if not is_object(value):
            raise RequestError(f"{name} must be an object", name)
        return dict(value)

    def unread(self) -> list[str]:
        """Return the names of the fields that nobody has read."""
        return [name for name in self.given if name not in self._read]


MOST_LEVELS = 200
"""Lists and objects within one another, at most, in a value with a limit of its own."""


_NOTHING = object()


def check_short(value: object, name: str, most: int) -> None:
    """Raise RequestError for a value that is nested too deeply, or too long as JSON.

    It is too long if it certainly has more than `most` letters. No JSON is written for that, and
    it takes at most `most` steps.
    """
    letters = 0
    for part in _values(value, name):
        letters += len(part) if isinstance(part, str) else 1
        if letters > most:
            raise RequestError(f"{name} has more than {most} bytes: that is the most", name)


def check_few(value: object, name: str, most: int) -> None:
    """Raise RequestError for a value that is nested too deeply, or is made of more than `most`."""
    if not is_few(value, most, name):
        raise RequestError(f"{name} has more than {most} values: that is the most", name)


def is_few(value: object, most: int, name: str = "") -> bool:
    """Return True if a value is made of at most `most` values.

    With a name raise RequestError for a value that is nested too deeply.
    """
    first_too_many = islice(_values(value, name), most, None)
    return next(first_too_many, _NOTHING) is _NOTHING


def _values(value: object, name: str) -> Iterator[object]:
    """Yield a value, those that it is made of, and the names of its fields.

    With a name raise RequestError for a value that is nested too deeply.
    """
    left: list[Iterator[object]] = [iter((value,))]
    while left:
        depth = len(left)
        for part in left[-1]:
            yield part
            if is_list(part):
                left.append(iter(part))
                break
            if is_object(part):
                left.append(chain(part, part.values()))
                break
        else:
            left.pop()
        if name and depth > MOST_LEVELS + 1:
            raise RequestError(f"{name} is nested too deeply", name)


_LONGEST_PLACE = 8  # parts of a path that is shown
_LONGEST_NAME = 64  # letters of a name in it


def place_of_text(value: object, matches: Callable[[str], bool]) -> str | None:
    """Return the path of the first text that matches, such as "messages[0].content".

    A text that is the whole value has the path "", and the name of a field that of its object. None
    if no text matches. Clients choose the names, so a path has few parts, and a "*" for a name that
    is no word.
    """
    trail: list[str] = []
    left: list[Iterator[tuple[str, object]]] = [iter([("", value)])]
    while left:
        for name, part in left[-1]:
            if isinstance(part, str):
                if matches(part):
                    return "".join([*trail, name][:_LONGEST_PLACE]).removeprefix(".")
            elif is_list(part):
                trail.append(name)
                left.append((f"[{index}]", each) for index, each in enumerate(part))
                break
            elif is_object(part):
                trail.append(name)
                left.append(_named_fields(part))
                break
        else:
            left.pop()
            del trail[-1:]
    return None


def _named_fields(value: Json) -> Iterator[tuple[str, object]]:
    """Yield the values of an object behind their parts of a path, each after its name.

    A name has no part of its own.
    """
    for name, part in value.items():
        yield "", name
        is_word = name.isidentifier() and len(name) <= _LONGEST_NAME
        yield f".{name}" if is_word else ".*", part


def is_id(value: object) -> TypeGuard[int]:
    """Return True for a token id."""
    return type(value) is int and 0 <= value < 2**31


def are_ids(value: object) -> TypeGuard[list[int]]:
    """Return True for a list of token ids."""
    return is_list(value) and all(map(is_id, value))


# --- values at a path: names with dots between them. A value of another kind counts as missing.


def at(value: object, path: str) -> object:
    """Return the value at a path; None if it is missing."""
    for name in path.split("."):
        value = value.get(name) if is_object(value) else None
    return value


def number_at(value: object, path: str, default: float | None = None) -> float:
    """Return the number at a path, or the default.

    Raise RemoteProtocolError if both are missing: a missing number is no 0. One that no double
    holds counts as missing.
    """
    found = at(value, path)
    if isinstance(found, int | float) and -math.inf < found < math.inf:
        return found
    if default is None:
        raise RemoteProtocolError(f"an answer has no number as {path}")
    return default


def object_at(value: object, path: str) -> Json:
    """Return the object at a path, empty if it is missing."""
    found = at(value, path)
    return found if is_object(found) else {}


def list_at(value: object, path: str) -> list[object]:
    """Return the list at a path, empty if it is missing."""
    found = at(value, path)
    return found if is_list(found) else []


def objects_at(value: object, path: str) -> list[Json]:
    """Return the objects in the list at a path; its other items are left out."""
    return [item for item in list_at(value, path) if is_object(item)]


def ids_at(value: object, path: str) -> list[int]:
    """Return the token ids at a path, empty if they are missing."""
    found = at(value, path)
    return found if are_ids(found) else []


def sources_at(value: object, path: str) -> list[tuple[str, int]]:
    """Return the runs of sources at a path, each a name and a number of tokens.

    What is no run is left out.
    """
    runs: list[tuple[str, int]] = []
    for run in list_at(value, path):
        if is_list(run) and len(run) == 2:
            name, count = run
            if isinstance(name, str) and isinstance(count, int):
                runs.append((name, count))
    return runs
