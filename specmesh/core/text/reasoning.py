"""How models mark their thoughts, and a text split into thoughts and answer as it comes."""

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """How a family of models marks a thought: `begin` and `end` are around it.

    dropped: marks around the answer. Where there are any, a thought may begin anywhere, else only
    where the text does.
    """

    name: str
    begin: str
    end: str
    dropped: tuple[str, ...] = ()


_NEXT = "<|end|><|start|>assistant"
_ANSWERS = [
    f"<|channel|>{kind}<|message|>" for kind in ("final", "final <|constrain|>json", "commentary")
]
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
        if style.begin in template or style.end in template:
            return style
    return None


def detect_written(text: str, thought: str) -> Thinking | None:
    """Find the marks around a thought in a text that a template wrote; None without any."""
    for style in STYLES.values():
        begin, end = re.escape(style.begin.rstrip()), re.escape(style.end)
        if re.search(rf"{begin}\s*{re.escape(thought)}\s*{end}", text):
            return style
    return None


def thinking(style: Thinking | None, prompt: str) -> str:
    """Name a style, with "!" where the prompt ends inside a thought; "" for none."""
    if style is None:
        return ""
    inside = prompt.rstrip().endswith(style.begin.rstrip())
    return f"{style.name}!" if inside else style.name


def before_answer(thinking: str, prompt: str) -> str:
    """Return the style that `thinking` named, with "." where the prompt ends behind a thought: no
    other one follows."""
    style = STYLES.get(thinking)
    if style is None or style.end in style.dropped or not prompt.rstrip().endswith(style.end):
        return thinking
    return f"{thinking}."


def first_mark(text: str, marks: Iterable[str]) -> tuple[int, str]:
    """Where the first of the marks begins in a text, and which; the text's end and "" where there
    is none."""
    found = [(at, mark) for mark in marks if (at := text.find(mark)) >= 0]
    return min(found, default=(len(text), ""))


def begun(text: str, marks: Iterable[str]) -> int:
    """The length of the longest end of `text` with which a mark begins."""
    sizes = (
        (size, mark[:size]) for mark in marks for size in range(1, min(len(mark), len(text) + 1))
    )
    return max((size for size, begin in sizes if text.endswith(begin)), default=0)


class ThoughtSplitter:
    """Splits a text as it comes; `named` is what `thinking` returned. Blanks around a thought are
    not shown."""

    def __init__(self, named: str) -> None:
        self._style = STYLES.get(named.removesuffix("!"))
        self._inside = self._trimming = named.endswith("!")
        self._starting = not self._inside
        self._kept = ""

    def feed(self, text: str, *, over: bool = False) -> tuple[str, str]:
        """Return by what the thought goes on, and the answer. `over`: the text ends here."""
        style = self._style
        if style is None:
            return "", text
        self._kept += text
        thought, answer, mark = "", "", style.begin
        while mark:
            if self._starting and not style.dropped:
                start = self._kept.lstrip()
                if style.begin.startswith(start) and not over and start != style.begin:
                    break
                self._inside = self._trimming = start.startswith(style.begin)
                self._kept = start.removeprefix(style.begin) if self._inside else self._kept
            self._starting = False
            marks = (
                (style.end,)
                if self._inside
                else (style.begin, *style.dropped)
                if style.dropped
                else ()
            )
            end, mark = first_mark(self._kept, marks)
            end -= 0 if mark or over else begun(self._kept, marks)
            part, rest = self._kept[:end], self._kept[end + len(mark) :]
            shown = part.lstrip() if self._trimming else part
            if self._inside:
                shown, whole = shown.rstrip(), shown
                rest = rest if mark else whole[len(shown) :] + rest
                thought += shown
            else:
                answer += shown
            self._trimming = bool(self._trimming and not shown) or mark in (style.begin, style.end)
            self._inside = mark == style.begin or (self._inside and not mark)
            self._kept = rest
        return thought, answer
