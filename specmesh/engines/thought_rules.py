"""Rules for the beginning of a chat's text: a free thought, and marks around the answer."""

import json
from collections.abc import Iterable

from specmesh.core.text.reasoning import STYLES

_quoted = json.dumps

TEXT = r"TEXT: /(.|\n)*/"
"""The rule of any text."""


def start_rules(thinking: str, *, free: bool = False, by_letters: bool = False) -> list[str]:
    """Return the rules of a text that is `body`, perhaps or certainly after a thought.

    thinking: the style and state of thinking as in core.reasoning.before_answer.
    free: the text may end in its thought. The rules need another one, `TEXT`.
    by_letters: the lexemes of the body are single letters. The longest lexeme counts, so marks that
        may come in the place of the body are single letters then, too.

    Raises KeyError for unknown marks.
    """
    if not thinking:
        return ["start: body"]
    style = STYLES[_named(thinking)]
    if thinking.endswith("."):
        return ["start: body"]
    begin = _mark(style.begin, by_letters)
    rules = ["start: inside" if thinking.endswith("!") else "start: body | begin inside"]
    if by_letters:
        rules.append(rf"begin: /[ \n]/{{0,2}} {begin}")
    else:
        rules.append(rf"begin[lazy]: /[ \n]{{0,2}}/ {begin}")
    if free:
        rules.append("inside: thought body | TEXT")
    else:
        rules.append("inside: thought gap later")
    rules.append(f"thought[lazy]: TEXT {_quoted(style.end)}")
    between = _any_mark(("\n", *style.dropped), by_letters)
    rules.append(f"gap: ({between}){{0,3}}")
    rules.append("later: body | again inside" if style.dropped else "later: body")
    rules.append(f"again: {begin}")
    return rules


def _named(thinking: str) -> str:
    return thinking.removesuffix("!").removesuffix(".")


def _any_mark(marks: Iterable[str], by_letters: bool) -> str:
    return " | ".join(_mark(mark, by_letters) for mark in marks)


def _mark(text: str, by_letters: bool) -> str:
    """Return a mark as one lexeme, or as one for each letter."""
    if not by_letters:
        return _quoted(text)
    return " ".join(f"/[\\x{{{ord(letter):x}}}]/" for letter in text)


def answer_rule(thinking: str, *, by_letters: bool = False) -> str:
    """Return the rule of an answer that is `content`: marks may stand around it."""
    style = STYLES.get(_named(thinking))
    if style is None or not style.dropped:
        return "answer: content"
    around = _any_mark(style.dropped, by_letters)
    return f"answer: around{{0,2}} content around{{0,2}}\naround: {around}"
