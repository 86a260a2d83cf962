"""Finds the traits of a chat template: it renders short chats, and looks for their words.

Each message of these chats has a word of its own. The template shows the message if its word is in
the prompt.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from specmesh.core.fields import Json
from specmesh.core.text import reasoning, tool_detection
from specmesh.core.text.chat_message import ChatMessage
from specmesh.core.text.template_traits import IdKind, TemplateTraits, ThoughtField
from specmesh.core.text.tool_formats import GENERIC, ToolCall

Write = Callable[[Sequence[ChatMessage], TemplateTraits, Json, bool], str | None]
"""Renders messages with these traits and variables; returns None if the template refuses them.

The last argument is True if the last message is continued.
"""


def traits_of(value: Json) -> TemplateTraits:
    """Return the traits from the JSON of `TemplateTraits.as_json`; missing ones have defaults."""
    given: dict[str, Any] = TemplateTraits().as_json() | value
    given["ids"] = IdKind(given["ids"])
    given["thoughts"] = ThoughtField(given["thoughts"])
    return TemplateTraits(**given)


def words_of(message: ChatMessage) -> Iterator[str]:
    """Yield the words that a prompt with a short message has: its text, and the names of calls."""
    if message.content:
        yield message.content
    for call in message.tool_calls:
        yield call.name


def shortened(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return a chat of the same shape, in which each text is a word of its own."""
    names = dict[str, str]()
    short = list[ChatMessage]()
    for index, message in enumerate(messages):
        calls = list[ToolCall]()
        for number, call in enumerate(message.tool_calls):
            names[call.id] = f"call{index}n{number}q"
            calls.append(ToolCall(call.id, names[call.id], '{"key": "value"}'))
        changed = replace(
            message,
            content=f"word{index}q" if message.content.strip() else "",
            name=names.get(message.tool_call_id, message.name),
            tool_calls=tuple(calls),
            reasoning=f"thought{index}q" if message.reasoning.strip() else "",
        )
        short.append(changed)
    return short


USER = ChatMessage("user", "userword")
AGAIN = ChatMessage("user", "againword")
SYSTEM = ChatMessage("system", "systemword")
OTHER = ChatMessage("system", "otherword")
DEVELOPER = ChatMessage("developer", "developerword")
ANSWER = ChatMessage("assistant", "answerword")
ANOTHER = ChatMessage("assistant", "anotherword")
CALL = ToolCall("call_1-a", "callname", '{"alpha": "valueword", "beta": 7}')
SECOND = ToolCall("call_2-b", "secondname", '{"gamma": true}')
_IDS = {IdKind.ANY: CALL.id, IdKind.SHORT: "abcdef123", IdKind.NAMED: f"functions.{CALL.name}:0"}
_SECOND_IDS = {
    IdKind.ANY: SECOND.id,
    IdKind.SHORT: "bcdefa456",
    IdKind.NAMED: f"functions.{SECOND.name}:1",
}
RESULT = ChatMessage("tool", "resultword", name=CALL.name, tool_call_id=CALL.id)
NEXT = ChatMessage("tool", "nextword", name=SECOND.name, tool_call_id=SECOND.id)
CUT = '{"cutword": '
THOUGHT = "thoughtword"
TOOL: Json = {
    "name": "toolname",
    "description": "toolword",
    "parameters": {
        "type": "object",
        "properties": {"alpha": {"type": "string", "description": "Some text."}},
        "required": ["alpha"],
    },
}
TOOLS: Json = {"tools": [{"type": "function", "function": TOOL}], "functions": "toolname toolword"}


def calling(*calls: ToolCall, content: str = "", thought: str = "") -> ChatMessage:
    return ChatMessage("assistant", content, tool_calls=calls, reasoning=thought)


