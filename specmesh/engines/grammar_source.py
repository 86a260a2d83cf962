"""Clients' grammars in llguidance's language: llama.cpp's GBNF and JSON schemas, tried in a child process.

GBNF knows characters only; llguidance's lexer takes the longest lexeme before its parser sees it, which changes the
language: after `[a-z]+` a "b" could never follow. So each character is a lexeme, and the parser does the rest, as
llama.cpp's does. A grammar without recursion is one lexeme as a whole.
"""

import graphlib
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from specmesh.core.sampling.constraint import GrammarKind
from specmesh.engines.sandbox import Json
from specmesh.errors import RequestError

MOST_TIMES = 2000
"""Largest number in a repetition, as in llama.cpp."""

LIMITS = LLParserLimits(max_lexer_states=50_000, max_grammar_size=200_000)
"""Besides the library's own: a state is 0.35 to 0.85 kilobytes."""

ON_ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON as `json.dumps` writes it: a model cannot emit blanks without end, and the schema forces more of the text. A
schema's own `x-guidance` goes before it."""

_OPENING = ("additionalProperties", "patternProperties", "unevaluatedProperties", "anyOf", "oneOf", "$ref")
"""Keywords that say something of properties that a schema does not name."""

_NAMING = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords whose value has names of the schema's own, whatever they are."""

_TOO_LARGE = f"it is too large: it takes more than {LIMITS.initial_lexer_fuel} steps to compile"
_IN_OTHER_WORDS = {
    "NoExtension": "no text fits it: a rule that begins with itself needs another way to begin (left recursion)",
    "initial lexer configuration": _TOO_LARGE,
    "relevance of lexemes": _TOO_LARGE,
    "grammar size": f"it is too large: it has more than {LIMITS.max_grammar_size} symbols",
    "items": "it is too ambiguous: there are too many ways to read the same text",
}

_UNFORCED = '%llguidance {"no_forcing": true}\n'
"""Any spelling of an allowed text may be chosen, not only the library's."""

_LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-", "^": "^"}
_RANGE = r"\x{{{:x}}}-\x{{{:x}}}"
_HEX = {"x": 2, "u": 4, "U": 8}
_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_BLANK, _BLANK_LINES = re.compile(r"(?:[ \t]|#[^\r\n]*)*"), re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_TIMES = re.compile(r"\{\s*(\d+)\s*(?:(,)\s*(\d+)?\s*)?\}")


