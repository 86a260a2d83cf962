"""The tools of a chat's body, checked as far as `engines.grammar_source`, which hears peers too, does not."""

import json

from specmesh.core.fields import Fields
from specmesh.core.sampling.constraint import MAX_TOOLS, Grammar, GrammarKind
from specmesh.errors import RequestError

_NOTHING: dict[str, object] = {"type": "object", "properties": {}, "additionalProperties": False}


def tools_grammar(fields: Fields) -> Grammar | None:
    """The grammar of calls of the tools that a body gives, None where it gives none or chooses none. Raises
    RequestError."""
    given, choice = fields.get("tools", []), fields.get("tool_choice", "auto")
    parallel = fields.flag("parallel_tool_calls", True)
    if not isinstance(given, list):
        raise RequestError("tools must be a list", "tools")
    tools = [_tool(one, f"tools[{index}]") for index, one in enumerate(given)]
    chosen = _choice(choice, [one["name"] for one in tools])
    if chosen == "none" or not tools:
        return None
    grammar = {"tools": tools, "choice": chosen, "parallel": parallel, "format": "", "thinking": ""}
    text = json.dumps(grammar, ensure_ascii=False)
    if len(text.encode()) > MAX_TOOLS - 64:  # the verifier says in it how they are called
        raise RequestError(f"tools are longer than {MAX_TOOLS - 64} bytes", "tools")
    return Grammar(GrammarKind.TOOLS, text)


def _choice(choice: object, names: list[object]) -> object:
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
        case {"type": "function", "function": {"name": str(name), **function}}:
            schema = function.get("parameters") or _NOTHING
            if not isinstance(schema, dict):
                raise RequestError(f"{where}.function.parameters must be a JSON schema", "tools")
            return {"name": name, "description": str(function.get("description") or ""), "parameters": schema}
    raise RequestError(f"{where} must be of type function, with a function that has a name", "tools")
