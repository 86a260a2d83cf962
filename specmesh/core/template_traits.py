"""What a chat template takes and how it writes calls and thoughts: tried once, when it is loaded."""

from dataclasses import asdict, dataclass, fields
from enum import StrEnum

from specmesh.core.fields import Json


class IdKind(StrEnum):
    """Which ids of calls a template takes: any, nine letters and digits, or functions.NAME:NUMBER."""

    ANY = "any"
    SHORT = "short"
    NAMED = "named"


class ThoughtField(StrEnum):
    """Where a template finds an assistant's thought: in a field of this name, or in a part of the content."""

    REASONING_CONTENT = "reasoning_content"
    THINKING = "thinking"
    REASONING = "reasoning"
    PARTS = "parts"


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateTraits:
    """What a template does with messages. "Shows" means that their text is in the prompt that it writes.

    system: shows a system message at the beginning; systems: several there; late_system: one after others.
    developer: shows a message of the role developer.
    users, assistants: shows two messages of that role in a row.
    tools: shows the tools it is given; empty_tools: wants an empty list where there are none.
    calls: shows an assistant's calls; parallel: several in one message; text_with_calls: its text beside them.
    results: shows messages of the role tool.
    parts: wants contents as lists of parts.
    no_content: wants no content, instead of an empty one, beside calls.
    text_arguments: shows arguments that are no JSON object.
    written: the form in which it writes calls, "" for none that is known here.
    tool_format: the form in which the model is to call tools.
    thinking: the name of the marks around its thoughts, "" for none.
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

    @classmethod
    def of(cls, value: Json) -> "TemplateTraits":
        """Return the traits that `as_json` made JSON of; the default of what is missing."""
        known = {field.name for field in fields(cls)}
        given = asdict(cls()) | {name: one for name, one in value.items() if name in known}
        given["ids"] = IdKind(given["ids"])
        given["thoughts"] = ThoughtField(given["thoughts"])
        return cls(**given)
