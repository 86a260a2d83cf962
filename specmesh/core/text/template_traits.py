"""Traits of a chat template, tried when it is loaded: messages it takes, forms it writes."""

from dataclasses import asdict, dataclass
from enum import StrEnum

from specmesh.core.fields import Json


class IdKind(StrEnum):
    """Ids of calls that a template takes.

    ANY: any. SHORT: nine letters and digits. NAMED: functions.NAME:NUMBER.
    """

    ANY = "any"
    SHORT = "short"
    NAMED = "named"


class ThoughtField(StrEnum):
    """The field in which a template finds an assistant's thought.

    PARTS: it is a part of the content.
    """

    REASONING_CONTENT = "reasoning_content"
    THINKING = "thinking"
    REASONING = "reasoning"
    PARTS = "parts"


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateTraits:
    """How a template treats messages. It shows one whose text is in the prompt that it writes.

    system: shows a system message at the beginning.
    systems: shows several there.
    late_system: shows one after other messages.
    developer: shows a message of the role developer.
    users, assistants: shows two messages of that role in a row.
    tools: shows the tools that it is given.
    empty_tools: wants an empty list of tools if there are none.
    calls: shows an assistant's calls.
    parallel: shows several calls of one message.
    text_with_calls: shows the text of a message that has calls.
    results: shows messages of the role tool.
    parts: wants contents as lists of parts.
    no_content: wants no content, instead of an empty one, in a message with calls.
    text_arguments: shows arguments that are no JSON object.
    written: the form in which it writes calls; "" for none that is known here.
    tool_format: the form in which the model is to call tools.
    thinking: the name of the marks around its thoughts; "" for none.
    """

    system: bool = True
    systems: bool = True
    late_system: bool = True
    developer: bool = False
    users: bool = True
    assistants: bool = True
    tools: bool = False
    empty_tools: bool = False
    calls: bool = False
    parallel: bool = True
    text_with_calls: bool = True
    results: bool = False
    parts: bool = False
    no_content: bool = False
    text_arguments: bool = True
    ids: IdKind = IdKind.ANY
    thoughts: ThoughtField = ThoughtField.REASONING_CONTENT
    written: str = ""
    tool_format: str = "generic"
    thinking: str = ""

    def as_json(self) -> Json:
        return asdict(self)
