"""The fields of a request's body, checked as they are read: RequestError names the one that is wrong."""

import json
from collections.abc import Sequence
from typing import Any, TypeGuard
from urllib.parse import quote

from specmesh.core.sampling.constraint import Grammar, GrammarKind, check_grammar
from specmesh.core.sampling.sampler import FORBIDDEN, MOST
from specmesh.core.sampling.stop import check_stops
from specmesh.errors import RequestError

Json = dict[str, object]
Prompt = tuple[str | None, tuple[int, ...] | None]
"""A text or ids."""

_EMPTY: tuple[object, ...] = (False, 0, "", [], {})
_CHANGING: tuple[tuple[tuple[object, ...], str], ...] = (
    (_EMPTY, "audio prediction web_search_options echo suffix top_logprobs tools functions"),  # OpenAI's
    (
        _EMPTY,
        "mirostat dry_multiplier xtc_probability dynatemp_range min_keep lora",
    ),  # llama-server's
    (
        _EMPTY,
        "max_new_tokens min_tokens allowed_token_ids stop_token_ids bad_words logits_processors",
    ),  # vLLM's, others'
    (_EMPTY, "truncate_prompt_tokens chat_template chat_template_kwargs include_stop_str_in_output documents"),
    (_EMPTY, "structured_outputs guided_json guided_regex guided_choice guided_grammar regex ebnf"),
    (_EMPTY, "no_repeat_ngram_size top_a smoothing_factor use_beam_search"),
    ((-1, 0), "top_n_sigma t_max_predict_ms"),
    ((-1,), "adaptive_target n_predict"),
    ((), "samplers"),
    ((1,), "best_of typ_p typical_p repetition_penalty length_penalty num_beams"),
    ((True,), "skip_special_tokens do_sample"),
    (("none", "auto"), "tool_choice function_call"),
    ((["text"],), "modalities"),
)
"""Fields that would change the text, or what an answer is, after the values besides null that change nothing."""

_NEUTRAL = {name: values for values, names in _CHANGING for name in names.split()}

_WITHOUT_EFFECT = frozenset(
    ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls")
)
"""OpenAI's, which change no answer."""

_TOLD, _NAME = 16, 64
"""Names that the log and the header have at most, and letters of one."""


class BodyFields:
    """The fields of a body that are not null, each read by its name."""

    def __init__(self, body: object) -> None:
        if not isinstance(body, dict):
            raise RequestError("the request body must be a JSON object")
        self._given: Json = {name: value for name, value in body.items() if value is not None}
        self._read: set[str] = set()

    def get(self, name: str) -> Any:
        self._read.add(name)
        return self._given.get(name)

    def number(self, name: str, default: float, low: float, high: float) -> float:
        value = self.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise RequestError(f"{name} must be a number from {low:g} to {high:g}", name)
        return float(value)

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        """Return a whole number, also one written 1.0, or the default."""
        value = self.get(name)
        if value is None:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is not int or not low <= value <= high:
            raise RequestError(f"{name} must be a whole number from {low} to {high}", name)
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise RequestError(f"{name} must be true or false", name)
        return value

    def unread(self) -> tuple[str, ...]:
        """Return the fields that nobody has read and that change nothing. Raise RequestError for one that would."""
        unread = [name for name in self._given if name not in self._read and name not in _WITHOUT_EFFECT]
        for name in unread:
            if name in _NEUTRAL and self._given[name] not in _NEUTRAL[name]:
                raise RequestError(f"{name} is not supported yet", name)
        return tuple(name for name in unread if name not in _NEUTRAL)


def shown(names: Sequence[str]) -> str:
    """Names from a client's body, for a header and the log."""
    return ", ".join(quote(name[:_NAME], "[]", errors="replace") for name in names[:_TOLD])


def grammar_of(fields: BodyFields) -> Grammar | None:
    """The grammar that a body asks for, if any.

    `response_format` is OpenAI's, and with its json_object llama-server takes a `schema` as well; `json_schema` and
    `grammar` are llama-server's. The same one may come twice: who goes on with a text adds what the daemon told.
    """
    schema, gbnf = fields.get("json_schema"), fields.get("grammar")
    if not isinstance(gbnf, str | None):
        raise RequestError("grammar must be a text in GBNF", "grammar")
    own = None if schema is None else _schema(schema, "json_schema")
    formed = _format(fields.get("response_format"))
    asked = [one for one in (formed, own, Grammar(GrammarKind.GBNF, gbnf) if gbnf else None) if one]
    if len(set(asked)) > 1:
        raise RequestError("give one of response_format, json_schema and grammar", asked[1].field)
    return check_grammar(asked[0]) if asked else None


def fields_of(grammar: Grammar | None) -> Json:
    if grammar is None:
        return {}
    if grammar.kind is GrammarKind.GBNF:
        return {"grammar": grammar.text}
    return {"json_schema": json.loads(grammar.text)}


def _format(value: object) -> Grammar | None:
    match value:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object", **others}:
            return _schema(others.get("schema", {"type": "object"}), "response_format.schema")
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            return _schema(schema, "response_format.json_schema.schema")
        case {"type": "json_schema"}:
            raise RequestError("response_format.json_schema must be an object with a schema", "response_format")
        case {"type": _}:
            raise RequestError("response_format.type must be text, json_object or json_schema", "response_format")
        case _:
            raise RequestError("response_format must be an object with a type", "response_format")


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
