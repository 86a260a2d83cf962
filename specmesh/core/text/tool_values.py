"""Arguments in a syntax other than JSON, as some families of models write them.

The same call, get_weather(city="Rome", days=[1, 2]):

| syntax | as the model writes its arguments |
|---|---|
| JSON | {"city": "Rome", "days": [1, 2]} |
| GEMMA | city:<|"|>Rome<|"|>,days:[1,2] |
| PYTHON | city='Rome', days=[1, 2] |

`written` writes them for a prompt, in which a template shows earlier calls. `read_value` and
`read_name` read them from a text that still comes, and return JSON.

Reading is generous where writing is not: a text without quotes is taken for a text, and constants
by any of their names. A model that is almost right is understood, and a client gets JSON always.
What is no value at all is None, and its call stays unfinished.

The readers are generators: each `yield` waits for more of the text (`incoming_text.py`).
"""

import json
import re
import sys
from dataclasses import dataclass

from specmesh.core.fields import is_list, is_object
from specmesh.core.text.incoming_text import IncomingText, Reading

MOST_DEEP = 64  # brackets within one another that are read
_BLANK = re.compile(r"\s")
_WORD = re.compile(r"""[^\s,:=()\[\]{}'"<>]""")
_LONGEST_WORD = 256  # letters of a number or a name


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueSyntax:
    """How arguments are written: `NAME assign VALUE`, with `comma` in between.

    quotes: marks that may be around a text, of which the first is written.
    escapes: a backslash in a text changes the letter after it.
    member: between the name and the value of an object's member.
    item: between members, and between the items of a list.
    quoted_names: an object's members have their names in quotes.
    """

    quotes: tuple[str, ...]
    escapes: bool
    true: str
    false: str
    null: str
    assign: str
    comma: str
    member: str
    item: str
    quoted_names: bool


GEMMA = ValueSyntax(
    quotes=('<|"|>',),
    escapes=False,
    true="true",
    false="false",
    null="null",
    assign=":",
    comma=",",
    member=":",
    item=",",
    quoted_names=False,
)
PYTHON = ValueSyntax(
    quotes=("'", '"'),
    escapes=True,
    true="True",
    false="False",
    null="None",
    assign="=",
    comma=", ",
    member=": ",
    item=", ",
    quoted_names=True,
)
_NAMED = {
    "true": "true",
    "false": "false",
    "null": "null",
    "True": "true",
    "False": "false",
    "None": "null",
}
"""Constants of JSON by all their names, in any syntax: templates write some as Python does."""


def written(value: object, syntax: ValueSyntax) -> str:
    """Return a JSON value in a syntax."""
    if isinstance(value, str):
        return _quoted(value, syntax)
    if value is True:
        return syntax.true
    if value is False:
        return syntax.false
    if value is None:
        return syntax.null
    if is_list(value):
        items = [written(item, syntax) for item in value]
        return f"[{syntax.item.join(items)}]"
    if is_object(value):
        members = list[str]()
        for name, member in value.items():
            members.append(_name(name, syntax) + syntax.member + written(member, syntax))
        return f"{{{syntax.item.join(members)}}}"
    return json.dumps(value)


def _quoted(text: str, syntax: ValueSyntax) -> str:
    """Return a text in quotes, with what would end it escaped where the syntax can."""
    quote = syntax.quotes[0]
    if syntax.escapes:
        text = text.replace("\\", "\\\\")
        text = text.replace(quote, f"\\{quote}").replace("\n", "\\n")
    return f"{quote}{text}{quote}"


def _name(name: str, syntax: ValueSyntax) -> str:
    """Return the name of an object's member."""
    if syntax.quoted_names:
        return _quoted(name, syntax)
    return written_name(name, syntax)


def written_name(name: str, syntax: ValueSyntax) -> str:
    """Return an argument's name, in quotes if it has letters with another meaning."""
    if 0 < len(name) <= _LONGEST_WORD and all(map(_WORD.fullmatch, name)):
        return name
    return _quoted(name, syntax)


