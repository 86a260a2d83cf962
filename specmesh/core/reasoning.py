"""How models mark their thoughts, and a text split into thoughts and answer as it comes."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Thinking:
    """`begin` and `end` stand around a thought. Marks around the answer are `dropped`: where there are any, a thought
    may begin anywhere, otherwise only where the text does."""

    name: str
    begin: str
    end: str
    dropped: tuple[str, ...] = ()


_NEXT = "<|end|><|start|>assistant"
_ANSWERS = [
    f"<|channel|>{kind}<|message|>" for kind in ("final", "final <|constrain|>json", "commentary")
]
_STYLES = (
    Thinking("harmony", "<|channel|>analysis<|message|>", _NEXT, (*_ANSWERS, _NEXT)),
    Thinking("seed", "<seed:think>", "</seed:think>"),
    Thinking("brackets", "[THINK]", "[/THINK]"),
    Thinking("cohere", "<|START_THINKING|>", "<|END_THINKING|>"),
    Thinking("think", "<think>", "</think>"),
)
STYLES = {style.name: style for style in _STYLES}  # by their names; the most specific first


def detect(template: str) -> Thinking | None:
    """Find a mark of thoughts in a chat template's source."""
    return next(
        (style for style in STYLES.values() if style.begin in template or style.end in template),
        None,
    )


def thinking(style: Thinking | None, prompt: str) -> str:
    """Name a style, with "!" where the prompt ends inside a thought; "" for none."""
    return f"{style.name}{'!' * prompt.rstrip().endswith(style.begin)}" if style else ""


def first_mark(text: str, marks: Iterable[str]) -> tuple[int, str]:
    """Where the first of the marks begins in a text, and which; the text's end and "" where there is none."""
    found = [(at, mark) for mark in marks if (at := text.find(mark)) >= 0]
    return min(found, default=(len(text), ""))


def begun(text: str, marks: Iterable[str]) -> int:
    """The length of the longest end of `text` with which a mark begins."""
    sizes = (
        (size, mark[:size]) for mark in marks for size in range(1, min(len(mark), len(text) + 1))
    )
    return max((size for size, begin in sizes if text.endswith(begin)), default=0)


class ThoughtSplitter:
    """Splits a text as it comes; `named` is what `thinking` returned. Blanks around a thought are not shown."""

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
