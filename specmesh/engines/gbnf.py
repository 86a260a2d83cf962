"""llama.cpp's GBNF in the language of llguidance.

GBNF knows characters only; the library has a lexer before its parser, which always takes the longest lexeme. What is
split differently is a different language: after `[a-z]+` a "b" could never follow. So each character is a lexeme of its
own here, and the parser does the rest, as llama.cpp's does. Only a grammar without recursion is one lexeme as a whole.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from specmesh.errors import RequestError

MOST_TIMES = 2000
"""The largest number in a repetition, which is llama.cpp's too."""

_LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-", "^": "^"}
_HEX = {"x": 2, "u": 4, "U": 8}
_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_BLANK, _BLANK_LINES = re.compile(r"(?:[ \t]|#[^\r\n]*)*"), re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_TIMES = re.compile(r"\{\s*(\d+)\s*(?:(,)\s*(\d+)?\s*)?\}")


class _Chars(NamedTuple):
    """One character out of these ranges of code points."""

    ranges: tuple[tuple[int, int], ...]


class _Literal(NamedTuple):
    text: str


class _Ref(NamedTuple):
    rule: str


class _Sequence(NamedTuple):
    items: tuple["_Node", ...]


class _Choice(NamedTuple):
    options: tuple["_Node", ...]


class _Repeat(NamedTuple):
    item: "_Node"
    least: int
    most: int | None


_Node = _Chars | _Literal | _Ref | _Sequence | _Choice | _Repeat


def gbnf_to_lark(text: str) -> str:
    """The same language, beginning with `start`. Raises RequestError with the line where it is no GBNF."""
    try:
        rules = _Reader(text).rules()
        _check(rules)
        return _written(rules, "r" if _recursive(rules) else "R")
    except RecursionError:
        raise RequestError("its parts are nested too deeply") from None


@dataclass(slots=True)
class _Reader:
    """Reads a grammar from its beginning to its end."""

    text: str
    at: int = 0
    _rules: dict[str, _Node] = field(default_factory=dict)

    def rules(self) -> dict[str, _Node]:
        """The rules by name."""
        self._skip(lines=True)
        while self.at < len(self.text):
            name = self._name()
            self._skip()
            self._expect("::=")
            self._skip(lines=True)
            self._rules[name] = self._choice(nested=False)
            if self.at < len(self.text) and self.text[self.at] not in "\r\n":
                raise self._wrong(f"unexpected {self.text[self.at]!r}")
            self._skip(lines=True)
        return self._rules

    def _choice(self, *, nested: bool) -> _Node:
        options = [self._sequence(nested=nested)]
        while self._next("|"):
            self._skip(lines=True)
            options.append(self._sequence(nested=nested))
        return options[0] if len(options) == 1 else _Choice(tuple(options))

    def _sequence(self, *, nested: bool) -> _Node:
        items: list[_Node] = []
        while (item := self._item()) is not None:
            self._skip(lines=nested)
            while (times := self._times()) is not None:
                item = _Repeat(item, *times)
                self._skip(lines=nested)
            items.append(item)
        return items[0] if len(items) == 1 else _Sequence(tuple(items))

    def _item(self) -> _Node | None:
        if self._next('"'):
            return self._literal()
        if self._next("["):
            return self._class()
        if self._next("."):
            return _Chars(((0, _LAST),))
        if self._next("("):
            self._skip(lines=True)
            inner = self._choice(nested=True)
            self._expect(")")
            return inner
        if self.text[self.at : self.at + 1] in ("<", "!"):
            raise self._wrong("tokens by name or number are not supported")
        return _Ref(self._name()) if _NAME.match(self.text, self.at) else None

    def _literal(self) -> _Node:
        chars: list[str] = []
        while not self._next('"'):
            chars.append(chr(self._char()))
        return _Literal("".join(chars))

    def _class(self) -> _Node:
        negated = self._next("^")
        ranges: list[tuple[int, int]] = []
        while not self._next("]"):
            first = last = self._char()
            if self.text[self.at : self.at + 1] == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                last = self._char()
            if last < first:
                raise self._wrong(f"a class cannot go from {chr(first)} to {chr(last)}")
            ranges.append((first, last))
        if not ranges:
            raise self._wrong("a class without characters")
        return _Chars(tuple(_complement(ranges) if negated else ranges))

    def _char(self) -> int:
        """The code point of the next character, which may be escaped."""
        if self.at >= len(self.text):
            raise self._wrong("unexpected end")
        char = self.text[self.at]
        self.at += 1
        if char != "\\":
            return ord(char)
        kind = self.text[self.at : self.at + 1]
        self.at += 1
        if kind in _ESCAPES:
            return ord(_ESCAPES[kind])
        digits = self.text[self.at : self.at + _HEX.get(kind, 0)]
        if not digits or len(digits) < _HEX[kind] or not re.fullmatch("[0-9a-fA-F]+", digits):
            raise self._wrong(f"unknown escape \\{kind}")
        self.at += len(digits)
        if (code := int(digits, 16)) > _LAST or _SURROGATES[0] <= code <= _SURROGATES[1]:
            raise self._wrong(f"\\{kind}{digits} is no character")
        return code

    def _times(self) -> tuple[int, int | None] | None:
        """A repetition, if there is one."""
        for sign, times in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._next(sign):
                return times
        found = _TIMES.match(self.text, self.at)
        if found is None:
            if self.text[self.at : self.at + 1] == "{":
                raise self._wrong("give {N}, {N,} or {N,M}")
            return None
        least = _number(found[1])
        most = least if found[2] is None else _number(found[3]) if found[3] is not None else None
        if max(least, most or 0) > MOST_TIMES or (most is not None and most < least):
            raise self._wrong(f"a repetition goes from N to M, {MOST_TIMES} at most")
        self.at = found.end()
        return least, most

    def _name(self) -> str:
        found = _NAME.match(self.text, self.at)
        if found is None:
            raise self._wrong("expected the name of a rule")
        self.at = found.end()
        return found[0]

    def _skip(self, *, lines: bool = False) -> None:
        found = (_BLANK_LINES if lines else _BLANK).match(self.text, self.at)
        assert found is not None, "it may be empty"
        self.at = found.end()

    def _next(self, sign: str) -> bool:
        """Whether this comes next; it is read then."""
        there = self.text.startswith(sign, self.at)
        self.at += len(sign) * there
        return there

    def _expect(self, sign: str) -> None:
        if not self._next(sign):
            raise self._wrong(f"expected {sign}")

    def _wrong(self, what: str) -> RequestError:
        return RequestError(f"line {self.text.count(chr(10), 0, self.at) + 1}: {what}")


