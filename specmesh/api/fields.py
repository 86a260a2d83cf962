"""Fields of a body that nothing here reads: most are ignored, and what would change the text is refused by name."""

import json
from collections.abc import Collection, Sequence
from typing import assert_never
from urllib.parse import quote

from specmesh.core.sampling.constraint import Grammar, GrammarKind, check_grammar
from specmesh.errors import RequestError

Json = dict[str, object]

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
    """The fields that are neither `known` nor change anything; raises RequestError for one that would."""
    unread = [name for name in body if name not in known]
    for name in unread:
        neutral = _NEUTRAL.get(name)
        if neutral is not None and body[name] is not None and not any(_same(body[name], one) for one in neutral):
            raise RequestError(f"{name} is not supported yet", name)
    return tuple(name for name in unread if name not in _NEUTRAL and body[name] is not None)


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
    asked = [grammar for grammar in (_format(fields), _schema_field(fields), _grammar_field(fields)) if grammar]
    if len(set(asked)) > 1:
        raise RequestError("give one of response_format, json_schema and grammar", asked[1].field)
    return check_grammar(asked[0]) if asked else None


def fields_of(grammar: Grammar | None) -> Json:
    """A grammar as a field of a body; none where there is none."""
    if grammar is None:
        return {}
    match grammar.kind:
        case GrammarKind.GBNF:
            return {"grammar": grammar.text}
        case GrammarKind.JSON_SCHEMA:
            return {"json_schema": json.loads(grammar.text)}
        case _:
            assert_never(grammar.kind)


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


def _schema_field(fields: Json) -> Grammar | None:
    value = fields.get("json_schema")
    return None if value is None else _schema(value, "json_schema")


def _schema(value: object, where: str) -> Grammar:
    if not isinstance(value, dict):
        raise RequestError(f"{where} must be a JSON object", where.partition(".")[0])
    try:
        return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value))
    except RecursionError:
        raise RequestError(f"{where} is nested too deeply", where.partition(".")[0]) from None


def _grammar_field(fields: Json) -> Grammar | None:
    value = fields.get("grammar")
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise RequestError("grammar must be a text in GBNF", "grammar")
    return Grammar(GrammarKind.GBNF, value)
