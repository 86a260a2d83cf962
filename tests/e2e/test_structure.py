"""Text of a given form from the bundled pair: it parses, fits its schema, and is the same with and without drafts."""

import json
import time
from pathlib import Path

import jsonschema
import pytest
from processes import Daemon, Json, Mesh, Stream, complete, generate, until

WORD = {"type": "string", "pattern": "^[a-z]{1,12}$"}
TEXT = {"type": "string", "maxLength": 24}


def closed(properties: Json, *required: str) -> Json:
    """The schema of an object with these properties and no others; all are required unless some are named."""
    wanted = list(required or properties)
    return {
        "type": "object",
        "properties": properties,
        "required": wanted,
        "additionalProperties": False,
    }


SCHEMAS: dict[str, Json] = {
    "person": closed(
        {
            "name": TEXT,
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "ok": {"type": "boolean"},
        }
    ),
    "call": closed(
        {
            "tool": {"enum": ["search", "open", "close"]},
            "arguments": closed(
                {"query": TEXT, "limit": {"type": "integer", "minimum": 1, "maximum": 99}}, "query"
            ),
        }
    ),
    "list": closed(
        {
            "items": {
                "type": "array",
                "items": {"$ref": "#/$defs/item"},
                "minItems": 1,
                "maxItems": 4,
            }
        }
    )
    | {
        "$defs": {
            "item": closed(
                {"word": WORD, "kind": {"anyOf": [{"const": None}, {"enum": ["a", "b"]}]}}
            )
        }
    },
}


@pytest.fixture(scope="module")
def pair(shared: Mesh) -> dict[str, Daemon]:
    """The bundled one."""
    verifier = shared.verifier(
        "bundled", "--ctx", 512, "--reproducible", "--max-sessions", 3, engine="llama"
    )
    return {
        "verifier": verifier,
        "drafter": shared.drafter("bundled", "--ctx", 512, engine="llama"),
    }


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_it_fits_its_schema_and_drafts_change_nothing(daemon: Daemon, schema: Json):
    """Of every kind; with drafts the schema's own ones are among them, and all of these stand."""
    asked = {
        "prompt": "Return",
        "max_tokens": 300,
        "temperature": 0.8,
        "seed": 7,
        "json_schema": schema,
    }
    drafted = complete(daemon, asked)
    jsonschema.validate(json.loads(drafted.text), schema)
    assert drafted.finish == "stop"
    alone = complete(daemon, asked | {"draft_n": 0})
    assert (alone.text, alone.ids) == (drafted.text, drafted.ids)
    grammar = drafted.result["report"]["by_source"]["grammar"]
    assert 0 < grammar["accepted"] == grammar["drafted"]
    assert alone.result["report"]["by_source"] == {}


def test_on_the_command_line(daemon: Daemon, tmp_path: Path):
    """A schema in a file or as it is, a grammar in a file; the wrong ones are refused in a line."""
    schema = closed({"a": {"enum": [1, 2]}})
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(schema))
    for given in (path, json.dumps(schema)):
        done = generate(daemon, "x", "--json-schema", given, "--json")
        assert (done.code, done.err) == (0, "")
        jsonschema.validate(json.loads(done.json["text"]), schema)
        assert done.json["by_source"] is not None
    grammar = tmp_path / "answer.gbnf"
    grammar.write_text('root ::= "yes" | "no"')
    done = generate(daemon, "Is it?", "--grammar-file", grammar)
    assert done.out in ("yes\n", "no\n")
    grammar.write_text('root ::= "yes')
    generate(daemon, "Is it?", "--grammar-file", grammar).refused(
        2, "grammar cannot be used: line 1: unexpected end"
    )
    assert generate(daemon, "x", "--grammar-file", grammar, "--json-schema", "{}").code == 2


LITERAL = "ab" * 31_000
"""Inside the limit of a grammar's size, and one way on for 62,000 ids."""


@pytest.mark.parametrize(("n", "draft_n"), [(1, "auto"), (8, 0)])
def test_one_long_literal_holds_up_nobody_else(mesh: Mesh, n: int, draft_n: object):
    """Another client's short text takes a few times as long at most, once it was 40 to 750 times. The shortest of three
    against the median of three; no drafts where there are eight, whose rows would be what takes time."""
    verifier = mesh.verifier("step_ms=4,n_ctx=65536,max_sessions=9", "--max-sessions", 9)
    mesh.drafter("draft_ms=0.5,alpha=0.9,n_ctx=65536,max_sessions=9")

    long: Json = {"prompt": "x", "max_tokens": 60_000, "n": n, "draft_n": draft_n, "rounds": True}

    def seconds() -> float:
        began = time.monotonic()
        assert (
            len(complete(verifier, {"prompt": "hello", "max_tokens": 24, "temperature": 0}).ids)
            == 24
        )
        return time.monotonic() - began

    def beside(form: Json) -> list[float]:
        with Stream(verifier, long | form) as running:
            running.read(n)
            took = [seconds() for _ in range(3)]
            assert running.read(1).finish is None
        until(lambda: not verifier.live(), "its end")
        return sorted(took)

    for form in ({"grammar": f'root ::= "{LITERAL}"'}, {"json_schema": {"const": LITERAL}}):
        until(lambda form=form: beside(form)[0] < 6 * beside({})[1], "it is hardly slower")
    assert not verifier.events("drafter_gone")
