"""JSON schemas for llguidance: closed objects, rewritten keywords, faults."""

import json
import os
import subprocess
import sys
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from specmesh.core.text.reasoning import STYLES
from specmesh.engines.grammar_source import answer
from specmesh.engines.schema_faults import strict
from specmesh.engines.schema_keywords import SchemaFault

BYTES = LLTokenizer("byte")
INTEGER, STRING = {"type": "integer"}, {"type": "string"}


def matcher(schema: Any, kind: str = "json_schema", thinking: str = "") -> LLMatcher:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    answered = answer({"kind": kind, "text": text, "thinking": thinking})
    assert "lark" in answered, answered
    return LLMatcher(BYTES, str(answered["lark"]), log_level=0)


def takes(grammar: LLMatcher, text: str) -> bool:
    grammar.reset()
    data = list(text.encode())
    return grammar.try_consume_tokens(data) == len(data) and grammar.is_accepting()


def written(schema: Any, *documents: Any) -> list[bool]:
    """Which of these documents the grammar of a schema has."""
    grammar = matcher(schema)
    return [takes(grammar, json.dumps(one, ensure_ascii=False)) for one in documents]


# --- objects are closed to names that nobody declares

A: dict[str, Any] = {"type": "object", "properties": {"a": INTEGER}}
B: dict[str, Any] = {"type": "object", "properties": {"b": INTEGER}}
KIND = {"properties": {"kind": STRING, "v": INTEGER}, "required": ["kind"], "type": "object"}
CAT = {"type": "object", "properties": {"kind": {"const": "cat"}, "meows": INTEGER}}
DOG = {"type": "object", "properties": {"kind": {"const": "dog"}, "barks": INTEGER}}
PETS = {"$defs": {"Cat": CAT | {"required": ["kind"]}, "Dog": DOG | {"required": ["kind"]}}}
TREE = {"type": "object", "properties": {"n": INTEGER, "next": {"$ref": "#"}}}
X_A, X_B = {"properties": {"x": A}}, {"properties": {"x": B}}

