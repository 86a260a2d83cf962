"""The tools of a chat's body, checked."""

import json
import re

from specmesh.core.fields import Fields
from specmesh.core.sampling.constraint import MAX_TOOLS, Grammar, GrammarKind
from specmesh.errors import RequestError

_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_NOTHING: dict[str, object] = {"type": "object", "properties": {}, "additionalProperties": False}


def tools_grammar(fields: Fields) -> Grammar | None:
    """The grammar of calls of the tools that a body gives, None where it gives none or chooses none. Raises
    RequestError."""
    given, choice = fields.get("tools", []), fields.get("tool_choice", "auto")
    parallel = fields.flag("parallel_tool_calls", True)
    if not isinstance(given, list):
        raise RequestError("tools must be a list", "tools")
    tools = [_tool(one, f"tools[{index}]") for index, one in enumerate(given)]
    names = [str(one["name"]) for one in tools]
    if len(set(names)) < len(names):
        raise RequestError("tools must have names of their own", "tools")
    chosen = _choice(choice, names)
    if chosen == "none" or not tools:
        return None
    grammar = {"tools": tools, "choice": chosen, "parallel": parallel, "format": "", "thinking": ""}
    text = json.dumps(grammar, ensure_ascii=False)
    if len(text.encode()) > MAX_TOOLS - 64:  # the verifier says in it how they are called
        raise RequestError(f"tools are longer than {MAX_TOOLS - 64} bytes", "tools")
    return Grammar(GrammarKind.TOOLS, text)


def _choice(choice: object, names: list[str]) -> object:
    match choice:
        case "none" | "auto":
            return choice
        case "required" if names:
            return choice
        case {"type": "function", "function": {"name": name}} | {"type": "function", "name": name} if name in names:
            return {"name": name}
    raise RequestError("tool_choice must be none, auto, required, or a function of tools", "tool_choice")


def _tool(value: object, where: str) -> dict[str, object]:
    match value:
        case {"type": "function", "function": {"name": str(name), **function}} if _NAME.fullmatch(name):
            schema = function.get("parameters") or _NOTHING
            if not isinstance(schema, dict):
                raise RequestError(f"{where}.function.parameters must be a JSON schema", "tools")
            return {"name": name, "description": str(function.get("description") or ""), "parameters": schema}
    raise RequestError(f"{where} must be of type function, with a function whose name is a word", "tools")
