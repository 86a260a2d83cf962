"""Regular expressions for the strings of JSON schemas, in llguidance's dialect."""

import re
from collections.abc import Iterable, Iterator

_DAY = "(?:0[1-9]|1[0-9]|2[0-8])"  # of any month
_MONTHS_DAY = f"(?:(?:0[1-9]|1[0-2])-{_DAY}|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"  # not 0000
_OF_FOUR = "(?:0[48]|[2468][048]|[13579][26])"  # the two digits of a leap year that is no century
_LEAP = f"(?:[0-9]{{2}}{_OF_FOUR}|{_OF_FOUR}00)"
_DATE = f"(?:{_YEAR}-{_MONTHS_DAY}|{_LEAP}-02-29)"
_HOUR = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_HOUR}:[0-5][0-9](?:\.[0-9]+)?(?:[zZ]|[+-]{_HOUR})"
_CLOCK = "(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_CALENDAR = "(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
_LABEL = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL})*"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_ATOM = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+"
_HEX = "[0-9a-fA-F]"
_WORD = f"{_HEX}{{1,4}}"  # 16 bits of an address
_UNRESERVED = r"[a-zA-Z0-9._~!$&'()*+,;=-]"


def _ipv6() -> str:
    """Return the forms of an address: whole, or with `::` for at least one word."""
    forms = [f"(?:{_WORD}:){{7}}{_WORD}"]
    for before in range(8):
        head = f"(?:{_WORD}:){{{before - 1}}}{_WORD}" if before else ""
        after = 7 - before
        tail = f"(?:{_WORD}(?::{_WORD}){{0,{after - 1}}})?" if after else ""
        forms.append(f"{head}::{tail}")
    return f"(?:{'|'.join(forms)})"


def _uri() -> str:
    """Return RFC 3986's form of a URI."""
    escaped = f"%{_HEX}{{2}}"
    segment = f"(?:{_UNRESERVED}|[:@]|{escaped})"
    host = rf"(?:\[{_ipv6()}\]|(?:{_UNRESERVED}|{escaped})*)"
    authority = f"(?:(?:{_UNRESERVED}|:|{escaped})*@)?{host}(?::[0-9]*)?"
    path = f"(?:{segment}+(?:/{segment}*)*)"
    body = f"(?://{authority}(?:/{segment}*)*|/{path}?|{path}|)"
    query = f"(?:{segment}|[/?])*"
    return rf"[a-zA-Z][a-zA-Z0-9+.-]*:{body}(?:\?{query})?(?:#{query})?"


FORMAT_REGEXES = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}[tT]{_TIME}",
    "duration": f"P(?:{_CALENDAR}(?:T{_CLOCK})?|T{_CLOCK}|[0-9]+W)",
    "email": rf"{_ATOM}(?:\.{_ATOM})*@(?:{_HOST}|\[{_IPV4}\])",
    "hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": _ipv6(),
    "uuid": f"{_HEX}{{8}}-(?:{_HEX}{{4}}-){{3}}{_HEX}{{12}}",
    "uri": _uri(),
}
"""Expressions for a whole string of JSON Schema's formats. Seconds go to 59."""

CALENDAR = frozenset(("date", "date-time", "time"))

ANYTHING = "(?s:.*)"


def whole(regex: str) -> str:
    """Return a pattern for a whole string, from an expression without anchors."""
    return f"^(?:{regex})$"


def all_but(names: Iterable[str]) -> str:
    """Return an expression for all strings but these, without look-around: letter by letter."""
    rests = dict[str, list[str]]()
    ways = [""]
    for name in names:
        if name:
            rests.setdefault(name[0], []).append(name[1:])
        else:
            ways = []
    if not rests:
        return "|".join([*ways, "(?s:.+)"])
    letters = "".join(map(literal, rests))
    ways.append(f"[^{letters}]{ANYTHING}")
    for letter, rest in rests.items():
        ways.append(f"{literal(letter)}(?:{all_but(rest)})")
    return "|".join(ways)


