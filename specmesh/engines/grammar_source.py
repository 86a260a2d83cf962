"""Clients' grammars in llguidance's language: GBNF, JSON schemas, calls of tools; tried in a child process."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from specmesh.core.fields import Json, is_list, is_object
from specmesh.core.reasoning import STYLES
from specmesh.core.sampling.constraint import GrammarKind
from specmesh.core.tool_calls import resolved, types_of
from specmesh.core.tool_formats import FORMATS, ID, STRING, TYPE, ToolFormat
from specmesh.engines.gbnf import gbnf_to_lark
from specmesh.engines.tool_arguments import argument_rules
from specmesh.errors import RequestError

LIMITS = LLParserLimits(max_lexer_states=50_000, max_grammar_size=200_000)
"""Besides the library's own: a state is 0.35 to 0.85 kilobytes."""

ON_ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON as `json.dumps` writes it: a model cannot emit blanks without end, and the schema forces more of the text."""

_NO_TEXT = (
    "no text fits it: a rule that begins with itself needs another way to begin (left recursion)"
)

_OPENING = (
    "additionalProperties",
    "patternProperties",
    "unevaluatedProperties",
    "anyOf",
    "oneOf",
    "$ref",
)
_UNFORCED = '%llguidance {"no_forcing": true}\n'
"""Any spelling of an allowed text may be chosen, not only the library's."""

_TOOL_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)
_quoted = json.dumps


