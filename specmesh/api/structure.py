"""What a body says of the form of its text, by OpenAI's field and by llama-server's two."""

import json
from typing import assert_never

from specmesh.core.sampling.constraint import Grammar, GrammarKind, check_grammar
from specmesh.errors import RequestError

Json = dict[str, object]


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
