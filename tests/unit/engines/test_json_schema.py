"""JSON schemas for llguidance: closed objects, rewritten keywords, faults."""

import json
import os
import subprocess
import sys

import jsonschema
import pytest
from harness.tables import cases, rows
from hypothesis import given
from hypothesis import strategies as st
from languages import BYTES, language, takes
from llguidance import LLMatcher

from specmesh.core.text.reasoning import STYLES
from specmesh.engines.grammar_source import answer
from specmesh.engines.schema_faults import strict
from specmesh.engines.schema_keywords import SchemaFault


def matcher(schema, kind="json_schema", thinking=""):
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return language(kind, text, thinking)


def accepted(schema, documents):
    """Return those documents that the grammar of a schema allows."""
    grammar = matcher(schema)
    found = []
    for document in documents:
        if takes(grammar, json.dumps(document, ensure_ascii=False)):
            found.append(document)
    return found


# --- schemas, documents that they allow, and documents that they do not allow

A = json.loads('{"type": "object", "properties": {"a": {"type": "integer"}}}')
B = json.loads('{"type": "object", "properties": {"b": {"type": "integer"}}}')
CAT, DOG = rows("""
    {"type": "object", "required": ["kind"],
     "properties": {"kind": {"const": "cat"}, "meows": {"type": "integer"}}}
    {"type": "object", "required": ["kind"],
     "properties": {"kind": {"const": "dog"}, "barks": {"type": "integer"}}}
    """)

# Names that no subschema declares are refused.
CLOSED = """
    [$A, [{"a": 1}, {}], [{"a": 1, "z": 1}, {"z": 1}]]
    [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a", "q"]},
     [{"a": 1, "q": "any"}, {"a": 1, "q": 1, "z": 1}],
     [{"a": 1}]]
    [{"type": "object", "properties": {"kind": {"type": "string"}, "v": {"type": "integer"}},
      "required": ["kind"], "anyOf": [$A, $B]},
     [{"kind": "x", "v": 1, "a": 1}, {"kind": "x", "b": 1}, {"kind": "x", "a": 1, "b": 2}],
     [{"kind": "x", "z": 1}, {"a": 1}, {"kind": "x", "a": "no", "b": "no"}]]
    [{"type": "object", "properties": {"kind": {"type": "string"}, "v": {"type": "integer"}},
      "required": ["kind"],
      "oneOf": [{"properties": {"kind": {"const": "a"}}},
                {"properties": {"kind": {"const": "b"}}}]},
     [{"kind": "a", "v": 1}, {"kind": "b"}],
     [{"kind": "c"}, {"kind": "a", "z": 1}]]
    [{"$ref": "#/$defs/A", "properties": {"y": {"type": "integer"}}, "required": ["y"],
      "$defs": {"A": $A}},
     [{"a": 1, "y": 2}, {"y": 1}],
     [{"a": 1}, {"y": 1, "z": 1}]]
    [{"allOf": [$A, $B]}, [{"a": 1, "b": 2}, {"a": 1}, {"b": 1}], [{"z": 1}, {"a": "x"}]]
    [{"anyOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
      "$defs": {"Cat": $CAT, "Dog": $DOG}},
     [{"kind": "cat", "meows": 1}, {"kind": "dog", "barks": 1}, {"kind": "cat", "barks": "x"}],
     [{"kind": "cat", "meows": "x"}, {"kind": "cat", "z": 1}]]
    [{"type": "object", "properties": {"p": $A}, "if": {}, "$defs": {}},
     [{"p": {"a": 1}}], [{"p": {"b": 1}}]]
    [{"type": "object", "properties": {"n": {"type": "integer"}, "next": {"$ref": "#"}}},
     [{"n": 1, "next": {"n": 2, "next": {}}}],
     [{"next": {"z": 1}}, {"next": 1}]]
    [{"anyOf": [{"properties": {"x": $A}}, {"properties": {"x": $B}}], "type": "object"},
     [{"x": {"a": 1, "b": 2}}, {"x": {"b": 1}}, {"x": {"a": 1, "b": "x"}}],
     [{"x": {"z": 1}}, {"z": 1}]]
    [{"allOf": [{"properties": {"x": $A}}, {"properties": {"x": $B}}], "type": "object"},
     [{"x": {"a": 1, "b": 2}}], [{"x": {"b": "x"}}]]
    [{"type": "array", "items": $A}, [[], [{"a": 1}]], [[{"z": 1}]]]
    [{"type": "array", "prefixItems": [$A, $B]}, [[{"a": 1}, {"b": 1}]], [[{"b": 1}]]]
    [{"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": true},
     [{"a": 1, "z": "x"}], [{"a": "x"}]]
    [{"type": "object", "properties": {"a": {"type": "integer"}},
      "additionalProperties": {"type": "string"}},
     [{"a": 1, "z": "x"}], [{"a": 1, "z": 1}]]
    [{"type": "object", "properties": {"a": {"type": "integer"}},
      "patternProperties": {"^z": {"type": "integer"}}},
     [{"a": 1, "z": 1}, {"y": 1}], [{"z": "x"}]]
    [{"anyOf": [{"type": "object", "properties": {"a": {"type": "integer"}},
                 "additionalProperties": false}, $B]},
     [{"a": 1}, {"b": 1}], [{"z": 1}]]
    [{"type": "object", "properties": {}}, [{}], [{"a": 1}]]
    [{"type": "object"}, [{}, {"a": 1}], [1]]
    [{"type": "object", "properties": {"a": {"type": "integer"}}, "minProperties": 1},
     [{"a": 1}], [{}]]
"""