CLOSED: list[tuple[dict[str, Any], list[Any], list[Any]]] = [
    (A, [{"a": 1}, {}], [{"a": 1, "z": 1}, {"z": 1}]),
    (A | {"required": ["a", "q"]}, [{"a": 1, "q": "any"}, {"a": 1, "q": 1, "z": 1}], [{"a": 1}]),
    (
        KIND | {"anyOf": [{"properties": {"a": INTEGER}}, {"properties": {"b": INTEGER}}]},
        [{"kind": "x", "v": 1, "a": 1}, {"kind": "x", "b": 1}, {"kind": "x", "a": 1, "b": 2}],
        [{"kind": "x", "z": 1}, {"a": 1}, {"kind": "x", "a": "no", "b": "no"}],
    ),
    (
        KIND | {"oneOf": [{"properties": {"kind": {"const": one}}} for one in ("a", "b")]},
        [{"kind": "a", "v": 1}, {"kind": "b"}],
        [{"kind": "c"}, {"kind": "a", "z": 1}],
    ),
    (
        {"$ref": "#/$defs/A", "properties": {"y": INTEGER}, "required": ["y"], "$defs": {"A": A}},
        [{"a": 1, "y": 2}, {"y": 1}],
        [{"a": 1}, {"y": 1, "z": 1}],
    ),
    ({"allOf": [A, B]}, [{"a": 1, "b": 2}, {"a": 1}, {"b": 1}], [{"z": 1}, {"a": "x"}]),
    (
        PETS | {"anyOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]},
        [{"kind": "cat", "meows": 1}, {"kind": "dog", "barks": 1}, {"kind": "cat", "barks": "x"}],
        [{"kind": "cat", "meows": "x"}, {"kind": "cat", "z": 1}],
    ),
    (
        {"type": "object", "properties": {"p": A}, "if": {}, "$defs": {}},
        [{"p": {"a": 1}}],
        [{"p": {"b": 1}}],
    ),
    (TREE, [{"n": 1, "next": {"n": 2, "next": {}}}], [{"next": {"z": 1}}, {"next": 1}]),
    (
        {"anyOf": [X_A, X_B], "type": "object"},
        [{"x": {"a": 1, "b": 2}}, {"x": {"b": 1}}, {"x": {"a": 1, "b": "x"}}],
        [{"x": {"z": 1}}, {"z": 1}],
    ),
    ({"allOf": [X_A, X_B], "type": "object"}, [{"x": {"a": 1, "b": 2}}], [{"x": {"b": "x"}}]),
    ({"type": "array", "items": A}, [[], [{"a": 1}]], [[{"z": 1}]]),
    ({"type": "array", "prefixItems": [A, B]}, [[{"a": 1}, {"b": 1}]], [[{"b": 1}]]),
    (A | {"additionalProperties": True}, [{"a": 1, "z": "x"}], [{"a": "x"}]),
    (A | {"additionalProperties": STRING}, [{"a": 1, "z": "x"}], [{"a": 1, "z": 1}]),
    (A | {"patternProperties": {"^z": INTEGER}}, [{"a": 1, "z": 1}, {"y": 1}], [{"z": "x"}]),
    ({"anyOf": [A | {"additionalProperties": False}, B]}, [{"a": 1}, {"b": 1}], [{"z": 1}]),
    ({"type": "object", "properties": {}}, [{}], [{"a": 1}]),
    ({"type": "object"}, [{}, {"a": 1}], [1]),
    ({"type": "object", "minProperties": 1} | A, [{"a": 1}], [{}]),
]


@pytest.mark.parametrize(("schema", "good", "bad"), CLOSED)
def test_an_object_has_the_names_that_some_subschema_declares(schema, good, bad):
    assert [one for one, taken in zip(good, written(schema, *good), strict=True) if not taken] == []
    assert [one for one, taken in zip(bad, written(schema, *bad), strict=True) if taken] == []


ONE_OF: list[tuple[list[Any], dict[str, Any], list[Any], list[Any]]] = [
    ([STRING, INTEGER], {}, ["x", 1], [None]),
    ([{"const": 1}, {"enum": [2, 3.0]}], {}, [1, 2, 3], [4]),
    ([{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}], PETS, [{"kind": "dog"}], [{"kind": "x"}]),
    (
        [{"required": ["a"]}, {"properties": {"a": False}}],
        A,
        [{"a": 1}, {}],
        [{"a": "x"}],
    ),
    ([A | {"required": ["a"]}, B | {"required": ["b"]}], {}, [{"a": 1}, {"b": 1}], [{}]),
    (
        [{"anyOf": [STRING, {"type": "null"}]}, {"type": "array"}],
        {"anyOf": [{}, False]},
        ["x", None, []],
        [1],
    ),
]


@pytest.mark.parametrize(("branches", "more", "good", "bad"), ONE_OF)
def test_a_one_of_whose_branches_exclude_each_other(branches, more, good, bad):
    schema = more | {"oneOf": branches}
    assert written(schema, *good, *bad) == [True] * len(good) + [False] * len(bad)


# --- what the library reads in another way, or not at all


def test_a_name_comes_once_in_whatever_spelling():
    grammar = matcher(A | {"additionalProperties": True})
    assert takes(grammar, '{"a": 1, "ab": 2, "\\u0007": 3}')
    for again in ('"a"', '"\\u0061"', '"\\u0061" '):
        assert not takes(grammar, f'{{"a": 1, {again}: 2}}')


@pytest.mark.parametrize("form", ["date", "date-time", "time"])
@given(data=st.data())
def test_days_and_times_are_those_of_the_calendar(form, data):
    numbers = [data.draw(st.integers(0, most)) for most in (9999, 13, 32, 24, 60, 60)]
    year, month, day, hour, minute, second = numbers
    date, time = f"{year:04}-{month:02}-{day:02}", f"{hour:02}:{minute:02}:{second:02}Z"
    text = {"date": date, "time": time, "date-time": f"{date}T{time}"}[form]
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    expected = checker.conforms(date, "date") or form == "time"
    expected = expected and (form == "date" or (hour < 24 and minute < 60 and second < 60))
    assert written({"type": "string", "format": form}, text) == [expected]


def test_the_29th_of_february():
    years = {2024: True, 2023: False, 2000: True, 1900: False, 400: True, 2100: False, 0: False}
    days = [f"{year:04}-02-29" for year in years]
    assert written({"format": "date", "pattern": "^[0-9]", "type": "string"}, *days) == [
        *years.values()
    ]


NUMBERS: list[tuple[dict[str, Any], list[Any], list[Any]]] = [
    ({"minimum": 2**53 + 1, "type": "integer"}, [2**53 + 2**20], [2**53, 2**53 + 1 - 2]),
    ({"maximum": 2**60 + 1, "type": "integer"}, [2**60 - 2**30], [2**60 + 2]),
    ({"minimum": 0.12345678901234567, "type": "number"}, [0.13], [0.1234567890123456]),
    ({"maximum": 2**53 - 1, "type": "integer"}, [2**53 - 1], [2**53]),
    ({"const": 2**53}, [2**53], [2**53 - 1]),
    ({"enum": [0.1, -7]}, [0.1, -7], [0.2]),
    ({"minLength": 2.0, "type": "string"}, ["ab"], ["a"]),
]


@pytest.mark.parametrize(("schema", "good", "bad"), NUMBERS)
def test_bounds_that_no_double_holds(schema, good, bad):
    assert written(schema, *good, *bad) == [True] * len(good) + [False] * len(bad)


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**20), 10**20))
def test_a_constant_number_is_itself_or_refused(number):
    """What can be written for it is equal to it."""
    try:
        rule = strict({"const": number})
    except SchemaFault:
        return
    forced = bytes(LLMatcher(BYTES, f"start: {rule}", log_level=0).compute_ff_bytes())
    assert json.loads(forced) == number


