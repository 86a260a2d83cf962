"""Texts of a given form from the bundled pair are valid, and the same with and without drafts."""

import json
import time

import jsonschema
import pytest
from harness.tables import cases, rows
from processes import Stream, body, complete, generate, until

PERSON, CALL, LIST, NUMBER = rows("""
{"type": "object", "required": ["name", "age", "ok"], "additionalProperties": false,
 "properties": {"name": {"type": "string", "maxLength": 24},
                "age": {"type": "integer", "minimum": 0, "maximum": 150},
                "ok": {"type": "boolean"}}}
{"type": "object", "required": ["tool", "arguments"], "additionalProperties": false,
 "properties": {"tool": {"enum": ["search", "open", "close"]},
                "arguments": {
    "type": "object", "required": ["query"], "additionalProperties": false,
    "properties": {"query": {"type": "string", "maxLength": 24},
                   "limit": {"type": "integer", "minimum": 1, "maximum": 99}}}}}
{"type": "object", "required": ["items"], "additionalProperties": false,
 "properties": {"items": {"type": "array", "items": {"$ref": "#/$defs/item"},
                          "minItems": 1, "maxItems": 4}},
 "$defs": {"item": {
    "type": "object", "required": ["word", "kind"], "additionalProperties": false,
    "properties": {"word": {"type": "string", "pattern": "^[a-z]{1,12}$"},
                   "kind": {"anyOf": [{"const": null}, {"enum": ["a", "b"]}]}}}}}
{"type": "object", "required": ["a"], "additionalProperties": false,
 "properties": {"a": {"enum": [1, 2]}}}
""")


@pytest.fixture(scope="module")
def pair(shared):
    """The bundled one."""
    options = ("--reproducible", "--max-sessions", 3)
    verifier = shared.verifier("bundled", "--ctx", 512, *options, engine="llama")
    drafter = shared.drafter("bundled", "--ctx", 512, engine="llama")
    return {"verifier": verifier, "drafter": drafter}


@pytest.mark.parametrize("schema", [PERSON, CALL, LIST], ids=["person", "call", "list"])
def test_it_fits_its_schema_and_drafts_change_nothing(daemon, schema):
    """The schema's own drafts are among them, and all of these stand."""
    sampling = {"max_tokens": 300, "temperature": 0.8, "seed": 7}
    asked = {"prompt": "Return", "json_schema": schema} | sampling
    drafted = complete(daemon, asked)
    jsonschema.validate(json.loads(drafted.text), schema)
    assert drafted.finish == "stop"
    plain = complete(daemon, asked | {"draft_n": 0})
    assert (plain.text, plain.ids) == (drafted.text, drafted.ids)
    grammar = drafted.result["report"]["by_source"]["grammar"]
    assert 0 < grammar["accepted"] == grammar["drafted"]
    assert plain.result["report"]["by_source"] == {}


@pytest.mark.parametrize("in_a_file", [False, True])
def test_a_schema_on_the_command_line(daemon, tmp_path, in_a_file):
    given = json.dumps(NUMBER)
    if in_a_file:
        path = tmp_path / "schema.json"
        path.write_text(str(given))
        given = path
    done = generate(daemon, "x", json_schema=given)
    assert (done.code, done.err) == (0, "")
    jsonschema.validate(json.loads(done.out), NUMBER)


def test_a_grammar_on_the_command_line(daemon, tmp_path):
    grammar = tmp_path / "answer.gbnf"
    grammar.write_text('root ::= "yes" | "no"')
    assert generate(daemon, "Is it?", grammar_file=grammar).out in ("yes\n", "no\n")
    assert generate(daemon, "x", grammar_file=grammar, json_schema="{}").code == 2
    grammar.write_text('root ::= "yes')
    done = generate(daemon, "Is it?", grammar_file=grammar)
    done.refused(2, "grammar cannot be used: line 1: unexpected end")


LITERAL = "ab" * 31_000
"""Inside the limit of a grammar's size, and one way on for 62,000 ids."""


@cases("n, draft_n", '[1, "auto"] [8, 0]')
def test_one_long_literal_holds_up_nobody_else(mesh, n, draft_n):
    """Another client's short text took 40 to 750 times as long; it takes a few times as long.

    The shortest of three is compared with the median of three beside a text without a grammar.
    """
    verifier = mesh.verifier("step_ms=4,n_ctx=65536,max_sessions=9", "--max-sessions", 9)
    mesh.drafter("draft_ms=0.5,alpha=0.9,n_ctx=65536,max_sessions=9")

    def beside(**form):
        with Stream(verifier, body("x", 60_000, n=n, draft_n=draft_n, **form)) as running:
            running.read(n)
            took = []
            for _ in range(3):
                began = time.monotonic()
                complete(verifier, body("hello", 24))
                took.append(time.monotonic() - began)
            assert running.read(1).finish is None
        verifier.idle()
        return sorted(took)

    def hardly_slower(**form):
        return beside(**form)[0] < 6 * beside()[1]

    until(lambda: hardly_slower(grammar=f'root ::= "{LITERAL}"'), "a literal of a grammar")
    until(lambda: hardly_slower(json_schema={"const": LITERAL}), "a constant of a schema")
    assert not verifier.events("drafter_gone")