# The branches of a oneOf exclude each other.
ONE_OF = """
    [{"oneOf": [{"type": "string"}, {"type": "integer"}]}, ["x", 1], [null]]
    [{"oneOf": [{"const": 1}, {"enum": [2, 3.0]}]}, [1, 2, 3], [4]]
    [{"oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
      "$defs": {"Cat": $CAT, "Dog": $DOG}},
     [{"kind": "dog"}], [{"kind": "x"}]]
    [{"type": "object", "properties": {"a": {"type": "integer"}},
      "oneOf": [{"required": ["a"]}, {"properties": {"a": false}}]},
     [{"a": 1}, {}], [{"a": "x"}]]
    [{"oneOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]}]},
     [{"a": 1}, {"b": 1}], [{}]]
    [{"anyOf": [{}, false],
      "oneOf": [{"anyOf": [{"type": "string"}, {"type": "null"}]}, {"type": "array"}]},
     ["x", null, []], [1]]
"""

# Bounds beside 2^53, and numbers that no double holds.
NUMBERS = """
    [{"minimum": 9007199254740993, "type": "integer"},
     [9007199255789568], [9007199254740992, 9007199254740991]]
    [{"maximum": 1152921504606846977, "type": "integer"},
     [1152921503533105152], [1152921504606846978]]
    [{"minimum": 0.12345678901234567, "type": "number"}, [0.13], [0.1234567890123456]]
    [{"maximum": 9007199254740991, "type": "integer"}, [9007199254740991], [9007199254740992]]
    [{"const": 9007199254740992}, [9007199254740992], [9007199254740991]]
    [{"enum": [0.1, -7]}, [0.1, -7], [0.2]]
    [{"minLength": 2.0, "type": "string"}, ["ab"], ["a"]]
"""

# Keywords that llguidance does not know, in words that it knows.
REWRITTEN = r"""
    [{"type": "array", "uniqueItems": false}, [[1, 1]], []]
    [{"type": "object", "propertyNames": {"type": "string"}}, [{"a": 1}], []]
    [{"propertyNames": {"enum": ["x", "y"]}, "additionalProperties": {"type": "integer"},
      "type": "object"},
     [{"x": 1, "y": 2}, {"y": 1}, {}], [{"z": 1}, {"x": "a"}]]
    [{"propertyNames": {"pattern": "^x"}, "additionalProperties": {"type": "integer"},
      "type": "object"},
     [{"xa": 1}, {}], [{"a": 1}, {"xa": "b"}]]
    [{"type": "object", "properties": {"a": {"not": {}}, "b": {"type": "integer"}}},
     [{"b": 1}], [{"a": 1}]]
    [{"not": false, "type": "integer"}, [1], ["x"]]
    [{"then": {"type": "string"}, "minContains": 2, "dependencies": {}, "type": "integer"},
     [1], ["x"]]
    [{"type": "string", "pattern": "^[^[]+$"}, ["a]"], ["["]]
    [{"type": "string", "pattern": "^[a[b]]$"}, ["[]", "b]"], ["b", "c]"]]
    [{"type": "string", "pattern": "^[a-z&&b]$"}, ["q", "&"], ["A"]]
    [{"type": "string", "pattern": "^[+--]$"}, [",", "+"], ["a"]]
    [{"type": "string", "pattern": "^{a}$"}, ["{a}"], ["a"]]
    [{"type": "string", "pattern": "^[]a]{2}$"}, ["]a"], ["a"]]
    [{"type": "string", "pattern": "^[\\w-]+\\/\\d$"}, ["a-b/1"], ["a-b/x"]]
    [{"$ref": "#/definitions/x~1y%20z", "definitions": {"x/y z": {"type": "integer"}}},
     [1], ["x"]]
    [{"$ref": "#it", "$defs": {"q": {"$anchor": "it", "type": "integer"}}}, [1], ["x"]]
    [{"$id": "https://e.org/s", "$ref": "s#/$defs/q", "$defs": {"q": {"type": "integer"}}},
     [1], ["x"]]
"""


