"""How models mark their thoughts, and a text split into thoughts and answer as it comes.

A model that reasons writes its thought into the text, between marks of its family. Clients get
thought and answer apart. Three things make that more than a search for two marks:

- The prompt may end inside a thought: many templates write the first mark themselves. Then the
  text begins with the thought, and only its end is marked. The style is then named with "!".
- A mark may come in pieces, and half of one at the end of what has come may still become one. It
  is kept back until the next letters show it.
- Some families mark the answer, too. Those marks are no text, and are dropped.

A mark in the middle of an answer is text where the family thinks at the beginning only: a model
may write about marks.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """How a family of models marks a thought.

    begin, end: the marks around it.
    dropped: marks around the answer. A model that has such marks may begin a thought anywhere,
        others begin one only at the beginning of the text.
    """

    name: str
    begin: str
    end: str
    dropped: tuple[str, ...] = ()


_NEXT = "<|end|><|start|>assistant"
_ANSWERS = (
    "<|channel|>final<|message|>",
    "<|channel|>final <|constrain|>json<|message|>",
    "<|channel|>commentary<|message|>",
)
_STYLES = (
    Thinking(
        name="harmony",
        begin="<|channel|>analysis<|message|>",
        end=_NEXT,
        dropped=(*_ANSWERS, _NEXT),
    ),
    Thinking(
        name="solar",
        begin="<|think|>",
        end="<|end|><|begin|>assistant",
        dropped=("<|content|>", "<|end|><|begin|>assistant"),
    ),
    Thinking(
        name="kimi_k3",
        begin="<|open|>think<|sep|>",
        end="<|close|>think<|sep|>",
        dropped=(
            "<|open|>response<|sep|>",
            "<|close|>response<|sep|>",
            "<|close|>message<|sep|>",
        ),
    ),
    Thinking(name="seed", begin="<seed:think>", end="</seed:think>"),
    Thinking(name="minimax_m3", begin="<mm:think>", end="</mm:think>"),
    Thinking(name="hy3", begin="<think:opensource>", end="</think:opensource>"),
    Thinking(name="brackets", begin="[THINK]", end="[/THINK]"),
    Thinking(
        name="cohere",
        begin="<|START_THINKING|>",
        end="<|END_THINKING|>",
        dropped=(
            "<|START_RESPONSE|>",
            "<|END_RESPONSE|>",
            "<|START_TEXT|>",
            "<|END_TEXT|>",
        ),
    ),
    Thinking(name="gemma4", begin="<|channel>thought\n", end="<channel|>"),
    Thinking(name="apertus", begin="<|inner_prefix|>", end="<|inner_suffix|>"),
    Thinking(
        name="apriel",
        begin="Here are my reasoning steps:\n",
        end="[BEGIN FINAL RESPONSE]",
        dropped=("[END FINAL RESPONSE]",),
    ),
    Thinking(name="thought", begin="<thought>", end="</thought>"),
    Thinking(name="think", begin="<think>", end="</think>"),
)
STYLES = {style.name: style for style in _STYLES}
"""By their names, the most specific first."""


def detect(template: str) -> Thinking | None:
    """Find a mark of thoughts in a chat template's source."""
    for style in STYLES.values():
        # One mark is enough: some templates write the beginning only, others cut thoughts by the
        # end.
        if style.begin in template or style.end in template:
            return style
    return None


def detect_written(text: str, thought: str) -> Thinking | None:
    """Find the marks around a thought in a text that a template wrote; None without any."""
    for style in STYLES.values():
        begin = re.escape(style.begin.rstrip())
        end = re.escape(style.end)
        if re.search(rf"{begin}\s*{re.escape(thought)}\s*{end}", text):
            return style
    return None


def thinking(style: Thinking | None, prompt: str) -> str:
    """Name a style, with "!" if the prompt ends inside a thought; "" for none."""
    if style is None:
        return ""
    # Templates differ in the blanks behind a mark.
    inside = prompt.rstrip().endswith(style.begin.rstrip())
    return f"{style.name}!" if inside else style.name


