"""The daemons of an installation without llguidance: all but grammars works."""

import json

import pytest
from processes import body, complete, drafted, edited, generate, until

HIDDEN = edited("import sys", "sys.modules['llguidance'] = None")
SCHEMA = {"type": "object", "properties": {"name": {"enum": ["Ada", "Grace"]}}}
FORMS = {"--json-schema": json.dumps(SCHEMA), "--grammar-file": 'root ::= "yes" | "no"'}


@pytest.fixture(scope="module")
def without(shared):
    """A pair without the library."""
    verifier = shared.verifier("step_ms=1", program=HIDDEN)
    return {"verifier": verifier, "drafter": shared.drafter(program=HIDDEN)}


def test_texts_are_drafted(without):
    alone = complete(without["verifier"], body("hello", 40, draft_n=0))
    assert drafted(without["drafter"], body("hello", 40, draft_n=4)).ids == alone.ids


def test_a_drafter_without_a_model_runs(mesh):
    """It says ready, and has its verifier, whose vocabulary it fetches for no grammar."""
    mesh.verifier("step_ms=1", program=HIDDEN)
    drafter = mesh.drafter(engine="ngram", program=HIDDEN)
    assert drafter.stats()["no_drafts"] is None


@pytest.mark.parametrize("option", FORMS)
def test_a_grammar_is_refused_in_one_line(without, role, option, tmp_path):
    form = tmp_path / "form"
    form.write_text(FORMS[option])
    done = generate(without[role], "Your name?", option, form)
    done.refused(2, "llguidance is not installed", "pip install '.[llama]'")


def test_a_drafter_without_it_drafts_blindly(mesh):
    """Its verifier has the library: the text keeps to the schema, as without a drafter."""
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    verifier = mesh.verifier("step_ms=1")
    alone = complete(verifier, body("hello", 40, draft_n=0, response_format=form))
    drafter = mesh.drafter(program=HIDDEN)
    assert complete(drafter, body("hello", 40, draft_n=4, response_format=form)).ids == alone.ids
    until(lambda: drafter.events("grammar_unknown"), "it is said")
    assert "pip install '.[llama]'" in drafter.event("grammar_unknown")["error"]
