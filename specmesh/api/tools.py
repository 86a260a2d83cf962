"""The tools that an answer may call, as a grammar describes them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specmesh.core.fields import (
    Fields,
    Json,
    at,
    check_few,
    is_object,
    object_at,
    objects_at,
)
from specmesh.core.sampling.constraint import (
    MAX_TOOLS,
    Grammar,
    GrammarKind,
    check_grammar,
    compact,
)
from specmesh.errors import RequestError

MOST_TOOL_VALUES = 2**17  # values of all tools

_ROOM_FOR_FORMAT = 64
"""Bytes of a description that the verifier adds: how the model calls tools."""

_NO_PARAMETERS: Json = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Tools:
    """The functions that an answer may call.

    description: as `Grammar` has it; None without functions, or where none may be called.
    skipped: names of other kinds of tools, as `tools.web_search`, and of the choice of one.
    """

    description: Json | None
    skipped: tuple[str, ...]


def parse_tools(fields: Fields) -> Tools:
    """Return the tools of a body of OpenAI's. Raises RequestError.

    A chat nests the function's fields in `function`, /v1/responses does not.
    """
    functions: dict[str, Json] = {}
    others: list[str] = []
    for index, tool in enumerate(fields.listed("tools")):
        kind = at(tool, "type") or "function"
        if kind != "function":
            others.append(str(kind))
            continue
        function = object_at(tool, "function")
        if not function and is_object(tool):
            function = tool
        functions[f"tools[{index}]"] = function
    choice = fields.get("tool_choice", "auto")
    parallel = fields.flag("parallel_tool_calls", True)
    return chosen_tools(functions, others, choice, parallel=parallel)


def chosen_tools(
    functions: Mapping[str, Json], others: Sequence[str], choice: object, *, parallel: bool
) -> Tools:
    """Return the tools that a choice of OpenAI's allows. Raises RequestError.

    functions: by their paths in the body, with OpenAI's fields. `engines.grammar_source` checks
        the schemas, as peers send them too.
    others: kinds of tools that are no functions. They cannot be run here, so they are skipped.
    parallel: an answer may call several.
    """
    skipped = [f"tools.{kind}" for kind in dict.fromkeys(others)]
    if at(choice, "type") in others:
        skipped.append("tool_choice")
    described = [_described(function, path) for path, function in functions.items()]
    strict = [given["name"] for given in functions.values() if given.get("strict") is True]
    mode, allowed = _allowed(choice)
    if allowed is not None:
        described = [function for function in described if function["name"] in allowed]
    names = [function["name"] for function in described]
    chosen = _chosen(mode, names, others)
    if not described or chosen == "none":
        return Tools(None, tuple(skipped))
    check_few(described, "tools", MOST_TOOL_VALUES)
    # the verifier fills in the model's formats
    description: Json = {
        "tools": described,
        "choice": chosen,
        "parallel": parallel,
        "format": "",
        "thinking": "",
    }
    strict_names = [name for name in names if name in strict]
    if strict_names:
        description["strict"] = strict_names
    return Tools(description, tuple(skipped))


def answer_grammar(tools: Tools, text_grammar: Grammar | None) -> Grammar | None:
    """Return the grammar of an answer that may call tools.

    text_grammar: a schema binds the text of an answer that calls none.
    Raises RequestError for a grammar of another kind with tools.
    """
    description = tools.description
    if description is None:
        return text_grammar
    if text_grammar is not None and text_grammar.kind is GrammarKind.GBNF:
        why = "give tools or grammar, not both: with a grammar tool_choice must be none"
        raise RequestError(why, "grammar")
    if text_grammar is not None and description["choice"] == "auto":
        schema = json.loads(check_grammar(text_grammar).text)
        description = description | {"schema": schema}
    text = compact(description)
    most = MAX_TOOLS - _ROOM_FOR_FORMAT
    if len(text.encode()) > most:
        raise RequestError(f"tools are longer than {most} bytes", "tools")
    return Grammar(GrammarKind.TOOLS, text)


def _described(function: Json, where: str) -> Json:
    """Return a function as a description has it. Raises RequestError."""
    name = function.get("name")
    if not isinstance(name, str):
        raise RequestError(f"{where} must have a function that has a name", "tools")
    schema = function.get("parameters") or _NO_PARAMETERS
    if not is_object(schema):
        raise RequestError(f"{where}.function.parameters must be a JSON schema", "tools")
    description = str(function.get("description") or "")
    return {"name": name, "description": description, "parameters": schema}


def _allowed(choice: object) -> tuple[object, set[object] | None]:
    """Return the mode of a choice, and the names of the functions that it allows; None for all.

    OpenAI's choice of type allowed_tools has both: a chat's in an object of their own, that of
    /v1/responses beside the type. Any other choice is a mode.
    """
    if at(choice, "type") != "allowed_tools":
        return choice, None
    own = object_at(choice, "allowed_tools") or choice
    names: set[object] = set()
    for tool in objects_at(own, "tools"):
        name = _chosen_name(tool)
        if isinstance(name, str):
            names.add(name)
    return at(own, "mode"), names


def _chosen_name(tool: object) -> object:
    """Return the name of a function in a choice, nested or not."""
    return at(tool, "function.name") or at(tool, "name")


def _chosen(choice: object, names: Sequence[object], others: Sequence[str]) -> object:
    """Return none, auto, required, or an object with the name of a function.

    others: kinds of tools that are no functions. None of those can be called, so the choice of one
    leaves the answer free. Raises RequestError.
    """
    match choice:
        case "none" | "auto":
            return choice
        case "required" | "any" if names:
            return "required"
        case "required" | "any" if others:
            return "auto"
        case {"type": "function"} if (name := _chosen_name(choice)) in names:
            return {"name": name}
        case {"type": str(kind)} if kind in others:
            return "auto"
        case _:
            choices = "none, auto, required, allowed_tools, or a function of tools"
            raise RequestError(f"tool_choice must be {choices}", "tool_choice")
