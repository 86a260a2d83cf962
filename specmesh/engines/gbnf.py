"""llama.cpp's GBNF in llguidance's language.

GBNF knows characters only. llguidance's lexer takes the longest lexeme before its parser sees it,
which changes the language: after `[a-z]+` a "b" could never follow. So each character is a lexeme,
and the parser does the rest, as llama.cpp's does. A grammar without recursion is one lexeme.
"""

import graphlib
import json
import re
from collections.abc import Iterator
from itertools import pairwise

from specmesh.errors import RequestError

_MOST_DEEP = 100  # most brackets within one another

_CHAR = r"\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}|\\.|[^\\]"
_CHARS = re.compile(_CHAR, re.DOTALL)
_RANGES = re.compile(f"({_CHAR})(?:-({_CHAR}))?", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"} | {char: char for char in '\\"[]-^'}
_TOKEN = re.compile(
    r"""(?P<blank>[ \t]+|\#[^\r\n]*)
    | (?P<lines>[\r\n](?:[ \t\r\n]+|\#[^\r\n]*)*+)
    | (?P<sign>::=|[|()])
    | (?P<name>[a-zA-Z0-9_-]+)
    | "(?P<literal>(?:[^"\\]|\\.)*)"
    | \[(?P<class>(?:[^\]\\]|\\.)*)\]
    | (?P<any>\.)
    | (?P<times>[*+?]|\{[\d, ]+\})
    | (?P<wrong>.)""",
    re.VERBOSE | re.DOTALL,
)
_Token = re.Match[str]  # a part of a grammar; its kind is the group that matched


def gbnf_to_lark(text: str, start: str = "start") -> str:
    """Translate GBNF, token by token; `start` is the name of its first rule.

    Raises RequestError, with the line of a syntax error.
    """
    rules = _rules(list(_tokens(text)))
    if "root" not in rules:
        raise RequestError("there is no rule named root, with which a text begins")
    reached = _reached(rules)
    by_parser = _is_recursive(reached)
    # Lark's rules in capital letters are the lexer's.
    letter = "r" if by_parser else "R"
    names = {name: f"{letter}{number}" for number, name in enumerate(rules)}
    lines = [f"{start}: {names['root']}\n"]
    for name, rule in rules.items():
        body = " ".join(_lark(rule, names, by_parser))  # checks rules that no text reaches, too
        if name in reached:
            lines.append(f"{names[name]}: {body}\n")
    return "".join(lines)


def _reached(rules: dict[str, list[_Token]]) -> dict[str, set[str]]:
    """Return the rules that a text can use, each with the names that it uses."""
    reached = dict[str, set[str]]()
    ahead = ["root"]
    while ahead:
        name = ahead.pop()
        if name in reached or name not in rules:
            continue
        reached[name] = {token[0] for token in rules[name] if token.lastgroup == "name"}
        ahead += reached[name]
    return reached


def _is_recursive(uses: dict[str, set[str]]) -> bool:
    try:
        graphlib.TopologicalSorter(uses).prepare()
    except graphlib.CycleError:
        return True
    return False


def _tokens(text: str) -> Iterator[_Token]:
    for token in _TOKEN.finditer(text):
        if token.lastgroup == "wrong":
            # The expression found no end of the bracket: that takes no time of its own.
            if token[0] in '"[':
                raise _wrong(token, "unexpected end")
            raise _wrong(token, f"unexpected {token[0]!r}")
        if token.lastgroup != "blank":
            yield token


def _rules(tokens: list[_Token]) -> dict[str, list[_Token]]:
    """Return the tokens of each rule: it begins on a line of its own with its name and `::=`."""
    begins = list[int]()
    for at, (name, sign) in enumerate(pairwise(tokens)):
        if name.lastgroup == "name" and sign[0] == "::=":
            begins.append(at)
    first = begins[0] if begins else len(tokens)
    for token in tokens[:first]:
        if token.lastgroup != "lines":
            raise _wrong(token, "expected the name of a rule and ::=")
    for at in begins[1:]:
        if tokens[at - 1].lastgroup != "lines" or tokens[at - 2][0] in ("|", "::="):
            raise _wrong(tokens[at + 1], "unexpected '::='")
    rules = dict[str, list[_Token]]()
    for at, end in pairwise([*begins, len(tokens)]):
        rules[tokens[at][0]] = tokens[at + 2 : end]
    return rules


def _lark(rule: list[_Token], names: dict[str, str], by_parser: bool) -> Iterator[str]:
    """Translate a rule.

    It ends with its line, but no line ends in brackets or after `|` and `::=`.
    """
    opened = list[_Token]()
    before = "|"
    ended = False
    for token in rule:
        kind = token[0] if token.lastgroup == "sign" else str(token.lastgroup)
        begins = before in ("|", "(")
        if kind == "lines":
            ended = ended or not (opened or before == "|")
            continue
        if ended:
            raise _wrong(token, "expected the name of a rule and ::=")
        if kind in ("|", ")") and begins:
            yield '""'
        if kind == "(":
            opened.append(token)
        if kind == "::=" or (kind == ")" and not opened):
            raise _wrong(token, f"unexpected {token[0]!r}")
        if kind == ")":
            opened.pop()
        if len(opened) > _MOST_DEEP:
            raise _wrong(token, "its parts are nested too deeply")
        if kind == "times" and (begins or before == "times"):
            raise _wrong(token, f"{token[0]} follows nothing that it could repeat")
        yield _translated(token, names, by_parser)
        before = kind
    if opened:
        raise _wrong(opened[-1], "expected )")
    if before == "|":
        yield '""'


def _wrong(token: _Token, reason: str) -> RequestError:
    line = token.string.count("\n", 0, token.start()) + 1
    return RequestError(f"line {line}: {reason}")


def _translated(token: _Token, names: dict[str, str], by_parser: bool) -> str:
    match token.lastgroup:
        case "name" if token[0] in names:
            return names[token[0]]
        case "name":
            raise _wrong(token, f"there is no rule named {token[0]}")
        case "any":
            return "/[\\x{0}-\\x{10ffff}]/"
        case "class":
            return _class(token)
        case "literal":
            chars = [_char(token, char) for char in _CHARS.findall(token["literal"])]
            if chars and by_parser:
                letters = [f"/[{_regex(char)}]/" for char in chars]
                return f"({' '.join(letters)})"
            return json.dumps("".join(chars))  # letter by letter it takes a hundred times as long
        case _:
            return token[0]


def _class(token: _Token) -> str:
    inside = token["class"].removeprefix("^")
    if not inside:
        raise _wrong(token, "a class without characters")
    ranges = "^" if inside != token["class"] else ""
    for begin, end in _RANGES.findall(inside):
        first = _char(token, begin)
        last = _char(token, end or begin)
        if last < first:
            raise _wrong(token, f"a class cannot go from {first} to {last}")
        ranges += f"{_regex(first)}-{_regex(last)}"
    return f"/[{ranges}]/"


def _regex(char: str) -> str:
    return f"\\x{{{ord(char):x}}}"


def _char(token: _Token, spelt: str) -> str:
    """Return the character of a letter or an escape."""
    if spelt[0] != "\\":
        return spelt
    digits = spelt[2:]
    if digits:
        code = int(digits, 16)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            raise _wrong(token, f"{spelt} is no character")
        return chr(code)
    if spelt[1] not in _ESCAPES:
        raise _wrong(token, f"unknown escape {spelt}")
    return _ESCAPES[spelt[1]]
