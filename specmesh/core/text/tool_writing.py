"""Calls written in the form of a model's family: earlier turns of a chat, and examples in words."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence

from specmesh.core.fields import Json, is_few, is_list, is_object
from specmesh.core.json_reader import FEW_VALUES, read_json
from specmesh.core.text.tool_formats import ID, STRING, TYPE, ToolCall, ToolFormat
from specmesh.core.text.tool_values import written, written_name

_ENCODER = json.JSONEncoder(ensure_ascii=False)


def object_of(arguments: str) -> Json | None:
    """Return arguments as a JSON object, empty without any; None for any other value."""
    if not arguments.strip():
        return {}
    try:
        # Models write line ends into texts, which strict JSON forbids.
        value = read_json(arguments, strict=False)
    except (ValueError, RecursionError):
        return None
    return value if is_object(value) else None


def write_calls(form: ToolFormat, calls: Sequence[ToolCall]) -> str:
    """Return the text with which a model of this family calls the tools."""
    texts = [_write_call(form, call, place) for place, call in enumerate(calls)]
    # A model that writes one call only may get a chat of another model, with several.
    between = "\n" if form.between is None else form.between
    return form.opening + between.join(texts) + form.closing


def _write_call(form: ToolFormat, call: ToolCall, place: int) -> str:
    """Return the text of one call. place: among the calls of its message, from 0 on."""
    number = _fitting_id(form, call.id, place)
    before = form.head + call.name + form.after
    arguments = write_arguments(form, call.arguments)
    return before.replace(ID, number) + arguments + form.end.replace(ID, number)


def _fitting_id(form: ToolFormat, name: str, place: int) -> str:
    """Return a call's id if it fits the form, or one made of it that fits, or the call's place."""
    digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()
    # The digests are the same in each turn, so the prompt begins as in the turn before.
    for candidate in (name, digest[:9], digest[:10]):
        if re.fullmatch(form.ids, candidate):
            return candidate
    return str(place + form.first_id)


def write_arguments(form: ToolFormat, arguments: str) -> str:
    """Return arguments in a form.

    Arguments that are no JSON object stay as they are in a form with JSON; in others they are
    left out.
    """
    if not form.parameter and form.syntax is None:
        return arguments if arguments.strip() else "{}"
    # A form with marks has no place for a text that is no object.
    given = object_of(arguments) or {}
    syntax = form.syntax
    texts = list[str]()
    for name, value in given.items():
        if syntax is None:
            texts.append(_write_parameter(form, name, value))
        else:
            texts.append(written_name(name, syntax) + syntax.assign + written(value, syntax))
    comma = "" if syntax is None else syntax.comma
    return comma.join(texts)


def _write_parameter(form: ToolFormat, name: str, value: object) -> str:
    """Return an argument between its marks; a text stands there as it is, anything else as JSON."""
    is_text = json.dumps(isinstance(value, str))
    middle = form.param_middle.replace(STRING, is_text).replace(TYPE, json_type(value))
    text = _write_tagged(form.tag, value)
    return form.param_begin + name + middle + text + form.end_of(name)


def raw_or_json(value: object) -> str:
    """Return a text as it is, any other value as JSON."""
    if isinstance(value, str):
        return value
    if is_few(value, FEW_VALUES):
        return json.dumps(value, ensure_ascii=False)
    return "".join(_ENCODER.iterencode(value))  # step by step: other threads go on


def _write_tagged(tag: str, value: object) -> str:
    """Return a value with a mark around each item and member, as MiniMax-M3 has them.

    tag: begins each mark; without it the value has none.
    """
    if tag and is_object(value):
        members = list(value.items())
    elif tag and is_list(value):
        members = [("item", item) for item in value]
    else:
        return raw_or_json(value)
    parts = list[str]()
    for name, member in members:
        parts.append(f"{tag}<{name}>{_write_tagged(tag, member)}{tag}</{name}>")
    return "".join(parts)


def json_type(value: object) -> str:
    """Return the name of a JSON value's type; that of a whole number is number."""
    if value is None:
        return "null"
    # For Python a truth value is a number too, so it comes first.
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, int | float):
        return "number"
    if is_list(value):
        return "array"
    return "object"


def in_words(tools: Sequence[Mapping[str, object]], form: ToolFormat) -> str:
    """Return a text that describes the tools to a model, and how it calls one in this form."""
    arguments = "ARGUMENTS"
    if form.parameter or form.syntax is not None:
        arguments = '{"KEY": "VALUE"}'
    call = write_calls(form, [ToolCall("0", "NAME", arguments)])
    shown = "\n".join(json.dumps(dict(tool), ensure_ascii=False) for tool in tools)
    several = ""
    if form.between is not None:
        several = "Several calls follow each other. "
    return (
        f"You can call these tools, each described by a line of JSON:\n{shown}\n\n"
        "To call one, end your answer with its name and its arguments, in exactly this form:\n"
        f"{call}\n\n"
        f"{several}Call no tool where you can answer without one."
    )
