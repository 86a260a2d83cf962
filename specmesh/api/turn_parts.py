"""A turn of an assistant, parted into text, thoughts and calls of tools as it comes."""

import secrets

from specmesh.api.stream import Call, Content, Text, Thought
from specmesh.core.session_params import SessionParams
from specmesh.core.text.chat import ToolChoice
from specmesh.core.text.reasoning import STYLES, ThoughtSplitter
from specmesh.core.text.tool_calls import ArgumentsPart, CallBegin, CallParser, TextPart
from specmesh.core.text.tool_formats import FORMATS


class TurnParts:
    """Parts the text of a turn.

    thinking: the model's marks of thoughts, as `SessionParams` has them.
    parser: of the model's calls; None if it may make none.
    splits_thoughts: False keeps thoughts in the text, with their marks.
    """

    def __init__(self, thinking: str, parser: CallParser | None, *, splits_thoughts: bool) -> None:
        self._splitter = ThoughtSplitter(thinking)
        self._parser = parser
        self._splits_thoughts = splits_thoughts
        self._calls = 0
        self._begin_mark = ""  # to be put back before a thought that stays in the text
        self._end_mark = ""
        style = STYLES.get(thinking.removesuffix("!"))
        if style is not None:
            self._end_mark = style.end
            if not thinking.endswith("!"):
                self._begin_mark = style.begin

    @property
    def called(self) -> bool:
        """Return True if there are calls, the last of them whole."""
        return self._calls > 0 and self._parser is not None and self._parser.whole

    def feed(self, text: str, *, over: bool, cut: bool = False) -> list[Content]:
        """Return the parts of the next piece of the text.

        over: it is the last piece. cut: something other than the model ended the text.
        """
        parts: list[Content] = []
        thought, text = self._splitter.feed(text, over=over)
        if thought and self._splits_thoughts:
            parts.append(Thought(thought))
        elif thought:
            parts.append(Text(self._begin_mark + thought))
            self._begin_mark = ""
        thought_ended = not self._splits_thoughts and not self._begin_mark
        if text and self._end_mark and thought_ended:
            parts.append(Text(self._end_mark))
            self._end_mark = ""
        if self._parser is not None:
            events = self._parser.feed(text, over=over, cut=cut)
            parts += map(self._part_of, events)
        elif text:
            parts.append(Text(text))
        return parts

    def _part_of(self, event: TextPart | CallBegin | ArgumentsPart) -> Content:
        match event:
            case TextPart(text):
                return Text(text)
            case CallBegin(name):
                self._calls += 1
                return Call(index=self._calls - 1, id=_new_call_id(), name=name)
            case ArgumentsPart(text):
                return Call(index=self._calls - 1, arguments=text)


def _new_call_id() -> str:
    """Return nine digits: Mistral's templates refuse ids that are not nine letters or digits."""
    return secrets.token_hex(5)[:9]


def turn_parts_of(params: SessionParams, *, splits_thoughts: bool) -> TurnParts | None:
    """Return the parts of a turn with these parameters; None if all of it is text."""
    choice = ToolChoice.of(params.grammar)
    parser: CallParser | None = None
    if choice is not None and choice.format:
        parser = CallParser(FORMATS[choice.format], choice.tools)
    if parser is None and not (splits_thoughts and params.thinking):
        return None
    return TurnParts(params.thinking, parser, splits_thoughts=splits_thoughts)
