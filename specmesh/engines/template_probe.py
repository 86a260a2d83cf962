"""What a chat template takes and shows, tried with short chats whose every word can be found
again."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specmesh.core.fields import Json
from specmesh.core.session_params import ChatMessage
from specmesh.core.text import reasoning, tool_formats
from specmesh.core.text.template_traits import IdKind, TemplateTraits, ThoughtField
from specmesh.core.text.tool_formats import GENERIC, ToolCall

Write = Callable[[Sequence[ChatMessage], TemplateTraits, Json, bool], str | None]
"""Renders messages with variables, or as one that is continued; None where the template refuses
them."""


def traits_of(value: Json) -> TemplateTraits:
    """Return the traits that `TemplateTraits.as_json` made JSON of; the default of what is
    missing."""
    given: dict[str, Any] = TemplateTraits().as_json() | value
    given["ids"] = IdKind(given["ids"])
    given["thoughts"] = ThoughtField(given["thoughts"])
    return TemplateTraits(**given)


def words_of(message: ChatMessage) -> Iterator[str]:
    """Yield what of a message must be in the prompt, where each of its texts is one word: its text,
    and its calls."""
    if message.content:
        yield message.content
    for call in message.tool_calls:
        yield call.name


def shortened(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return a chat of the same shape, in which each text is a word of its own."""
    names = dict[str, str]()
    short = list[ChatMessage]()
    for place, one in enumerate(messages):
        calls = list[ToolCall]()
        for number, call in enumerate(one.tool_calls):
            names[call.id] = f"call{place}n{number}q"
            calls.append(ToolCall(call.id, names[call.id], '{"key": "value"}'))
        word = f"word{place}q" if one.content.strip() else ""
        name = names.get(one.tool_call_id, one.name)
        thought = f"thought{place}q" if one.reasoning.strip() else ""
        changed = replace(one, content=word, name=name, tool_calls=tuple(calls), reasoning=thought)
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
RESULT = ChatMessage("tool", "resultword", CALL.name, tool_call_id=CALL.id)
NEXT = ChatMessage("tool", "nextword", SECOND.name, tool_call_id=SECOND.id)
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
    """Tries a template. write: renders with it; source: its text."""

    write: Write
    source: str

    def traits(self) -> TemplateTraits:
        """Return what the template takes. One that refuses the simplest chat has the defaults, with
        what its source shows of calls and thoughts."""
        traits = self._simplest()
        if traits is None:
            return traits_by_source(self.source)
        traits = self._with_roles(traits)
        traits = replace(traits, tools=self._shows_tools(traits))
        traits = self._with_calls(traits)
        traits = replace(traits, thoughts=self._thought_field(traits))
        return self._with_forms(traits)

    def _simplest(self) -> TemplateTraits | None:
        """Return the traits with which the template shows the simplest chat; None where it refuses
        all."""
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
        """Return whether all words of the messages, and the extra ones, are in the prompt."""
        text = self.write(messages, traits, TOOLS if tools else {}, False)
        if text is None:
            return False
        wanted = [word for one in messages for word in words_of(one)]
        return all(word in text for word in (*wanted, *extra))

    def _with_roles(self, traits: TemplateTraits) -> TemplateTraits:
        """Return the traits with those about messages without tools."""
        system = self._shows([SYSTEM, USER], traits)
        in_parts = replace(traits, parts=True)
        if not system and self._shows([SYSTEM, USER, ANSWER, AGAIN], in_parts):
            traits, system = in_parts, True
        # Many write any role's name, and their models know no developer.
        names_developer = re.search(r"['\"]developer['\"]", self.source) is not None
        late = [[USER, ANSWER, OTHER, AGAIN], [SYSTEM, USER, ANSWER, OTHER, AGAIN]]
        return replace(
            traits,
            system=system,
            systems=system and self._shows([SYSTEM, OTHER, USER], traits),
            late_system=system and all(self._shows(one, traits) for one in late),
            developer=names_developer and self._shows([DEVELOPER, USER], traits),
            users=self._shows([USER, AGAIN], traits),
            assistants=self._shows([USER, ANSWER, ANOTHER, AGAIN], traits),
        )

    def _shows_tools(self, traits: TemplateTraits) -> bool:
        return self._shows([USER], traits, ["toolname"], tools=True)

    def _with_calls(self, traits: TemplateTraits) -> TemplateTraits:
        """Return the traits with those about calls and what came of them."""
        found = self._first_that_shows_calls(traits)
        if found is None:
            loop = [USER, ANSWER, RESULT]
            results = self._shows(loop, traits, tools=traits.tools)
            results = results and self._shows([*loop, ANOTHER, AGAIN], traits, tools=traits.tools)
            return replace(traits, calls=False, results=results)
        traits = replace(found, calls=True)
        tools, call = traits.tools, _with_id(traits.ids)
        second = replace(SECOND, id=_SECOND_IDS[traits.ids])
        after = [_result(traits.ids)] if traits.results else [AGAIN]
        both = [*after, replace(NEXT, tool_call_id=second.id)] if traits.results else after
        spoken = calling(call, content="saidword")
        cut = calling(replace(call, arguments=CUT))
        return replace(
            traits,
            text_with_calls=self._shows([USER, spoken, *after], traits, tools=tools),
            parallel=self._shows([USER, calling(call, second), *both], traits, tools=tools),
            text_arguments=self._shows([USER, cut, *after], traits, ["cutword"], tools=tools),
        )

    def _first_that_shows_calls(self, traits: TemplateTraits) -> TemplateTraits | None:
        """Return the traits with which the template shows a call, the least particular ones first;
        None without any."""
        for results in (True, False):
            for ids in IdKind:
                for no_content in (False, True):
                    tried = replace(traits, results=results, ids=ids, no_content=no_content)
                    loop = [USER, calling(_with_id(ids)), _result(ids) if results else AGAIN]
                    longer = [*loop, ANSWER, AGAIN]
                    shown = [
                        self._shows(one, tried, ["valueword"], tools=traits.tools)
                        for one in (loop, longer)
                    ]
                    if all(shown):
                        return tried
        return None

    def _thought_field(self, traits: TemplateTraits) -> ThoughtField:
        """Return where the template finds a thought; the usual field where it shows none."""
        for field in ThoughtField:
            if self._text_with_thought(replace(traits, thoughts=field)):
                return field
        return ThoughtField.REASONING_CONTENT

    def _text_with_thought(self, traits: TemplateTraits) -> str:
        """Return a prompt with the thought of a call, or of an answer that goes on; "" where none
        is shown."""
        answering = replace(ANSWER, reasoning=THOUGHT)
        loop = [USER, calling(_with_id(traits.ids), thought=THOUGHT), _result(traits.ids)]
        for messages, continued in ((loop, False), ([USER, answering], True)):
            if messages is loop and not (traits.calls and traits.results):
                continue
            text = self.write(messages, traits, TOOLS if traits.tools else {}, continued) or ""
            as_data = "'thinking'" in text or '"thinking"' in text
            if THOUGHT in text and not as_data:
                return text
        return ""

    def _with_forms(self, traits: TemplateTraits) -> TemplateTraits:
        """Return the traits with the forms of calls and thoughts: as the template writes them, else
        by its source."""
        written = self._written_form(traits)
        by_source = traits_by_source(self.source)
        form = written or ("" if traits.calls else by_source.tool_format)
        if not traits.tools and not written:
            form = ""
        style = self._written_style(traits)
        return replace(
            traits,
            written=written,
            tool_format=form or GENERIC.name,
            thinking=style or by_source.thinking,
        )

    def _written_form(self, traits: TemplateTraits) -> str:
        """Return the name of the form in which the template writes calls; "" for none that is
        known."""
        if not traits.calls:
            return ""
        call = _with_id(traits.ids)
        after = _result(traits.ids) if traits.results else AGAIN
        for messages in ([USER, calling(call), after], [USER, calling(call), after, ANSWER, AGAIN]):
            text = self.write(messages, traits, TOOLS if traits.tools else {}, False) or ""
            form = tool_formats.detect_written(text, call)
            if form is not None:
                return form.name
        return ""

    def _written_style(self, traits: TemplateTraits) -> str:
        """Return the name of the marks in which the template puts a thought, or with which it
        begins an answer."""
        style = reasoning.detect_written(self._text_with_thought(traits), THOUGHT)
        if style is None:
            begun = (self.write([USER], traits, {}, False) or "").rpartition(USER.content)[2]
            style = reasoning.detect(begun)
        return style.name if style is not None else ""


def traits_by_source(source: str) -> TemplateTraits:
    """Return the defaults, with the forms of calls and thoughts of which the source of a template
    has signs."""
    style = reasoning.detect(source)
    return TemplateTraits(
        tool_format=tool_formats.detect(source).name,
        thinking=style.name if style is not None else "",
    )


_IDS = {IdKind.ANY: CALL.id, IdKind.SHORT: "abcdef123", IdKind.NAMED: f"functions.{CALL.name}:0"}
_SECOND_IDS = {
    IdKind.ANY: SECOND.id,
    IdKind.SHORT: "bcdefa456",
    IdKind.NAMED: f"functions.{SECOND.name}:1",
}


def _with_id(kind: IdKind) -> ToolCall:
    return replace(CALL, id=_IDS[kind])


def _result(kind: IdKind) -> ChatMessage:
    return replace(RESULT, tool_call_id=_IDS[kind])
