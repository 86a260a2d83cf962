"""The form that a client wants of a text: a JSON schema or a grammar."""

import json
from dataclasses import dataclass

from specmesh.core.fields import Fields, at, check_short, is_object
from specmesh.core.sampling.constraint import MAX_GRAMMAR, Grammar, GrammarKind
from specmesh.errors import MissingField, RequestError


@dataclass(frozen=True, slots=True)
class TextFormat:
    """The form of a text.

    grammar: None for any text.
    schema_field: path of the field that has the grammar as a JSON schema, or "".
    """

    grammar: Grammar | None = None
    schema_field: str = ""


ANY_TEXT = TextFormat()


def parse_format(fields: Fields, own: TextFormat) -> TextFormat:
    """Return the format of the text.

    own: as the dialect's own field has it. llama-server's `json_schema` and `grammar` go with
    every dialect. Raises RequestError for two of the three.
    """
    formats = [own]
    schema = fields.get("json_schema")
    if schema is not None:
        formats.append(_schema_format(schema, "json_schema"))
    gbnf = fields.text("grammar")
    if gbnf:
        formats.append(TextFormat(Grammar(GrammarKind.GBNF, gbnf)))
    *others, last = [form for form in formats if form.grammar is not None] or [ANY_TEXT]
    if others:
        field = "grammar" if gbnf else "json_schema"
        raise RequestError("give one of response_format, json_schema and grammar", field)
    return last


def response_format(fields: Fields) -> TextFormat:
    """Return the format of `response_format`, a field of chats and completions."""
    value = fields.get("response_format")
    return openai_format(value, "response_format", "json_schema.schema")


def openai_format(value: object, path: str, schema_path: str) -> TextFormat:
    """Return the format of a field of OpenAI's.

    Raises RequestError, MissingField for json_schema without a schema, as OpenAI's API refuses it.
    With json_object goes a `schema`, as with llama-server.
    path: of the field. schema_path: of a schema within it.
    """
    match value:
        case None | {"type": "text"}:
            return ANY_TEXT
        case {"type": "json_object"} if is_object(value):
            schema = value.get("schema")
            if schema is None:
                schema = {"type": "object"}
            return _schema_format(schema, f"{path}.schema")
        case {"type": "json_schema"}:
            schema = at(value, schema_path)
            place = f"{path}.{schema_path}"
            if schema is None:
                remedy = "give the schema there, or type json_object for any object"
                raise MissingField(f"{place} is missing", place, remedy)
            return _schema_format(schema, place)
        case _:
            kinds = "text, json_object, or json_schema"
            raise RequestError(f"{path} must have type {kinds}", path)


def _schema_format(schema: object, path: str) -> TextFormat:
    """Return the format of a JSON schema, from the field at this path. Raises RequestError."""
    field = path.partition(".")[0]
    if not is_object(schema):
        raise RequestError(f"{path} must be a JSON object", field)
    check_short(schema, field, MAX_GRAMMAR)
    try:
        text = json.dumps(schema)
    except RecursionError:
        raise RequestError(f"{path} is nested too deeply", field) from None
    return TextFormat(Grammar(GrammarKind.JSON_SCHEMA, text), path)
