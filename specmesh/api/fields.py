"""The fields of a request's body, checked as they are read: RequestError names the one that is wrong."""

import json
from typing import TypeGuard
from urllib.parse import quote

from specmesh.core.sampling.constraint import Grammar, GrammarKind, check_grammar
from specmesh.core.sampling.sampler import MOST
from specmesh.core.sampling.stop import check_stops
from specmesh.errors import RequestError

Json = dict[str, object]
Prompt = tuple[str | None, tuple[int, ...] | None]
"""A text or ids."""

_UNSUPPORTED = (
    "audio documents echo functions prediction suffix tools top_logprobs web_search_options "
    "chat_template chat_template_kwargs include_stop_str_in_output truncate_prompt_tokens "
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
    "function_call tool_choice": ("none", "auto"),
    "modalities": (["text"],),
    "samplers": (),
}
_CHANGING = {name: values for names, values in _NEUTRAL.items() for name in names.split()}
"""Fields of OpenAI, llama-server, vLLM and others that would change the text, or what an answer is, with the values
besides null that change nothing."""

_TOLD = 300
"""Letters that a header has of the names of ignored fields."""


class BodyFields:
    """The fields of a body that are not null, each read by its name."""

    def __init__(self, body: object) -> None:
        if not isinstance(body, dict):
            raise RequestError("the request body must be a JSON object")
        self._given: Json = {name: value for name, value in body.items() if value is not None}
        self._read: set[str] = set()

    def get(self, name: str) -> object:
        self._read.add(name)
        return self._given.get(name)

    def text(self, name: str, default: str = "") -> str:
        value = self.get(name)
        if not isinstance(value, str | None):
            raise RequestError(f"{name} must be a text", name)
        return default if value is None else value

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

    def unread(self) -> str:
        """Return the names of fields that nobody has read and that change nothing, for a header. Raise RequestError for
        one that would change something."""
        unread = [name for name in self._given if name not in self._read]
        for name in unread:
            if name in _CHANGING and self._given[name] not in _CHANGING[name]:
                raise RequestError(f"{name} is not supported yet", name)
        return quote(", ".join(name for name in unread if name not in _CHANGING), ", []")[:_TOLD]


def grammar_of(fields: BodyFields) -> Grammar | None:
    """The grammar that a body asks for, if any, by OpenAI's `response_format`, with whose json_object llama-server
    takes a `schema` as well, or by llama-server's `json_schema` or `grammar`."""
    schema, gbnf = fields.get("json_schema"), fields.text("grammar")
    own = None if schema is None else _schema(schema, "json_schema")
    formed = _format(fields.get("response_format"))
    asked = [one for one in (formed, own, Grammar(GrammarKind.GBNF, gbnf) if gbnf else None) if one]
    if len(asked) > 1:
        raise RequestError("give one of response_format, json_schema and grammar", asked[1].field)
    return check_grammar(asked[0]) if asked else None


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


def biases_of(value: object) -> tuple[tuple[int, float], ...]:
    """OpenAI's {"id": bias}, or llama-server's [[id, bias], ...]."""
    pairs = list(value.items()) if isinstance(value, dict) else value or []
    if isinstance(pairs, list) and all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        biases = [_bias(token, bias) for token, bias in pairs]
        if None not in biases:
            return tuple(one for one in biases if one is not None)
    raise RequestError(f"logit_bias must map token ids to numbers from {-MOST:g} to {MOST:g}", "logit_bias")


def _bias(token: object, bias: object) -> tuple[int, float] | None:
    if isinstance(token, str) and token.isdecimal() and len(token) < 10:  # as keys of JSON's objects are
        token = int(token)
    if not is_id(token) or isinstance(bias, bool) or not isinstance(bias, int | float) or not -MOST <= bias <= MOST:
        return None
    return token, float(bias)


def is_id(value: object) -> TypeGuard[int]:
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
