"""Detection of the form in which a model calls tools: by its template, or by what that writes."""

import re
from collections.abc import Iterable

from specmesh.core.text.tool_formats import FORMATS, GENERIC, ID, ToolCall, ToolFormat
from specmesh.core.text.tool_writing import write_arguments


def detect(template: str) -> ToolFormat:
    """Find the form of calls in the source of a template that writes none itself.

    It is GENERIC for a template that shows no tools, or has no sign of a form.
    """
    # Marks of calls also stand in templates that only delete them from earlier turns.
    if re.search(r"\btools\b", template) is None:
        return GENERIC
    for form in FORMATS.values():
        if form.signs and all(sign in template for sign in form.signs):
            return form
    return GENERIC


def detect_written(text: str, call: ToolCall) -> ToolFormat | None:
    """Find the form of the call in a text that a template wrote; None for an unknown form.

    A form to the letter comes first, then one with other blanks, then one without its `closing`.
    """
    # Each pass asks all forms: one that fits to the letter is surer than a more specific one that
    # nearly fits.
    for patterns in (_exact, _with_any_blanks, _unclosed):
        for form in FORMATS.values():
            if form is not GENERIC and patterns(form, call).search(text):
                return form
    return None


def _exact(form: ToolFormat, call: ToolCall) -> re.Pattern[str]:
    """Return an expression for the text of a call with any id."""
    parts = _texts_around_id(form, call, form.closing)
    return re.compile(r"[\w.-]+".join(map(re.escape, parts)))


def _with_any_blanks(form: ToolFormat, call: ToolCall) -> re.Pattern[str]:
    """Return an expression for a call whose template writes other blanks."""
    return _spaced(_texts_around_id(form, call, form.closing))


def _unclosed(form: ToolFormat, call: ToolCall) -> re.Pattern[str]:
    """Return an expression for a call whose template leaves the end to the message's own."""
    return _spaced(_texts_around_id(form, call, ""))


def _spaced(parts: Iterable[str]) -> re.Pattern[str]:
    """Return an expression for texts around an id, with any blanks between letters, or none."""
    spaced = list[str]()
    for part in parts:
        # Blanks of the form may be missing in the text, or be others.
        letters = "".join(part.split())
        spaced.append(r"\s*".join(map(re.escape, letters)))
    return re.compile(r"\s*[\w.-]+\s*".join(spaced))


def _texts_around_id(form: ToolFormat, call: ToolCall, closing: str) -> list[str]:
    """Return the text of a call as a history has it, in parts where its id stands."""
    text = form.history
    if not text:
        text = form.call + closing
        if not form.bare:
            text = form.opening + text
    arguments = write_arguments(form, call.arguments)
    return text.replace("$NAME", call.name).replace("$ARGS", arguments).split(ID)