@cases("schema, good, bad", CLOSED + ONE_OF + NUMBERS + REWRITTEN, A=A, B=B, CAT=CAT, DOG=DOG)
def test_the_documents_of_a_schema(schema, good, bad):
    assert accepted(schema, good + bad) == good


@cases(
    "text, good",
    r"""
    ["{\"a\": 1, \"a\": 2}", false]
    ["{\"a\": 1, \"\\u0061\": 2}", false]
    ["{\"a\": 1, \"\\u0061\" : 2}", false]
    ["{\"a\": 1, \"ab\": 2, \"\\u0007\": 3}", true]
    """,
)
def test_a_name_comes_once_however_it_is_spelt(text, good):
    assert takes(matcher(A | {"additionalProperties": True}), text) == good


dates = st.builds("{:04}-{:02}-{:02}".format, *map(st.integers, [0] * 3, [9999, 13, 32]))
times = st.builds("{:02}:{:02}:{:02}Z".format, *map(st.integers, [0] * 3, [24, 60, 60]))


def is_time(text):
    """Return True for a time of a day; leap seconds are refused."""
    hour, minute, second = text.rstrip("Z").split(":")
    return hour < "24" and minute < "60" and second < "60"


def fits(text, form):
    return accepted({"type": "string", "format": form}, [text]) == [text]


@given(dates, times)
def test_dates_and_times_are_those_of_the_calendar_and_the_clock(date, time):
    is_date = jsonschema.Draft202012Validator.FORMAT_CHECKER.conforms(date, "date")
    assert fits(date, "date") == is_date
    assert fits(time, "time") == is_time(time)
    assert fits(f"{date}T{time}", "date-time") == (is_date and is_time(time))


def test_the_29th_of_february():
    schema = {"format": "date", "pattern": "^[0-9]", "type": "string"}
    good = ["2024-02-29", "2000-02-29", "0400-02-29"]
    bad = ["2023-02-29", "1900-02-29", "2100-02-29", "0000-02-29"]
    assert accepted(schema, good + bad) == good


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**20), 10**20))
def test_a_constant_number_is_itself_or_refused(number):
    try:
        rule = strict({"const": number})
    except SchemaFault:
        return
    forced = bytes(LLMatcher(BYTES, f"start: {rule}", log_level=0).compute_ff_bytes())
    assert json.loads(forced) == number


# --- faults

FAULTS = r"""
    [{"properties": {"a": {"items": {"format": "foo"}}}},
     "properties.a.items: Unknown format: foo"]
    [{"properties": {"m": {"$ref": "#/$defs/M"}},
      "$defs": {"M": {"type": "object",
                      "properties": {"q": {"type": "array", "uniqueItems": true}}}}},
     "$defs.M.properties.q: Unimplemented keys: [\"uniqueItems\"]"]
    [{"properties": {"a": {"anyOf": [{"type": "integer"}, {"pattern": "("}]}}},
     "properties.a.anyOf[1]: regex parse error: unclosed group: ("]
    [{"type": "object",
      "properties": {"a": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}},
     $REASON]
    [{"type": "object", "properties": {"b": {"type": "string", "const": 1}}, "required": ["b"]},
     "properties.b: Unsatisfiable schema: incompatible types"]
    [{"additionalProperties": {"type": "int"}}, "additionalProperties: Invalid type: int"]
    [{"items": [{"const": 1152921504606846977}]},
     "items[0]: 1152921504606846977 has more digits than a double"]
    [{"properties": {"a": {"$ref": "x.json"}}},
     "properties.a: json-schema:///x.json is not in this schema"]
    [{"not": {"type": "string"}}, "Unimplemented keys: [\"not\"]"]
"""
REASON = (
    "properties.a: a oneOf can be kept to if a type or a required const distinguishes its branches"
)