@dataclass(frozen=True, slots=True)
class TemplateProbe:
    """Finds the traits of a template by renderings.

    write: renders with the template.
    source: its text.
    """

    write: Write
    source: str

    def traits(self) -> TemplateTraits:
        """Return the traits.

        A template that refuses the simplest chat has the defaults, with the forms of calls and
        thoughts that its source shows.
        """
        traits = self._simplest()
        if traits is None:
            return traits_by_source(self.source)
        traits = self._with_roles(traits)
        shows_tools = self._shows([USER], traits, ["toolname"], tools=True)
        traits = replace(traits, tools=shows_tools)
        traits = self._with_calls(traits)
        traits = replace(traits, thoughts=self._thought_field(traits))
        return self._with_forms(traits)

    def _simplest(self) -> TemplateTraits | None:
        """Return traits with which the template shows the simplest chat; None if none do."""
        for parts in (False, True):
            for empty_tools in (False, True):
                traits = TemplateTraits(parts=parts, empty_tools=empty_tools)
                if self._shows([USER], traits):
                    return traits
        return None

    def _shows(
        self,
        messages: Sequence[ChatMessage],
        traits: TemplateTraits,
        extra: Iterable[str] = (),
        *,
        tools: bool = False,
    ) -> bool:
        """Return True if all words of the messages, and the extra ones, are in the prompt."""
        text = self._text(messages, traits, tools=tools)
        wanted = list(extra)
        for message in messages:
            wanted += words_of(message)
        return all(word in text for word in wanted)

    def _text(
        self,
        messages: Sequence[ChatMessage],
        traits: TemplateTraits,
        *,
        tools: bool,
        continued: bool = False,
    ) -> str:
        """Return the prompt; "" if the template refuses the messages."""
        return self.write(messages, traits, TOOLS if tools else {}, continued) or ""

    def _with_roles(self, traits: TemplateTraits) -> TemplateTraits:
        """Return the traits with those about messages without tools."""
        system = self._shows([SYSTEM, USER], traits)
        in_parts = replace(traits, parts=True)
        if not system and self._shows([SYSTEM, USER, ANSWER, AGAIN], in_parts):
            traits = in_parts
            system = True
        # Many templates write the name of any role, but their models know no developer.
        names_developer = re.search(r"['\"]developer['\"]", self.source) is not None
        late = [USER, ANSWER, OTHER, AGAIN]
        late_system = self._shows(late, traits) and self._shows([SYSTEM, *late], traits)
        return replace(
            traits,
            system=system,
            systems=system and self._shows([SYSTEM, OTHER, USER], traits),
            late_system=system and late_system,
            developer=names_developer and self._shows([DEVELOPER, USER], traits),
            users=self._shows([USER, AGAIN], traits),
            assistants=self._shows([USER, ANSWER, ANOTHER, AGAIN], traits),
        )

    def _with_calls(self, traits: TemplateTraits) -> TemplateTraits:
        """Return the traits with those about calls and their results."""
        found = self._first_that_shows_calls(traits)
        if found is None:
            loop = [USER, ANSWER, RESULT]
            results = self._shows(loop, traits, tools=traits.tools)
            results = results and self._shows([*loop, ANOTHER, AGAIN], traits, tools=traits.tools)
            return replace(traits, calls=False, results=results)
        traits = replace(found, calls=True)
        tools = traits.tools
        call = _with_id(traits.ids)
        second = replace(SECOND, id=_SECOND_IDS[traits.ids])
        after = _after_call(traits)
        both = [after]
        if traits.results:
            both.append(replace(NEXT, tool_call_id=second.id))
        spoken = calling(call, content="saidword")
        cut = calling(replace(call, arguments=CUT))
        return replace(
            traits,
            text_with_calls=self._shows([USER, spoken, after], traits, tools=tools),
            parallel=self._shows([USER, calling(call, second), *both], traits, tools=tools),
            text_arguments=self._shows([USER, cut, after], traits, ["cutword"], tools=tools),
        )

    def _first_that_shows_calls(self, traits: TemplateTraits) -> TemplateTraits | None:
        """Return the most common traits with which the template shows a call; None if none do."""
        for results, ids, no_content in product((True, False), IdKind, (False, True)):
            tried = replace(traits, results=results, ids=ids, no_content=no_content)
            loop = [USER, calling(_with_id(ids)), _after_call(tried)]
            longer = [*loop, ANSWER, AGAIN]
            if self._shows_value(loop, tried) and self._shows_value(longer, tried):
                return tried
        return None

    def _shows_value(self, messages: Sequence[ChatMessage], traits: TemplateTraits) -> bool:
        """Return True if the prompt has all words, and the value of the call's argument."""
        return self._shows(messages, traits, ["valueword"], tools=traits.tools)

    def _thought_field(self, traits: TemplateTraits) -> ThoughtField:
        """Return the field in which the template finds a thought; the usual one by default."""
        for field in ThoughtField:
            if self._text_with_thought(replace(traits, thoughts=field)):
                return field
        return ThoughtField.REASONING_CONTENT

    def _text_with_thought(self, traits: TemplateTraits) -> str:
        """Return a prompt that shows a thought, of a call or of a continued answer; "" for none."""
        if traits.calls and traits.results:
            call = calling(_with_id(traits.ids), thought=THOUGHT)
            loop = [USER, call, _after_call(traits)]
            text = self._text(loop, traits, tools=traits.tools)
            if _shows_thought(text):
                return text
        answering = [USER, replace(ANSWER, reasoning=THOUGHT)]
        text = self._text(answering, traits, tools=traits.tools, continued=True)
        if not _shows_thought(text):
            return ""
        return text

    def _with_forms(self, traits: TemplateTraits) -> TemplateTraits:
        """Return the traits with the forms of calls and thoughts.

        The forms are those that the template writes, or else those that its source shows.
        """
        written = self._written_form(traits)
        form = written
        by_source = traits_by_source(self.source)
        if not written and traits.tools and not traits.calls:
            form = by_source.tool_format
        style = self._written_style(traits)
        return replace(
            traits,
            written=written,
            tool_format=form or GENERIC.name,
            thinking=style or by_source.thinking,
        )

    def _written_form(self, traits: TemplateTraits) -> str:
        """Return the name of the form in which the template writes calls; "" for an unknown one."""
        if not traits.calls:
            return ""
        call = _with_id(traits.ids)
        loop = [USER, calling(call), _after_call(traits)]
        for messages in (loop, [*loop, ANSWER, AGAIN]):
            text = self._text(messages, traits, tools=traits.tools)
            form = tool_detection.detect_written(text, call)
            if form is not None:
                return form.name
        return ""

    def _written_style(self, traits: TemplateTraits) -> str:
        """Return the name of the marks around a thought, or at the beginning of an answer."""
        style = reasoning.detect_written(self._text_with_thought(traits), THOUGHT)
        if style is None:
            text = self._text([USER], traits, tools=False)
            style = reasoning.detect(text.rpartition(USER.content)[2])
        return _name_of(style)


def traits_by_source(source: str) -> TemplateTraits:
    """Return the defaults, with the forms of calls and thoughts that a template's source shows."""
    form = tool_detection.detect(source)
    return TemplateTraits(tool_format=form.name, thinking=_name_of(reasoning.detect(source)))


def _name_of(style: reasoning.Thinking | None) -> str:
    return "" if style is None else style.name


def _shows_thought(text: str) -> bool:
    """Return True if a text shows a thought, and not just a list of parts as it is in memory."""
    as_data = "'thinking'" in text or '"thinking"' in text
    return THOUGHT in text and not as_data


def _with_id(kind: IdKind) -> ToolCall:
    return replace(CALL, id=_IDS[kind])


def _after_call(traits: TemplateTraits) -> ChatMessage:
    """Return the message after a call: its result, or a user's if the template has no results."""
    if not traits.results:
        return AGAIN
    return replace(RESULT, tool_call_id=_IDS[traits.ids])