def json_text(text: str) -> str:
    """Return a text as JSON; half a surrogate pair in it stays an escape."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(text)
    return json.dumps(text, ensure_ascii=False)


def read_value(text: IncomingText, syntax: ValueSyntax, depth: int = 0) -> Reading[str | None]:
    """Read a value; return it as JSON. None if the text is over first, or it is no value."""
    yield from skip_blanks(text)
    quote = yield from text.take(syntax.quotes, within=True)
    if quote:
        found = yield from _read_text(text, syntax, quote)
        return None if found is None else json_text(found)
    bracket = yield from text.take("[{")
    # A text of brackets only must not exhaust the stack.
    if bracket and depth == MOST_DEEP:
        return None
    if bracket == "[":
        return (yield from _read_list(text, syntax, depth))
    if bracket == "{":
        return (yield from _read_object(text, syntax, depth))
    word = yield from text.letters(_WORD, _LONGEST_WORD)
    # At the text's end more of the word might have come, so it is no whole value.
    if not word or text.ended:
        return None
    if word in _NAMED:
        return _NAMED[word]
    # A word without quotes is taken for a text.
    return word if _is_number(word) else json_text(word)


def _is_number(word: str) -> bool:
    """Return True for a number of JSON; Python's reader also takes NaN, which is none."""
    try:
        value: object = json.loads(word)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, int | float) and word not in ("NaN", "Infinity", "-Infinity")


def skip_blanks(text: IncomingText) -> Reading[None]:
    """Read on to the first letter that is no blank."""
    while (yield from text.letters(_BLANK, _LONGEST_WORD)):
        pass


def read_name(text: IncomingText, syntax: ValueSyntax) -> Reading[str | None]:
    """Read the name of a member or an argument, in quotes or not."""
    yield from skip_blanks(text)
    quote = yield from text.take(syntax.quotes, within=True)
    if quote:
        return (yield from _read_text(text, syntax, quote))
    word = yield from text.letters(_WORD, _LONGEST_WORD)
    return word or None


def _read_text(text: IncomingText, syntax: ValueSyntax, quote: str) -> Reading[str | None]:
    """Read a text up to the quote at its end."""
    if not syntax.escapes:
        return (yield from text.until(quote))
    parts = list[str]()
    while True:
        part = yield from text.until(quote)
        if part is None:
            return None
        parts.append(part)
        # An odd number escapes the quote, so the text goes on. Two backslashes are an escaped one.
        backslashes = len(part) - len(part.rstrip("\\"))
        if backslashes % 2 == 0:
            return _unescaped(quote.join(parts))


_ESCAPE = re.compile(r"""\\([abfnrtv\\'"]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})""")
_LETTERS = dict(zip("abfnrtv\\'\"", "\a\b\f\n\r\t\v\\'\"", strict=True))


def _unescaped(text: str) -> str:
    """Return the text of a Python literal: other escapes than these stay as they are."""
    return _ESCAPE.sub(_letter, text)


def _letter(escape: re.Match[str]) -> str:
    """Return the letter of an escape; one beyond Unicode stays as it is."""
    code = escape[1]
    if code in _LETTERS:
        return _LETTERS[code]
    number = int(code[1:], 16)
    return chr(number) if number <= sys.maxunicode else escape[0]


def _read_list(text: IncomingText, syntax: ValueSyntax, depth: int) -> Reading[str | None]:
    """Read a list behind its bracket; return it as JSON, None if it is none."""
    items = list[str]()
    yield from skip_blanks(text)
    if (yield from text.take("]")):
        return "[]"
    while True:
        item = yield from read_value(text, syntax, depth + 1)
        yield from skip_blanks(text)
        sign = yield from text.take(",]")
        if item is None or not sign:
            return None
        items.append(item)
        if sign == "]":
            return f"[{', '.join(items)}]"


def _read_object(text: IncomingText, syntax: ValueSyntax, depth: int) -> Reading[str | None]:
    """Read an object behind its brace; return it as JSON, None if it is none."""
    members = list[str]()
    yield from skip_blanks(text)
    if (yield from text.take("}")):
        return "{}"
    while True:
        name = yield from read_name(text, syntax)
        yield from skip_blanks(text)
        colon = yield from text.take(":")
        if name is None or not colon:
            return None
        value = yield from read_value(text, syntax, depth + 1)
        yield from skip_blanks(text)
        sign = yield from text.take(",}")
        if value is None or not sign:
            return None
        members.append(f"{json_text(name)}: {value}")
        if sign == "}":
            return f"{{{', '.join(members)}}}"
