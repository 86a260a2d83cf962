"""Chat templates of real models: their traits, and that no shape of a chat loses anything.

`templates.json` has by name their variables, their forms of calls and thoughts, and the shapes they
refuse. `REWRITE_GOLDEN=1` with `-n 0` records it anew.
"""

import json
import os
import re
import sys
from functools import cache
from pathlib import Path

import pytest
from rendered import TemplateTokenizer
from test_cache import cache_folder

from specmesh.api.dialects.chat import parse_chat
from specmesh.core.text.chat import render
from specmesh.core.text.template_traits import TemplateTraits
from specmesh.errors import RequestError

sys.path.append(str(Path(__file__).parents[2] / "bench"))

from templates import SHAPES, WORD, missing_words

pytestmark = pytest.mark.real

GOLDEN = Path(__file__).parent / "templates.json"
ROWS = json.loads(GOLDEN.read_text(encoding="utf-8"))


@pytest.fixture(scope="session", autouse=True)
def _models():
    """No model is needed here, but templates are."""
    folder = cache_folder("templates")
    if not any(folder.glob("*/*.jinja")):
        pytest.fail(f"no templates in {folder}: run `make templates`", pytrace=False)


def source_of(name):
    """Return the template of this name; the test fails if it was not collected."""
    path = cache_folder("templates") / f"{name}.jinja"
    if not path.exists():
        pytest.fail(f"no template {name} is collected: run make templates")
    return path.read_bytes().decode()


@cache
def tokenizer_of(name):
    return TemplateTokenizer(source_of(name))


@cache
def prompts_of(name):
    """Return the prompt of each shape by this template, or None if it is refused."""
    prompts = {}
    for shape, body in SHAPES.items():
        try:
            prompts[shape] = render(parse_chat(body).requests[0], tokenizer_of(name)).text
        except RequestError:
            prompts[shape] = None
    return prompts


def row_of(name):
    """Return a template's entry in the golden file: unusual traits, and refused shapes."""
    usual = TemplateTraits().as_json()
    traits = tokenizer_of(name).traits.as_json()
    row = {name: trait for name, trait in traits.items() if trait != usual[name]}
    refused = [shape for shape, prompt in prompts_of(name).items() if prompt is None]
    if refused:
        row["refused"] = refused
    return row


@pytest.mark.parametrize("name", ROWS)
def test_what_is_found(name):
    row = json.loads(json.dumps(row_of(name)))
    if os.environ.get("REWRITE_GOLDEN"):
        record({name: row})
    assert row == ROWS[name]


@pytest.mark.parametrize("name", ROWS)
def test_nothing_is_lost(name):
    for shape, prompt in prompts_of(name).items():
        if prompt is not None:
            assert missing_words(json.dumps(SHAPES[shape]), prompt, WORD) == [], shape


def test_every_collected_template_has_a_row():
    folder = cache_folder("templates")
    names = {f"{path.parent.name}/{path.stem}" for path in folder.glob("*/*.jinja")}
    if os.environ.get("REWRITE_GOLDEN"):
        for name in names - ROWS.keys():
            record({name: row_of(name)})
    assert names == ROWS.keys(), "run make templates; record new ones with REWRITE_GOLDEN=1"


def record(rows):
    """Write rows into the golden file, one a line."""
    ROWS.update(rows)
    lines = [f" {json.dumps(name)}: {json.dumps(ROWS[name])}" for name in sorted(ROWS)]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    assert not re.search(r"\{%|\{\{", text)
    GOLDEN.write_text(text, encoding="utf-8")