REWRITTEN: list[tuple[dict[str, Any], list[Any], list[Any]]] = [
    ({"type": "array", "uniqueItems": False}, [[1, 1]], []),
    ({"type": "object", "propertyNames": STRING}, [{"a": 1}], []),
    (
        {"propertyNames": {"enum": ["x", "y"]}, "additionalProperties": INTEGER, "type": "object"},
        [{"x": 1, "y": 2}, {"y": 1}, {}],
        [{"z": 1}, {"x": "a"}],
    ),
    (
        {"propertyNames": {"pattern": "^x"}, "additionalProperties": INTEGER, "type": "object"},
        [{"xa": 1}, {}],
        [{"a": 1}, {"xa": "b"}],
    ),
    ({"type": "object", "properties": {"a": {"not": {}}, "b": INTEGER}}, [{"b": 1}], [{"a": 1}]),
    ({"not": False, **INTEGER}, [1], ["x"]),
    ({"then": STRING, "minContains": 2, "dependencies": {}, **INTEGER}, [1], ["x"]),
    ({"type": "string", "pattern": "^[^[]+$"}, ["a]"], ["["]),
    ({"type": "string", "pattern": "^[a[b]]$"}, ["[]", "b]"], ["b", "c]"]),
    ({"type": "string", "pattern": "^[a-z&&b]$"}, ["q", "&"], ["A"]),
    ({"type": "string", "pattern": "^[+--]$"}, [",", "+"], ["a"]),
    ({"type": "string", "pattern": "^{a}$"}, ["{a}"], ["a"]),
    ({"type": "string", "pattern": "^[]a]{2}$"}, ["]a"], ["a"]),
    ({"type": "string", "pattern": r"^[\w-]+\/\d$"}, ["a-b/1"], ["a-b/x"]),
    ({"$ref": "#/definitions/x~1y%20z", "definitions": {"x/y z": INTEGER}}, [1], ["x"]),
    ({"$ref": "#it", "$defs": {"q": {"$anchor": "it", **INTEGER}}}, [1], ["x"]),
    ({"$id": "https://e.org/s", "$ref": "s#/$defs/q", "$defs": {"q": INTEGER}}, [1], ["x"]),
]


@pytest.mark.parametrize(("schema", "good", "bad"), REWRITTEN)
def test_what_can_be_put_in_other_words_is_kept_to(schema, good, bad):
    assert written(schema, *good, *bad) == [True] * len(good) + [False] * len(bad)


# --- faults

M = {"M": {"type": "object", "properties": {"q": {"type": "array", "uniqueItems": True}}}}
ONE_OF_FAULT = "a oneOf can be kept to if a type or a required const distinguishes its branches"
FAULTS: list[tuple[dict[str, Any], str]] = [
    (
        {"properties": {"a": {"items": {"format": "foo"}}}},
        "properties.a.items: Unknown format: foo",
    ),
    (
        {"properties": {"m": {"$ref": "#/$defs/M"}}, "$defs": M},
        '$defs.M.properties.q: Unimplemented keys: ["uniqueItems"]',
    ),
    (
        {"properties": {"a": {"anyOf": [INTEGER, {"pattern": "("}]}}},
        "properties.a.anyOf[1]: regex parse error: unclosed group: (",
    ),
    (
        {"type": "object", "properties": {"a": {"oneOf": [INTEGER, {"type": "number"}]}}},
        f"properties.a: {ONE_OF_FAULT}",
    ),
    (
        {"type": "object", "properties": {"b": {"type": "string", "const": 1}}, "required": ["b"]},
        "properties.b: Unsatisfiable schema: incompatible types",
    ),
    ({"additionalProperties": {"type": "int"}}, "additionalProperties: Invalid type: int"),
    (
        {"items": [{"const": 2**60 + 1}]},
        "items[0]: 1152921504606846977 has more digits than a double",
    ),
    (
        {"properties": {"a": {"$ref": "x.json"}}},
        "properties.a: json-schema:///x.json is not in this schema",
    ),
    ({"not": {"type": "string"}}, 'Unimplemented keys: ["not"]'),
]


