"""A chat's text as the deltas of OpenAI's chunks: its thoughts, its content, its calls of tools."""

import secrets
from collections.abc import Iterator

from specmesh.core.fields import Json
from specmesh.core.session_params import SessionParams
from specmesh.core.text.chat import ToolChoice
from specmesh.core.text.reasoning import STYLES, ThoughtSplitter
from specmesh.core.text.tool_calls import ArgumentsPart, CallBegin, CallParser, TextPart
from specmesh.core.text.tool_formats import FORMATS


class Deltas:
    """`message`: all deltas so far in one, as an answer at once has it."""

    def __init__(self, thinking: str, parser: CallParser | None, *, splits: bool) -> None:
        self._splitter, self._parser, self._splits = ThoughtSplitter(thinking), parser, splits
        style = STYLES.get(thinking.removesuffix("!"))
        self._before = style.begin if style is not None and not thinking.endswith("!") else ""
        self._after = style.end if style is not None else ""
        self._content, self._thought = "", ""
        self._calls: list[tuple[Json, dict[str, str]]] = []

    @property
    def called(self) -> bool:
        """Whether there are calls, the last of them whole."""
        return bool(self._calls) and self._parser is not None and self._parser.whole

    @property
    def message(self) -> Json:
        said: Json = {"content": self._content if self._content or not self._calls else None}
        if self._thought:
            said["reasoning_content"] = self._thought
        if self._calls:
            said["tool_calls"] = [call | {"function": function} for call, function in self._calls]
        return said

    def skip(self, text: str) -> None:
        """Go on after a text that the client has."""
        self.feed(text, over=False)
        self._content = self._thought = ""

    def feed(self, text: str, *, over: bool, cut: bool = False) -> list[Json]:
        """Return the deltas of the next part of the text. over: it is the last. cut: not because
        the model ended it."""
        return [delta for part in self._split(text, over=over, cut=cut) for delta in part]

    def _split(self, text: str, *, over: bool, cut: bool) -> Iterator[list[Json]]:
        thought, text = self._splitter.feed(text, over=over)
        if thought and self._splits:
            self._thought += thought
            yield [{"reasoning_content": thought}]
        elif thought:
            yield [self._delta(TextPart(self._before + thought))]
            self._before = ""
        if text and self._after and not (self._splits or self._before):
            yield [self._delta(TextPart(self._after))]
            self._after = ""
        if self._parser is not None:
            yield [self._delta(event) for event in self._parser.feed(text, over=over, cut=cut)]
        elif text:
            yield [self._delta(TextPart(text))]

    def _delta(self, event: TextPart | CallBegin | ArgumentsPart) -> Json:
        match event:
            case TextPart(text):
                self._content += text
                return {"content": text}
            case CallBegin(name):
                # Mistral's templates refuse ids that are not nine letters or digits
                call: Json = {"id": secrets.token_hex(5)[:9], "type": "function"}
                self._calls.append((call, {"name": name, "arguments": ""}))
                begun = {
                    "index": len(self._calls) - 1,
                    **call,
                    "function": {"name": name, "arguments": ""},
                }
                return {"tool_calls": [begun]}
            case ArgumentsPart(text):
                self._calls[-1][1]["arguments"] += text
                return {
                    "tool_calls": [{"index": len(self._calls) - 1, "function": {"arguments": text}}]
                }


def deltas_of(params: SessionParams, *, splits: bool) -> Deltas | None:
    """What splits the text of an answer with these parameters; None where it is content from end to
    end."""
    choice = ToolChoice.of(params.grammar)
    parser = (
        CallParser(FORMATS[choice.format], choice.tools)
        if choice is not None and choice.format
        else None
    )
    needed = parser is not None or (splits and params.thinking)
    return Deltas(params.thinking, parser, splits=splits) if needed else None
