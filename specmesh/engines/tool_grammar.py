"""Calls of tools in llguidance's language: free text up to a mark, and after it nothing but calls of these tools.

A lazy lexeme ends as soon as it can, whatever else could go on: so does free text where a mark ends.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from specmesh.core.reasoning import STYLES
from specmesh.core.tool_calls import FORMATS, ToolFormat, resolved, types_of
from specmesh.errors import RequestError

_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)
_quoted = json.dumps
_Translate = Callable[[dict[str, Any]], str]


def tools_to_lark(request: Mapping[str, Any], of_schema: _Translate) -> str:
    """Translate a grammar of kind "tools"; `of_schema` makes a JSON schema a part of a rule. Raises RequestError."""
    try:
        return "".join(f"{rule}\n" for rule in _rules(request, of_schema))
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise RequestError(f"it does not describe tools: {type(error).__name__}: {error}") from None


def _rules(request: Mapping[str, Any], of_schema: _Translate) -> Iterator[str]:
    form, choice, tools = FORMATS[request["format"]], request["choice"], request["tools"]
    names = [tool["name"] for tool in tools]
    for name in names:
        if not _NAME.fullmatch(name):
            raise RequestError(f"a tool's name has at most 64 letters, digits, '_', '-' and '.': not {name[:80]!r}")
    if len(set(names)) < len(names):
        raise RequestError("two tools have the same name")
    if isinstance(choice, dict):
        tools = [tool for tool in tools if tool["name"] == choice["name"]]
    if not tools:
        raise RequestError(f"no tool is named {choice['name']!r}" if isinstance(choice, dict) else "there are no tools")
    if choice == "auto":
        bare = [f" | bare{number} args{number}" for number in range(len(tools))] if form.bare else []
        yield f"body: TEXT | trigger rest calls{''.join(bare)}"
        yield f"trigger[lazy]: TEXT {_quoted(form.trigger)}"
        yield f"rest: {_quoted(form.start.removeprefix(form.trigger))}"
    elif choice == "required" or isinstance(choice, dict):
        yield f"body: {_quoted(form.start)} calls" + " | head calls" * form.bare
    else:
        raise RequestError(f"choice must be auto, required or a name, not {choice!r}")
    if form.bare:
        yield f"head: {_quoted(form.head)}"
    yield f"start: {_after_thought(str(request['thinking']), free=choice == 'auto')}"
    several = request["parallel"] is True and form.between is not None and not isinstance(choice, dict)
    more = f" ({_quoted((form.between or '') + form.head)} call)*" * several
    yield f"calls: call{more} {_quoted(form.closing)}"
    yield "call: " + " | ".join(f"call{number}" for number in range(len(tools)))
    for number, tool in enumerate(tools):
        begin = tool["name"] + form.after
        yield f"args{number}: {_arguments(form, tool, of_schema)} {_quoted(form.end)}"
        yield f"call{number}: {_quoted(begin)} args{number}"
        if form.bare and choice == "auto":  # lazy to the end of the name: another object with one is text
            yield f"bare{number}[lazy]: {_quoted(form.head + begin)}"
    if form.param_begin:
        yield f"value[lazy]: TEXT {_quoted(form.param_end)}"
    yield "TEXT: /(.|\\n)*/" + f" & ~/{form.never}/" * bool(form.never)


def _after_thought(thinking: str, *, free: bool) -> str:
    """What a text begins with: its body, perhaps or certainly after a thought. A free one may end in its thought."""
    if not thinking:
        return "body"
    style = STYLES[thinking.removesuffix("!")]
    thought = f"thought{'' if free else ' gap'} body{' | TEXT' * free}\nthought[lazy]: TEXT {_quoted(style.end)}\n"
    gap = 'gap: "" | "\\n" | "\\n\\n"'
    if thinking.endswith("!"):
        return thought + gap
    return f"body | begin inside\nbegin[lazy]: /[ \\n]*/ {_quoted(style.begin)}\ninside: {thought}{gap}"


def _arguments(form: ToolFormat, tool: Mapping[str, Any], of_schema: _Translate) -> str:
    schema = {"type": "object", "properties": {}} | (tool.get("parameters") or {})
    if schema["type"] != "object":
        raise RequestError(f"the parameters of {tool['name']} must be those of a JSON object")
    if not form.param_begin:
        return of_schema(schema)
    return " ".join(_parameter(form, name, schema, of_schema) for name in schema["properties"])


def _parameter(form: ToolFormat, name: str, root: dict[str, Any], of_schema: _Translate) -> str:
    """An argument between marks. One that may be a text is free up to the mark, but for the texts of an enum."""
    if re.search(r"[<>\n]", name):
        raise RequestError(f"a parameter's name must have no '<', '>' or line break: not {name[:80]!r}")
    schema: Any = resolved(root["properties"][name], root)
    types, texts = types_of(schema, root), None
    if isinstance(schema, dict):
        texts = schema.get("enum") or ([schema["const"]] if "const" in schema else None)
    if types == {"string"} and texts:
        value = "(" + " | ".join(_quoted(text + form.param_end) for text in texts) + ")"
    elif not types or "string" in types:
        value = "value"
    else:
        defined = {key: root[key] for key in ("$defs", "definitions") if key in root}
        value = f"{of_schema(defined | schema)} {_quoted(form.param_end)}"
    part = f"{_quoted(form.param_begin + name + form.param_middle)} {value}"
    return part if name in root.get("required", ()) else f"({part})?"