def answer(request: Json) -> Json:
    """In the child: return a request's grammar in llguidance's language as `lark`, or the reason as `refused`."""
    text = str(request["text"])
    try:
        lark = _UNFORCED + (_of_schema(text) if request["kind"] == GrammarKind.JSON_SCHEMA else gbnf_to_lark(text))
    except RequestError as error:
        return {"refused": str(error)}
    matcher = LLMatcher(LLTokenizer("byte"), lark, log_level=0, limits=LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()
    return {"refused": describe(matcher.get_error())} if matcher.is_error() else {"lark": lark}


def describe(error: str) -> str:
    """Shorten the library's error: positions are in its own language."""
    first, _, rest = re.sub(r"^at [0-9()]+: (failed to compile JSON schema: )?", "", error).partition("\n")
    if (cause := re.search(r"^error: (.+)", rest, re.MULTILINE)) is not None:
        return f"{first[:200]} {cause[1]}: {rest.partition(chr(10))[0].strip()[:100]}"
    return next((words for known, words in _IN_OTHER_WORDS.items() if known in first), first[:300])


def _of_schema(text: str) -> str:
    schema = json.loads(text)
    own = schema.get("x-guidance")
    options = ON_ONE_LINE | (own if isinstance(own, dict) else {})
    closed = schema if '"allOf"' in text else _closed(schema)
    return f"start: %json {json.dumps(closed | {'x-guidance': options})}"


def _closed(schema: Any) -> Any:
    """Forbid properties that an object's schema does not name, unless it says something of others, as llama.cpp does.

    A model asked for two properties would invent more. Not where several schemas hold for one object (allOf).
    """
    if isinstance(schema, list):
        return [_closed(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    closed = dict[str, Any]()
    for keyword, value in schema.items():
        if keyword in _NAMING and isinstance(value, dict):
            closed[keyword] = {name: _closed(inner) for name, inner in value.items()}
        else:
            closed[keyword] = value if keyword in ("enum", "const") else _closed(value)
    if isinstance(schema.get("properties"), dict) and not any(name in schema for name in _OPENING):
        closed["additionalProperties"] = False
    return closed


def gbnf_to_lark(text: str) -> str:
    """Translate GBNF; the first rule is `start`. Raises RequestError, with the line of a syntax error."""
    try:
        read = _GbnfTranslator(text, by_parser=False)
        if "root" not in read.rules:
            raise RequestError("there is no rule named root, with which a text begins")
        for name, used in read.uses.items():
            for other in used - read.rules.keys():
                raise RequestError(f"rule {name} uses {other}, which there is none of")
        try:
            graphlib.TopologicalSorter(read.uses).prepare()
        except graphlib.CycleError:
            read = _GbnfTranslator(text, by_parser=True)
    except RecursionError:
        raise RequestError("its parts are nested too deeply") from None
    lines = (f"{read.short(name)}: {rule}\n" for name, rule in read.rules.items())
    return f"start: {read.short('root')}\n{''.join(lines)}"


class _GbnfTranslator:
    """Translates `rules` by name to Lark expressions; `uses`: the rules that each uses.

    by_parser: the rules are the parser's; else the lexer takes them all as one.
    """

    def __init__(self, text: str, *, by_parser: bool) -> None:
        self.text, self.at = text, 0
        self._by_parser = by_parser
        self._names: dict[str, str] = {}
        self.rules: dict[str, str] = {}
        self.uses: dict[str, set[str]] = {}
        self._skip(lines=True)
        while self.at < len(self.text):
            name = self._name()
            self._skip()
            self._expect("::=")
            self._skip(lines=True)
            self._used = self.uses[name] = set()
            self.rules[name] = self._choice(nested=False)
            if self.at < len(self.text) and self.text[self.at] not in "\r\n":
                raise self._wrong(f"unexpected {self.text[self.at]!r}")
            self._skip(lines=True)

    def short(self, name: str) -> str:
        """Return Lark's name for a rule: in capital letters the lexer's."""
        return self._names.setdefault(name, f"{'r' if self._by_parser else 'R'}{len(self._names)}")

    def _choice(self, *, nested: bool) -> str:
        options = [self._sequence(nested=nested)]
        while self._next("|"):
            self._skip(lines=True)
            options.append(self._sequence(nested=nested))
        return options[0] if len(options) == 1 else f"({' | '.join(options)})"

    def _sequence(self, *, nested: bool) -> str:
        items: list[str] = []
        while (item := self._item()) is not None:
            self._skip(lines=nested)
            while (times := self._times()) is not None:
                item = f"({item}){{{times}}}"
                self._skip(lines=nested)
            items.append(item)
        return " ".join(items) if items else '""'

    def _item(self) -> str | None:
        if self._next('"'):
            return self._literal()
        if self._next("["):
            return self._class()
        if self._next("."):
            return _lexeme([(0, _LAST)])
        if self._next("("):
            self._skip(lines=True)
            inner = self._choice(nested=True)
            self._expect(")")
            return f"({inner})"
        if self.text[self.at : self.at + 1] in ("<", "!"):
            raise self._wrong("tokens by name or number are not supported")
        if not _NAME.match(self.text, self.at):
            return None
        self._used.add(name := self._name())
        return self.short(name)

    def _literal(self) -> str:
        chars: list[int] = []
        while not self._next('"'):
            chars.append(self._char())
        if chars and self._by_parser:
            return f"({' '.join(_lexeme([(char, char)]) for char in chars)})"
        return json.dumps("".join(map(chr, chars)))  # letter by letter it takes a hundred times as long

    def _class(self) -> str:
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
        return _lexeme(_complement(ranges) if negated else ranges)

    def _char(self) -> int:
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

    def _times(self) -> str | None:
        for sign, times in (("*", "0,"), ("+", "1,"), ("?", "0,1")):
            if self._next(sign):
                return times
        found = _TIMES.match(self.text, self.at)
        if found is None:
            if self.text[self.at : self.at + 1] == "{":
                raise self._wrong("give {N}, {N,} or {N,M}")
            return None
        limit = MOST_TIMES + 1  # a number may be absurdly long
        numbers = [int(digits) if len(digits) < 10 else limit for digits in (found[1], found[3]) if digits]
        least, most = numbers[0], numbers[-1] if found[3] or not found[2] else None
        if max(numbers) > MOST_TIMES or (most is not None and most < least):
            raise self._wrong(f"a repetition goes from N to M, {MOST_TIMES} at most")
        self.at = found.end()
        return f"{least},{'' if most is None else most}"

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
        there = self.text.startswith(sign, self.at)
        self.at += len(sign) * there
        return there

    def _expect(self, sign: str) -> None:
        if not self._next(sign):
            raise self._wrong(f"expected {sign}")

    def _wrong(self, what: str) -> RequestError:
        return RequestError(f"line {self.text.count(chr(10), 0, self.at) + 1}: {what}")


def _complement(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    begin = 0
    for first, last in sorted(ranges):
        if begin < first:
            yield begin, first - 1
        begin = max(begin, last + 1)
    if begin <= _LAST:
        yield begin, _LAST


def _lexeme(ranges: Iterable[tuple[int, int]]) -> str:
    """One character out of these ranges, without surrogates, which no text has."""
    before, after = _SURROGATES[0] - 1, _SURROGATES[1] + 1
    parts = []
    for first, last in ranges:
        parts += [(first, min(last, before)), (max(first, after), last)]
    return f"/[{''.join(_RANGE.format(first, last) for first, last in parts if first <= last)}]/"