def literal(text: str) -> str:
    """Return an expression for a text, letter by letter."""
    return "".join(f"\\x{{{ord(letter):x}}}" for letter in text)


# --- patterns

_PART = re.compile(r"\\(?:[dDwWsS]|[pP]\{\w+\}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)|.", re.DOTALL)
_SPECIAL_IN_CLASS = frozenset("[]&~-^\\")


def pattern(text: str) -> str:
    """Return a pattern of ECMA 262's dialect in Rust's.

    In Rust a class may hold others, and be made of them with `&&`, `--` and `~~`. In ECMA 262 a
    brace that repeats nothing is a letter.
    """
    parts = _PART.findall(text)
    return "".join(_parts(parts))


def _parts(parts: list[str]) -> Iterator[str]:
    at = 0
    while at < len(parts):
        part = parts[at]
        if part == "[":
            end = _end_of_class(parts, at)
            yield from _class(parts[at:end])
            at = end
            continue
        repeats = re.match(r"\{\d+(,\d*)?\}", "".join(parts[at : at + 24])) is not None
        literally = part == "{" and not repeats and parts[at + 1 : at + 2] != [","]
        yield r"\{" if literally else part
        at += 1


def _end_of_class(parts: list[str], begin: int) -> int:
    """Return the index after a class. Its first letter never ends it."""
    first = begin + 1
    if parts[first : first + 1] == ["^"]:
        first += 1
    for at in range(first + 1, len(parts)):
        if parts[at] == "]":
            return at + 1
    return len(parts)


def _class(parts: list[str]) -> Iterator[str]:
    """Escape letters with a meaning in Rust's classes only. `-` between two letters is a range."""
    yield "["
    inner = parts[1:-1]
    if inner[:1] == ["^"]:
        yield "^"
        inner = inner[1:]
    at = 0
    while at < len(inner):
        part = inner[at]
        yield _in_class(part)
        last = inner[at + 2 : at + 3]
        if inner[at + 1 : at + 2] == ["-"] and last and not _is_set(part) and not _is_set(last[0]):
            yield f"-{_in_class(last[0])}"
            at += 2
        at += 1
    yield parts[-1]


def _is_set(part: str) -> bool:
    return re.match(r"\\[dDwWsSpP]", part) is not None


def _in_class(part: str) -> str:
    if part in _SPECIAL_IN_CLASS:
        return f"\\{part}"
    return part


_ASCII = {r"\d": "[0-9]", r"\D": "[^0-9]", r"\w": "[0-9a-zA-Z_]", r"\W": "[^0-9a-zA-Z_]"}


def full_match(text: str) -> str | None:
    """Return an expression for the whole strings in which a pattern is found.

    None if it has anchors other than at the ends of its alternatives.
    """
    ways = list[str]()
    for alternative in _alternatives(_PART.findall(pattern(text))):
        parts = alternative
        before = ANYTHING
        after = ANYTHING
        if parts[:1] == ["^"]:
            before = ""
            parts = parts[1:]
        if parts[-1:] == ["$"]:
            after = ""
            parts = parts[:-1]
        if any(part in ("^", "$") for _, part in _outside(parts)):
            return None
        body = "".join(_ASCII.get(part, part) for part in parts)
        ways.append(f"{before}(?:{body}){after}")
    return "|".join(ways)


def _alternatives(parts: list[str]) -> Iterator[list[str]]:
    """Cut at each bar outside of groups and classes."""
    depth = 0
    begin = 0
    for at, part in _outside(parts):
        if part == "(":
            depth += 1
        elif part == ")":
            depth -= 1
        elif part == "|" and not depth:
            yield parts[begin:at]
            begin = at + 1
    yield parts[begin:]


def _outside(parts: list[str]) -> Iterator[tuple[int, str]]:
    """Yield the parts outside of classes, with their indices."""
    inside = False
    for at, part in enumerate(parts):
        if inside:
            inside = part != "]"
        elif part == "[":
            inside = True
        else:
            yield at, part