def answer(request: Json) -> Json:
    """In the child: return a request's grammar in llguidance's language as `lark`, or the reason as `refused`."""
    text = str(request["text"])
    try:
        lark = _UNFORCED + _lark_of(GrammarKind(str(request["kind"])), text)
    except RequestError as error:
        return {"refused": str(error)}
    matcher = LLMatcher(LLTokenizer("byte"), lark, log_level=0, limits=LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()
    return {"refused": describe(matcher.get_error())} if matcher.is_error() else {"lark": lark}


def describe(error: str) -> str:
    """Shorten the library's error: positions are in its own language."""
    first, _, rest = re.sub(
        r"^(at )?[0-9()]+: (failed to compile JSON schema: )?", "", error
    ).partition("\n")
    if (cause := re.search(r"^error: (.+)", rest, re.MULTILINE)) is not None:
        return f"{first[:200]} {cause[1]}: {rest.partition(chr(10))[0].strip()[:100]}"
    return _NO_TEXT if "NoExtension" in first else first[:300]


def _lark_of(kind: GrammarKind, text: str) -> str:
    match kind:
        case GrammarKind.GBNF:
            return gbnf_to_lark(text)
        case GrammarKind.JSON_SCHEMA:
            return f"start: {_of_schema(json.loads(text))}"
        case GrammarKind.TOOLS:
            return _of_tools(json.loads(text))


def _of_schema(schema: dict[str, Any]) -> str:
    closed = schema if '"allOf"' in json.dumps(schema) else _closed(schema)
    return f"%json {json.dumps(closed | {'x-guidance': ON_ONE_LINE})}"


def _closed(schema: Any) -> Any:
    """Forbid properties that an object's schema does not name, unless it says something of others, as llama.cpp does. A
    model asked for two properties would invent more. Not where several schemas hold for one object (allOf)."""
    if is_list(schema):
        return [_closed(inner) for inner in schema]
    if not is_object(schema):
        return schema
    closed = {name: _inside(name, inner) for name, inner in schema.items()}
    if isinstance(schema.get("properties"), dict) and not any(name in schema for name in _OPENING):
        closed["additionalProperties"] = False
    return closed


def _inside(keyword: str, value: Any) -> Any:
    """Close the schemas in a keyword's value; the names in some are the schema's own, whatever they are."""
    if keyword in ("enum", "const"):
        return value
    if keyword in ("properties", "patternProperties", "$defs", "definitions") and is_object(value):
        return {name: _closed(inner) for name, inner in value.items()}
    return _closed(value)


def _of_tools(request: Mapping[str, Any]) -> str:
    """Return free text up to a mark, and after it nothing but calls of these tools. A lazy lexeme ends as soon as it
    can, whatever else could go on: so does free text where a mark ends. Raises RequestError."""
    try:
        return "".join(f"{rule}\n" for rule in _tool_rules(request))
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise RequestError(f"it does not describe tools: {type(error).__name__}: {error}") from None


def _tool_rules(request: Mapping[str, Any]) -> Iterator[str]:
    form, choice, tools = FORMATS[request["format"]], request["choice"], request["tools"]
    names = [tool["name"] for tool in tools]
    for name in names:
        if not _TOOL_NAME.fullmatch(name):
            raise RequestError(
                f"a tool's name has at most 64 letters, digits, '_', '-' and '.': not {name[:80]!r}"
            )
    if len(set(names)) < len(names):
        raise RequestError("two tools have the same name")
    if isinstance(choice, dict):
        tools = [tool for tool in tools if tool["name"] == choice["name"]]
    if not tools:
        raise RequestError(
            f"no tool is named {choice['name']!r}"
            if isinstance(choice, dict)
            else "there are no tools"
        )
    if choice == "auto":
        bare = (
            [f" | bare{number} args{number}" for number in range(len(tools))] if form.bare else []
        )
        yield f"body: TEXT | trigger rest calls{''.join(bare)}"
        yield f"trigger[lazy]: TEXT {_quoted(form.trigger)}"
        yield f"rest: {_literal(form.start.removeprefix(form.trigger))}"
    elif choice == "required" or isinstance(choice, dict):
        yield f"body: {_literal(form.start)} calls" + " | head calls" * form.bare
    else:
        raise RequestError(f"choice must be auto, required or a name, not {choice!r}")
    if form.bare:
        yield f"head: {_quoted(form.head)}"
    yield f"start: {_after_thought(str(request['thinking']), free=choice == 'auto')}"
    several = (
        request["parallel"] is True and form.between is not None and not isinstance(choice, dict)
    )
    more = f" ({_literal((form.between or '') + form.head)} call)*" * several
    yield f"calls: call{more} {_quoted(form.closing)}"
    yield "call: " + " | ".join(f"call{number}" for number in range(len(tools)))
    for number, tool in enumerate(tools):
        begin = tool["name"] + form.after
        if form.syntax is not None or form.tag:
            yield from argument_rules(form, f"given{number}", _object_schema(tool))
            yield f"args{number}: given{number} {_literal(form.end)}"
        else:
            yield f"args{number}: {_arguments(form, tool)} {_literal(form.end)}"
        yield f"call{number}: {_literal(begin)} args{number}"
        if (
            form.bare and choice == "auto"
        ):  # lazy to the end of the name: another object with one is text
            yield f"bare{number}[lazy]: {_quoted(form.head + begin)}"
    if form.ids:
        yield f"ID: /{form.ids}/"
    if form.parameter and not form.tag:
        yield f"value[lazy]: TEXT {_quoted(form.param_end)}"
    yield "TEXT: /(.|\\n)*/" + f" & ~/{form.never}/" * bool(form.never)


def _after_thought(thinking: str, *, free: bool) -> str:
    """What a text begins with: its body, perhaps or certainly after a thought. A free one may end in its thought."""
    if not thinking:
        return "body"
    style = STYLES[thinking.removesuffix("!")]
    thought = f"thought{'' if free else ' gap'} body{' | TEXT' * free}\nthought[lazy]: TEXT {_quoted(style.end)}\n"
    between = " | ".join(_quoted(one) for one in ("\n", *style.dropped))
    gap = f"gap: ({between}){{0,3}}"
    if thinking.endswith("!"):
        return thought + gap
    return f"body | begin inside\nbegin[lazy]: /[ \\n]*/ {_quoted(style.begin)}\ninside: {thought}{gap}"


def _literal(text: str) -> str:
    """Return a text of a form in lark's syntax, with any id in the place of $ID."""
    parts = [_quoted(part) if part else "" for part in text.split(ID)]
    return " ID ".join(parts).strip() or '""'


def _object_schema(tool: Mapping[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = tool.get("parameters") or {}
    schema = dict[str, Any](type="object", properties={}) | given
    if schema["type"] != "object":
        raise RequestError(f"the parameters of {tool['name']} must be those of a JSON object")
    return schema


def _arguments(form: ToolFormat, tool: Mapping[str, Any]) -> str:
    schema = _object_schema(tool)
    if not form.param_begin:
        return _of_schema(schema)
    return " ".join(_parameter(form, name, schema) for name in schema["properties"])


def _parameter(form: ToolFormat, name: str, root: dict[str, Any]) -> str:
    """An argument between marks. One that may be a text is free up to the mark, but for the texts of an enum."""
    if re.search(r"[<>\n]", name):
        raise RequestError(
            f"a parameter's name must have no '<', '>' or line break: not {name[:80]!r}"
        )
    schema: Any = resolved(root["properties"][name], root)
    begin = form.param_begin + name
    parts = [f"{_quoted(begin + middle)} {value}" for middle, value in _values(form, schema, root)]
    part = parts[0] if len(parts) == 1 else f"({' | '.join(parts)})"
    return part if name in root.get("required", ()) else f"({part})?"


def _values(form: ToolFormat, schema: Any, root: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what may come before a value, and the value. A form that does not say whether it is a text has one kind."""
    types, known = types_of(schema, root), dict[str, Any](schema if is_object(schema) else {})
    texts = known.get("enum") or ([known["const"]] if "const" in known else None)
    middle, end = form.param_middle, _quoted(form.param_end)
    if types == {"string"} and texts:
        value = "(" + " | ".join(_quoted(text + form.param_end) for text in texts) + ")"
        yield _of_kind(middle, "string"), value
        return
    if not types or "string" in types:
        yield _of_kind(middle, "string"), "value"
    defined = {key: root[key] for key in ("$defs", "definitions") if key in root}
    if types and "string" not in types and TYPE not in middle:
        yield _of_kind(middle, "object"), f"{_of_schema(defined | schema)} {end}"
    elif STRING in middle:
        others = sorted((types or _JSON_TYPES) - {"string"})
        if others:
            yield _of_kind(middle, "object"), f"{_of_schema({'type': others})} {end}"
    elif TYPE in middle:
        for kind in sorted((types or _JSON_TYPES) - {"string"}):
            own = defined | schema if types == {kind} else {"type": kind}
            yield _of_kind(middle, kind), f"{_of_schema(own)} {end}"


_JSON_TYPES = {"string", "number", "boolean", "null", "array", "object"}


def _of_kind(middle: str, kind: str) -> str:
    """Return what comes before a value of a JSON type."""
    middle = middle.replace(STRING, "true" if kind == "string" else "false")
    return middle.replace(TYPE, "number" if kind == "integer" else kind)
