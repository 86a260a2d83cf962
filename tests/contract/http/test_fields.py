"""What a body says of the form of its text, and what a daemon fills in where it says nothing."""

import json

import pytest

from specmesh.api.body import DEFAULTS, filled, parse_chat, parse_completion
from specmesh.core.sampling.constraint import Grammar, GrammarKind
from specmesh.core.sampling.sampler import Penalties, SamplingParams
from specmesh.errors import RequestError


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, 0.5),
        ({"temperature": None}, 0.5),
        ({"temperature": 0}, 0),
        ({"temperature": 0.9, "fallback": {"temperature": 0.2}}, 0.9),
        ({"fallback": {"temperature": 0.2}}, 0.5),
    ],
)
def test_precedence(body: dict[str, object], expected: float):
    """The request, the daemon, the client's fallback, in this order; null is not said."""
    assert filled(body, {"temperature": 0.5}) == {"temperature": expected}


@pytest.mark.parametrize("fallback", [3, [], "x", {"prompt": "x"}, {"seed": 1}, {"temperature": 1, "nonsense": 1}])
def test_bad_fallbacks(fallback: object):
    """Only fields that have defaults can be in it."""
    with pytest.raises(RequestError, match="fallback must be an object with some of max_tokens, temperature"):
        filled({"prompt": "x", "fallback": fallback}, {})


def test_every_default_arrives():
    told = dict(zip(DEFAULTS, (9, 0.5, 40, 0.9, 0.05, 0.8, 1.1, 32, 0.3, 0.4), strict=True))
    sampling = SamplingParams(0.5, 40, 0.9, 1, 0.05, 0.8, Penalties(1.1, 0.3, 0.4, 32))
    message = {"messages": [{"role": "user", "content": "x"}]}
    for parse, body in ((parse_completion, {"prompt": "x"}), (parse_chat, message)):
        params = parse(filled(body | {"seed": 1}, told)).request.params  # type: ignore[operator]
        assert (params.max_tokens, params.sampling) == (9, sampling)


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
GBNF = 'root ::= "a"'


def grammar(**fields: object) -> Grammar | None:
    """What a completion asks for; a chat asks for it alike."""
    told = parse_completion({"prompt": "x", **fields}).request.params.grammar
    assert parse_chat({"messages": [{"role": "user", "content": "x"}], **fields}).request.params.grammar == told
    return told


def schema(told: Grammar | None) -> object:
    assert told is not None
    assert told.kind is GrammarKind.JSON_SCHEMA
    return json.loads(told.text)


@pytest.mark.parametrize(
    "fields",
    [
        {"json_schema": SCHEMA},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": SCHEMA}}},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
    ],
)
def test_a_schema(fields: dict[str, object]):
    assert schema(grammar(**fields)) == SCHEMA


def test_any_object_and_a_grammar():
    assert schema(grammar(response_format={"type": "json_object"})) == {"type": "object"}
    assert grammar(grammar=GBNF) == Grammar(GrammarKind.GBNF, GBNF)


@pytest.mark.parametrize(
    ("fields", "field", "why"),
    [
        ({"response_format": "json"}, "response_format", "an object with a type"),
        ({"response_format": {"type": "xml"}}, "response_format", "text, json_object or json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "an object with a schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, "response_format", "a schema"),
        ({"response_format": {"type": "json_object", "schema": 3}}, "response_format", "schema must be a JSON object"),
        ({"json_schema": "{}"}, "json_schema", "must be a JSON object"),
        ({"grammar": ["a"]}, "grammar", "GBNF"),
        ({"grammar": " "}, "grammar", "empty"),
        ({"grammar": GBNF, "json_schema": SCHEMA}, "grammar", "one of"),
        ({"json_schema": SCHEMA, "response_format": {"type": "json_object"}}, "json_schema", "one of"),
        ({"json_schema": {"title": "x" * 70_000}}, "json_schema", "bytes"),
    ],
)
def test_what_is_refused(fields: dict[str, object], field: str, why: str):
    with pytest.raises(RequestError, match=why) as told:
        grammar(**fields)
    assert told.value.param == field
