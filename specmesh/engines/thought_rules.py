"""Rules for what a chat's text begins with: a thought, which is free, and marks around the answer."""

import json

from specmesh.core.reasoning import STYLES

_quoted = json.dumps

TEXT = r"TEXT: /(.|\n)*/"
"""The rule of any text."""


def start_rules(thinking: str, *, free: bool = False, by_letters: bool = False) -> list[str]:
    """Return the rules of a text that is `body`, perhaps or certainly after a thought: see
    core.reasoning.thinking. A `free` text may end in its thought. The rules need another, `TEXT`.

    by_letters: the body's lexemes are single letters. The longest lexeme counts, so all that may
    come in the place of the body is letters then, too. Raise KeyError for unknown marks."""
    if not thinking:
        return ["start: body"]
    style = STYLES[thinking.removesuffix("!")]
    begin, blank, line = _quoted(style.begin), r"/[ \n]*/", r'"" | "\n" | "\n\n"'
    if by_letters:
        begin = " ".join(f"/[\\x{{{ord(letter):x}}}]/" for letter in style.begin)
        blank, line = r"/[ \n]/*", r"(/[\x{a}]/ /[\x{a}]/?)?"
    lazy = "" if by_letters else "[lazy]"
    return [
        f"start: {'inside' if thinking.endswith('!') else 'body | begin inside'}",
        f"begin{lazy}: {blank} {begin}",
        f"inside: {'thought body | TEXT' if free else 'thought gap later'}",
        f"thought[lazy]: TEXT {_quoted(style.end)}",
        f"gap: {line}",
        f"later: body{' | again inside' * bool(style.dropped)}",
        f"again: {begin}",
    ]


def answer_rule(thinking: str) -> str:
    """Return the rule of an answer that is `content`: marks may stand around it."""
    style = STYLES.get(thinking.removesuffix("!"))
    marks = style.dropped if style is not None else ()
    if not marks:
        return "answer: content"
    around = " | ".join(map(_quoted, marks))
    return f"answer: around{{0,2}} content around{{0,2}}\naround: {around}"