def _number(digits: str) -> int:
    """A number that may be absurdly long."""
    return int(digits) if len(digits) < 10 else MOST_TIMES + 1


def _complement(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """What these ranges leave of all code points."""
    begin = 0
    for first, last in sorted(ranges):
        if begin < first:
            yield begin, first - 1
        begin = max(begin, last + 1)
    if begin <= _LAST:
        yield begin, _LAST


def _check(rules: Mapping[str, _Node]) -> None:
    if "root" not in rules:
        raise RequestError("there is no rule named root, with which a text begins")
    for name, node in rules.items():
        for used in _used(node):
            if used not in rules:
                raise RequestError(f"rule {name} uses {used}, which there is none of")


def _used(node: _Node) -> Iterator[str]:
    """The names of the rules in a node."""
    match node:
        case _Ref(name):
            yield name
        case _Sequence(parts) | _Choice(parts):
            for part in parts:
                yield from _used(part)
        case _Repeat(item):
            yield from _used(item)
        case _Chars() | _Literal():
            pass


def _recursive(rules: Mapping[str, _Node]) -> bool:
    """Whether some rule that a text can come to uses itself."""
    done: set[str] = set()
    above: set[str] = set()

    def visit(name: str) -> bool:
        if name in above:
            return True
        if name in done:
            return False
        above.add(name)
        found = any(visit(used) for used in _used(rules[name]))
        above.remove(name)
        done.add(name)
        return found

    return visit("root")


def _written(rules: Mapping[str, _Node], letter: str) -> str:
    """The rules that a text can come to: r1, r2 for the parser, or R1, R2 for the lexer, which takes them as one."""
    names: dict[str, str] = {"root": f"{letter}0"}
    lines = [f"start: {names['root']}"]
    waiting = ["root"]
    while waiting:
        name = waiting.pop()
        for used in _used(rules[name]):
            if used not in names:
                names[used] = f"{letter}{len(names)}"
                waiting.append(used)
        lines.append(f"{names[name]}: {_expression(rules[name], names)}")
    return "\n".join(lines) + "\n"


def _expression(node: _Node, names: Mapping[str, str]) -> str:
    match node:
        case _Chars(ranges):
            return f"/[{''.join(_range(first, last) for first, last in _characters(ranges))}]/"
        case _Literal(text) if not text or names["root"] == "R0":  # letter by letter it takes a hundred times as long
            return json.dumps(text)
        case _Literal(text):
            return f"({' '.join(f'/[{_range(ord(char), ord(char))}]/' for char in text)})"
        case _Ref(name):
            return names[name]
        case _Sequence(items):
            return f"({' '.join(_expression(item, names) for item in items)})" if items else '""'
        case _Choice(options):
            return f"({' | '.join(_expression(option, names) for option in options)})"
        case _Repeat(item, least, most):
            return f"({_expression(item, names)}){{{least},{'' if most is None else most}}}"


def _characters(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The ranges without surrogates, which no text has."""
    before, after = _SURROGATES
    for first, last in ranges:
        if first < before:
            yield first, min(last, before - 1)
        if last > after:
            yield max(first, after + 1), min(last, _LAST)


def _range(first: int, last: int) -> str:
    return f"\\x{{{first:x}}}-\\x{{{last:x}}}"