def refusal(schema):
    return str(answer({"kind": "json_schema", "text": json.dumps(schema)})["refused"])


@cases("schema, fault", FAULTS, REASON=REASON)
def test_a_fault_is_reported_with_its_place(schema, fault):
    assert refusal(schema) == fault


def test_the_fault_of_a_large_schema_is_found():
    properties = {f"p{number}": {"type": "string", "maxLength": number} for number in range(400)}
    properties["bad"] = {"type": "array", "items": {"not": {"type": "string"}}}
    fault = refusal({"type": "object", "properties": properties})
    assert fault.startswith("properties.bad.items: ")


# --- a thought comes first

STYLE = pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
ANSWERS = pytest.mark.parametrize(
    ("kind", "text", "good"),
    [
        ("json_schema", json.dumps(A), '{"a": 1}'),
        ("gbnf", 'root ::= "<t>" [a-z]+', "<t>ab"),
        ("gbnf", 'root ::= "<" root ">" | [a-z]', "<<b>>"),
    ],
)


@STYLE
@ANSWERS
def test_an_answer_comes_after_the_thought_that_began(style, kind, text, good):
    grammar = matcher(text, kind, f"{style.name}!")
    assert takes(grammar, f"so {good}{style.end}{good}")
    assert takes(grammar, f"{style.end}\n\n{good}")
    assert not takes(grammar, f"so {good}")
    assert not takes(grammar, f"so{style.end}so")


@STYLE
@ANSWERS
def test_a_thought_may_come_before_the_answer(style, kind, text, good):
    grammar = matcher(text, kind, style.name)
    thought = f"{style.begin}I think {good}{style.end}"
    assert takes(grammar, thought + good)
    assert takes(grammar, good)
    assert not takes(grammar, thought)


@STYLE
@ANSWERS
def test_no_thought_comes_after_one_that_ended(style, kind, text, good):
    grammar = matcher(text, kind, f"{style.name}.")
    thought = f"{style.begin}I think {good}{style.end}"
    assert takes(grammar, good)
    assert not takes(grammar, thought + good)


HARMONY_THOUGHT = "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant"


@cases(
    "text, good",
    r"""
    ["final<|message|>{\"a\": 1}", true]
    ["final <|constrain|>json<|message|>{\"a\": 1}", true]
    ["final<|message|>Well", false]
    """,
)
def test_gpt_oss_answers_by_the_schema_in_its_channel(text, good):
    grammar = matcher(A, thinking="harmony")
    assert takes(grammar, f"{HARMONY_THOUGHT}{HARMONY_THOUGHT}<|channel|>{text}") == good


# --- the same everywhere

PROGRAM = """
import json, sys
from specmesh.engines.grammar_source import answer
print(json.dumps([answer(source) for source in json.loads(sys.argv[1])]))
"""


def test_every_process_makes_the_same_grammar():
    """Another verifier may resume a text, and a drafter drafts by a grammar of its own."""
    letters = {name: {"type": "object", "properties": {name: {}}} for name in "qwertzuiop"}
    schema, others, tools = rows(
        """
        {"anyOf": [{"properties": {"x": $A}}, {"properties": {"x": $B}}, $CAT, $DOG,
                   {"properties": {"q": {"type": "string"}, "w": {"type": "string"}}}],
         "properties": $LETTERS, "required": ["n", "m"], "additionalProperties": false}
        {"allOf": [{"type": "object", "properties": $LETTERS},
                   {"additionalProperties": {"type": "object", "properties": {"y": {}}}}]}
        {"choice": "auto", "parallel": true, "thinking": "think"}
        """,
        A=A,
        B=B,
        CAT=CAT,
        DOG=DOG,
        LETTERS=letters,
    )
    tools["tools"] = [{"name": name, "parameters": schema} for name in "ab"]
    sources = [
        {"kind": "json_schema", "text": json.dumps(schema)},
        {"kind": "json_schema", "text": json.dumps(others)},
    ]
    for form in ("hermes", "qwen3_coder", "gemma4"):
        sources.append({"kind": "tools", "text": json.dumps(tools | {"format": form})})
    answers = set()
    for seed in ("1", "2", "3"):
        command = [sys.executable, "-c", PROGRAM, json.dumps(sources)]
        environment = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run(command, env=environment, capture_output=True, check=True)
        answers.add(done.stdout)
    assert len(answers) == 1
