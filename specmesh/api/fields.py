"""Fields of a request's body that the wire does not have, or has in one form only; and those that nobody reads."""

import json
from collections.abc import Iterable
from urllib.parse import quote

from specmesh.core.fields import Fields, are_ids
from specmesh.core.sampling.constraint import MAX_TOOLS, Grammar, GrammarKind
from specmesh.errors import RequestError

Prompt = tuple[str | None, tuple[int, ...] | None]
"""A text or ids."""

_UNSUPPORTED = (
    "audio documents functions prediction suffix top_logprobs web_search_options "
    "chat_template include_stop_str_in_output truncate_prompt_tokens "
    "dry_multiplier dynatemp_range lora min_keep mirostat smoothing_factor top_a xtc_probability "
    "allowed_token_ids bad_words logits_processors max_new_tokens min_tokens stop_token_ids "
    "ebnf guided_choice guided_grammar guided_json guided_regex regex structured_outputs "
    "no_repeat_ngram_size use_beam_search"
)
_NEUTRAL: dict[str, tuple[object, ...]] = {
    _UNSUPPORTED: (False, 0, "", [], {}),
    "best_of length_penalty num_beams repetition_penalty typ_p typical_p": (1,),
    "adaptive_target n_predict": (-1,),
    "t_max_predict_ms top_n_sigma": (-1, 0),
    "do_sample skip_special_tokens": (True,),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "samplers": (),
}
_CHANGING = {name: values for names, values in _NEUTRAL.items() for name in names.split()}
"""Fields of OpenAI, llama-server, vLLM and others that would change the text, or what an answer is, with the values
besides null that change nothing."""

_LONGEST_HEADER = 300
"""Letters that a header has of the names of ignored fields."""


def ignored(fields: Fields) -> tuple[str, ...]:
    """Return the names of fields that nobody has read and that change nothing. Raise RequestError for one that would
    change something."""
    unread = fields.unread()
    for name in unread:
        if name in _CHANGING and fields.given[name] not in _CHANGING[name]:
            raise RequestError(f"{name} is not supported yet", name)
    return tuple(name for name in unread if name not in _CHANGING)


def as_header(names: Iterable[str]) -> str:
    return quote(", ".join(names), ", []")[:_LONGEST_HEADER]


def grammar_of(fields: Fields, *, chat: bool) -> Grammar | None:
    """The grammar that a body asks for, if any, by OpenAI's `response_format`, with whose json_object llama-server
    takes a `schema` as well, or by llama-server's `json_schema` or `grammar`; or that of a chat's tools."""
    schema, gbnf = fields.get("json_schema"), fields.text("grammar")
    own = None if schema is None else _schema(schema, "json_schema")
    formed = _format(fields.get("response_format"))
    asked = [one for one in (formed, own, Grammar(GrammarKind.GBNF, gbnf) if gbnf else None) if one]
    if len(asked) > 1:
        raise RequestError("give one of response_format, json_schema and grammar", asked[1].field)
    tools, form = _tools(fields) if chat else None, asked[0] if asked else None
    if form is not None and tools is not None:
        raise RequestError(f"give tools or {form.field}, not both: set tool_choice to none for the second", "tools")
    return tools or form


def _format(value: object) -> Grammar | None:
    match value:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object", **others}:
            return _schema(others.get("schema", {"type": "object"}), "response_format.schema")
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            return _schema(schema, "response_format.json_schema.schema")
    why = "response_format.type must be text, json_object, or json_schema with an object json_schema that has a schema"
    raise RequestError(why, "response_format")


def _schema(value: object, where: str) -> Grammar:
    if not isinstance(value, dict):
        raise RequestError(f"{where} must be a JSON object", where.partition(".")[0])
    try:
        return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value))
    except RecursionError:
        raise RequestError(f"{where} is nested too deeply", where.partition(".")[0]) from None


_NOTHING: dict[str, object] = {"type": "object", "properties": {}, "additionalProperties": False}


def _tools(fields: Fields) -> Grammar | None:
    """The grammar of calls of the tools that a chat's body gives, None where it gives none or chooses none. They are
    checked as far as `engines.tool_grammar`, which hears peers too, does not."""
    tools = [_tool(one, f"tools[{index}]") for index, one in enumerate(fields.listed("tools"))]
    chosen = _choice(fields.get("tool_choice", "auto"), [one["name"] for one in tools])
    parallel = fields.flag("parallel_tool_calls", True)
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


def prompts_of(value: object) -> tuple[Prompt, ...]:
    if isinstance(value, list) and value and all(isinstance(one, str | list) for one in value):
        return tuple(_prompt(one) for one in value)
    return (_prompt(value),)


def _prompt(value: object) -> Prompt:
    if isinstance(value, str):
        return value, None
    if value and are_ids(value):
        return None, tuple(value)
    why = "prompt must be a string or a list of token ids, each from 0 to 2147483647, or a list of such"
    raise RequestError(why, "prompt")