@pytest.mark.parametrize(("schema", "told"), FAULTS)
def test_a_fault_is_told_with_its_place(schema, told):
    refused = answer({"kind": "json_schema", "text": json.dumps(schema)})
    assert refused == {"refused": told}


def test_a_large_schemas_fault_is_found():
    many = {f"p{number}": {"type": "string", "maxLength": number} for number in range(400)}
    schema = {
        "type": "object",
        "properties": many | {"bad": {"type": "array", "items": {"not": STRING}}},
    }
    refused = answer({"kind": "json_schema", "text": json.dumps(schema)})
    assert str(refused["refused"]).startswith("properties.bad.items: ")


# --- a thought comes first


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
@pytest.mark.parametrize(
    ("kind", "text", "good"),
    [
        ("json_schema", json.dumps(A), '{"a": 1}'),
        ("gbnf", 'root ::= "<t>" [a-z]+', "<t>ab"),
        ("gbnf", 'root ::= "<" root ">" | [a-z]', "<<b>>"),
    ],
)
def test_a_thought_comes_before_the_answer(style, kind, text, good):
    """It is free; the answer behind it is not."""
    inside, maybe, over = (matcher(text, kind, style.name + mark) for mark in ("!", "", "."))
    thought = f"{style.begin}I think {good}{style.end}"
    assert takes(inside, f"so {good}{style.end}{good}")
    assert takes(inside, f"{style.end}\n\n{good}")
    assert takes(maybe, thought + good)
    assert takes(maybe, good)
    assert takes(over, good)
    assert not takes(inside, f"so {good}")
    assert not takes(inside, f"so{style.end}so")
    assert not takes(maybe, thought)
    assert not takes(over, thought + good)


def test_gpt_oss_answers_in_its_channel():
    grammar = matcher(A, thinking="harmony")
    thought = "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant"
    for mark in ("final", "final <|constrain|>json"):
        assert takes(grammar, f'{thought}{thought}<|channel|>{mark}<|message|>{{"a": 1}}')
    assert not takes(grammar, f"{thought}<|channel|>final<|message|>Well")


# --- the same everywhere


def test_another_process_makes_the_same_grammar():
    """Another verifier may resume a text, and a drafter drafts by a grammar of its own."""
    schema = {
        "anyOf": [X_A, X_B, CAT, DOG, KIND, {"properties": dict.fromkeys("qwertz", STRING)}],
        "properties": dict.fromkeys("yxcvb", A),
        "additionalProperties": False,
    }
    letters = {name: {"type": "object", "properties": {name: STRING}} for name in "qwertzuiop"}
    rest = {"additionalProperties": {"type": "object", "properties": {"y": STRING}}}
    others = {"allOf": [{"type": "object", "properties": letters}, rest]}
    tools = [{"name": name, "parameters": schema | {"required": ["n", "m"]}} for name in "ab"]
    described = {"tools": tools, "choice": "auto", "parallel": True, "thinking": "think"}
    asked = [
        {"kind": "json_schema", "text": json.dumps(schema)},
        {"kind": "json_schema", "text": json.dumps(others)},
        *(
            {"kind": "tools", "text": json.dumps(described | {"format": form})}
            for form in ("hermes", "qwen3_coder", "gemma4")
        ),
    ]
    program = (
        "import json, sys; from specmesh.engines.grammar_source import answer;"
        "print(json.dumps([answer(one) for one in json.loads(sys.argv[1])]))"
    )
    answers = set[str]()
    for seed in ("1", "2", "3"):
        command = [sys.executable, "-c", program, json.dumps(asked)]
        environment = os.environ | {"PYTHONHASHSEED": seed}
        answers.add(
            subprocess.run(command, env=environment, capture_output=True, check=True).stdout
        )
    assert len(answers) == 1
