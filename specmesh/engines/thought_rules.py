"""Rules for the beginning of a chat's text: a free thought, and marks around the answer."""

import json

from specmesh.core.text.reasoning import STYLES

_quoted = json.dumps

TEXT = r"TEXT: /(.|\n)*/"
"""The rule of any text."""


def start_rules(thinking: str, *, free: bool = False, by_letters: bool = False) -> list[str]:
    """Return the rules of a text that is `body`, perhaps or certainly after a thought.

    thinking: as core.reasoning.before_answer has it.
    free: the text may end in its thought. The rules need another one, `TEXT`.
    by_letters: the lexemes of the body are single letters. The longest lexeme counts, so marks that
        may come in the place of the body are single letters then, too.

    Raise KeyError for unknown marks.
    """
    style = STYLES[_named(thinking)] if thinking else None
    if style is None or thinking.endswith("."):
        return ["start: body"]
    begin = _mark(style.begin, by_letters)
    between = " | ".join(_mark(mark, by_letters) for mark in ("\n", *style.dropped))
    lazy, blank = "[lazy]", r"/[ \n]{0,2}/"
    if by_letters:
        lazy, blank = "", r"/[ \n]/{0,2}"
    return [
        f"start: {'inside' if thinking.endswith('!') else 'body | begin inside'}",
        f"begin{lazy}: {blank} {begin}",
        f"inside: {'thought body | TEXT' if free else 'thought gap later'}",
        f"thought[lazy]: TEXT {_quoted(style.end)}",
        f"gap: ({between}){{0,3}}",
        f"later: body{' | again inside' * bool(style.dropped)}",
        f"again: {begin}",
    ]


def _named(thinking: str) -> str:
    return thinking.removesuffix("!").removesuffix(".")


def _mark(text: str, by_letters: bool) -> str:
    """Return a mark as one lexeme, or as one for each letter."""
    if not by_letters:
        return _quoted(text)
    return " ".join(f"/[\\x{{{ord(letter):x}}}]/" for letter in text)


def answer_rule(thinking: str, *, by_letters: bool = False) -> str:
    """Return the rule of an answer that is `content`: marks may stand around it."""
    style = STYLES.get(_named(thinking))
    marks = style.dropped if style is not None else ()
    if not marks:
        return "answer: content"
    around = " | ".join(_mark(mark, by_letters) for mark in marks)
    return f"answer: around{{0,2}} content around{{0,2}}\naround: {around}"