def before_answer(thinking: str, prompt: str) -> str:
    """Return a style's name, with "." if the prompt ends behind a thought: no other one follows.

    thinking: the name that the function `thinking` returned.
    """
    style = STYLES.get(thinking)
    # A family whose end mark also parts its messages may think again.
    if style is None or style.end in style.dropped:
        return thinking
    if prompt.rstrip().endswith(style.end):
        return f"{thinking}."
    return thinking


def first_mark(text: str, marks: Iterable[str]) -> tuple[int, str]:
    """Return the place of the first mark in a text, and the mark; without any the end and ""."""
    first = (len(text), "")
    for mark in marks:
        at = text.find(mark)
        if at >= 0:
            first = min(first, (at, mark))
    return first


def begun(text: str, marks: Iterable[str]) -> int:
    """Return the length of the longest end of a text with which a mark begins."""
    longest = 0
    for mark in marks:
        most = min(len(mark) - 1, len(text))
        # The longest counts: one mark may begin with the end of another.
        for size in range(most, longest, -1):
            if text.endswith(mark[:size]):
                longest = size
                break
    return longest


class ThoughtSplitter:
    """Splits a text into thought and answer as it comes, without the blanks around a thought.

    named: a style as `thinking` names it.
    """

    def __init__(self, named: str) -> None:
        self._style = STYLES.get(named.removesuffix("!"))
        self._inside = named.endswith("!")
        self._trimming = self._inside
        self._starting = not self._inside
        self._kept = ""

    def feed(self, text: str, *, over: bool = False) -> tuple[str, str]:
        """Return the next part of the thought, and that of the answer. over: the text ends here."""
        style = self._style
        if style is None:
            return "", text
        self._kept += text
        if self._starting and not self._start(style, over=over):
            return "", ""
        thought = ""
        answer = ""
        while True:
            inside = self._inside
            shown, mark = self._passage(style, over=over)
            if inside:
                thought += shown
            else:
                answer += shown
            if not mark:
                return thought, answer

    def _start(self, style: Thinking, *, over: bool) -> bool:
        """Read the mark with which the text may begin; return False until that is certain."""
        if not style.dropped:
            start = self._kept.lstrip()
            # A model may write blanks before the mark. As long as all is the beginning of it, it
            # may become it.
            half = style.begin.startswith(start) and start != style.begin
            if half and not over:
                return False
            if start.startswith(style.begin):
                self._inside = True
                self._trimming = True
                self._kept = start.removeprefix(style.begin)
        self._starting = False
        return True

    def _passage(self, style: Thinking, *, over: bool) -> tuple[str, str]:
        """Read up to the next mark; return the text to be shown, and the mark or ""."""
        marks = self._marks(style)
        end, mark = first_mark(self._kept, marks)
        if not mark and not over:
            end -= begun(self._kept, marks)
        shown = self._kept[:end]
        rest = self._kept[end + len(mark) :]
        if self._trimming:
            # Behind a mark blanks are dropped until the first letter, which may come much later.
            shown = shown.lstrip()
        if self._inside:
            whole = shown
            shown = whole.rstrip()
            if not mark:
                # Blanks before the end mark are dropped. Before more of the thought they belong to
                # it. So they are kept back until it is known.
                rest = whole[len(shown) :] + rest
        still_trimming = self._trimming and not shown
        self._trimming = still_trimming or mark in (style.begin, style.end)
        self._inside = mark == style.begin or (self._inside and not mark)
        self._kept = rest
        return shown, mark

    def _marks(self, style: Thinking) -> tuple[str, ...]:
        """Return the marks that count where the text is now."""
        if self._inside:
            return (style.end,)
        if style.dropped:
            # This family marks the answer, so a thought may begin behind it again.
            return (style.begin, *style.dropped)
        return ()
