"""Fields of a request's body, each checked: RequestError names the one that is wrong."""

import json
from collections.abc import Collection, Sequence
from typing import Any, TypeGuard
from urllib.parse import quote

from specmesh.core.sampling.constraint import Grammar, GrammarKind, check_grammar
from specmesh.core.sampling.sampler import FORBIDDEN, MOST
from specmesh.core.sampling.stop import check_stops
from specmesh.errors import RequestError

Json = dict[str, object]
Prompt = tuple[str | None, tuple[int, ...] | None]
"""A text or ids."""

_CHANGING: tuple[tuple[tuple[object, ...], str], ...] = (
    ((), "audio prediction web_search_options"),  # OpenAI's
    ((1,), "best_of"),
    ((0,), "top_logprobs"),
    ((False,), "echo"),
    (("",), "suffix"),
    (([],), "tools functions"),
    (("none", "auto"), "tool_choice function_call"),
    ((True, False), "parallel_tool_calls"),
    ((["text"],), "modalities"),
    ((), "n_predict samplers"),  # llama-server's; what only tunes one of these, as dry_base does, needs no place here
    ((0,), "mirostat dry_multiplier xtc_probability dynatemp_range min_keep"),
    ((-1, 0), "top_n_sigma t_max_predict_ms"),
    ((-1,), "adaptive_target"),
    ((1,), "typ_p"),
    (([],), "lora"),
    (({},), "chat_template_kwargs"),
    ((), "max_new_tokens allowed_token_ids truncate_prompt_tokens structured_outputs chat_template"),  # vLLM's, others'
    ((), "guided_json guided_regex guided_choice guided_grammar regex ebnf"),
    ((0,), "min_tokens no_repeat_ngram_size top_a smoothing_factor"),
    ((1,), "repetition_penalty length_penalty num_beams"),
    ((False,), "use_beam_search include_stop_str_in_output"),
    ((True,), "skip_special_tokens do_sample"),
    (([],), "stop_token_ids bad_words logits_processors documents"),
)
"""Fields that would change the text, or what an answer is, after the values besides null that change nothing."""

_NEUTRAL = {name: values for values, names in _CHANGING for name in names.split()}

_TOLD, _NAME = 16, 64
"""Names that the log and the header have at most, and letters of one."""


def ignored(body: Json, known: Collection[str]) -> tuple[str, ...]:
    """Return the fields that are neither `known` nor change anything. Raise RequestError for one that would."""
    unread = [name for name, value in body.items() if name not in known and value is not None]
    for name in unread:
        if name in _NEUTRAL and not any(_same(body[name], one) for one in _NEUTRAL[name]):
            raise RequestError(f"{name} is not supported yet", name)
    return tuple(name for name in unread if name not in _NEUTRAL)


def shown(names: Sequence[str]) -> str:
    """Names from a client's body, for a header and the log."""
    return ", ".join(quote(name[:_NAME], "[]", errors="replace") for name in names[:_TOLD])


def _same(value: object, other: object) -> bool:
    """Equal as JSON: true is not 1 there."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def grammar_of(fields: Json) -> Grammar | None:
    """The grammar that a body asks for, if any; raises RequestError that names the field.

    `response_format` is OpenAI's, and with its json_object llama-server takes a `schema` as well; `json_schema` and
    `grammar` are llama-server's. The same one may come twice: who goes on with a text adds what the daemon told.
    """
    schema, gbnf = fields.get("json_schema"), fields.get("grammar")
    if not isinstance(gbnf, str | None):
        raise RequestError("grammar must be a text in GBNF", "grammar")
    own = None if schema is None else _schema(schema, "json_schema")
    asked = [one for one in (_format(fields), own, Grammar(GrammarKind.GBNF, gbnf) if gbnf else None) if one]
    if len(set(asked)) > 1:
        raise RequestError("give one of response_format, json_schema and grammar", asked[1].field)
    return check_grammar(asked[0]) if asked else None


def fields_of(grammar: Grammar | None) -> Json:
    if grammar is None:
        return {}
    if grammar.kind is GrammarKind.GBNF:
        return {"grammar": grammar.text}
    return {"json_schema": json.loads(grammar.text)}


def _format(fields: Json) -> Grammar | None:
    value = fields.get("response_format")
    if value is None:
        return None
    if not isinstance(value, dict):
        raise RequestError("response_format must be an object with a type", "response_format")
    match value.get("type"):
        case "text":
            return None
        case "json_object":
            return _schema(value.get("schema", {"type": "object"}), "response_format.schema")
        case "json_schema":
            inner = value.get("json_schema")
            if not isinstance(inner, dict) or "schema" not in inner:
                raise RequestError("response_format.json_schema must be an object with a schema", "response_format")
            return _schema(inner["schema"], "response_format.json_schema.schema")
        case _:
            raise RequestError("response_format.type must be text, json_object or json_schema", "response_format")


def _schema(value: object, where: str) -> Grammar:
    if not isinstance(value, dict):
        raise RequestError(f"{where} must be a JSON object", where.partition(".")[0])
    try:
        return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value))
    except RecursionError:
        raise RequestError(f"{where} is nested too deeply", where.partition(".")[0]) from None


def biases_of(value: object) -> tuple[tuple[int, float], ...]:
    """OpenAI's {"id": bias}, or llama-server's [[id, bias], ...], where false forbids a token."""
    pairs = list(value.items()) if isinstance(value, dict) else value or []
    if isinstance(pairs, list) and all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        biases = [(_token(token), FORBIDDEN if bias is False else bias) for token, bias in pairs]
        if all(_is_bias(*one) for one in biases):
            return tuple((token, float(bias)) for token, bias in biases)
    why = f"logit_bias must map token ids to numbers from {-MOST:g} to {MOST:g}, or false for never"
    raise RequestError(why, "logit_bias")


def _token(token: Any) -> Any:
    """An id that may be written as a text, as keys of JSON's objects are."""
    return int(token) if isinstance(token, str) and token.isdecimal() and len(token) < 10 else token


def _is_bias(token: object, bias: object) -> bool:
    return is_id(token) and type(bias) in (int, float) and (bias == FORBIDDEN or -MOST <= bias <= MOST)  # type: ignore[operator]


def is_id(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**31


def are_ids(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(map(is_id, value))


def stops_of(value: object) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value or []
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise RequestError("stop must be a text or a list of texts", "stop")
    return check_stops(stops)


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


def number_field(body: Json, name: str, default: float, low: float, high: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise RequestError(f"{name} must be a number from {low:g} to {high:g}", name)
    return float(value)


def integer_field(body: Json, name: str, default: int, low: int, high: int) -> int:
    """Return a whole number, also one written 1.0, or the default. Raise RequestError."""
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int or not low <= value <= high:
        raise RequestError(f"{name} must be a whole number from {low} to {high}", name)
    return value


def flag(body: Json, name: str, default: bool = False) -> bool:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise RequestError(f"{name} must be true or false", name)
    return value
