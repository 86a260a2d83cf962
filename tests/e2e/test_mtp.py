"""`specmesh verifier --mtp`: a target drafts by its own NextN layers."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from harness.tables import rows
from meshes import running
from processes import body, complete

pytestmark = pytest.mark.models

SMALL = ("--ctx", 256, "--max-sessions", 3)
N = 48
CODE = "import os\nimport sys\n\ndef main("

REQUESTS = rows(
    """
    {}
    {"draft_n": 1}
    {"draft_n": 4}
    {"temperature": 0.8, "seed": 7, "draft_n": 3}
    {"temperature": 1.0, "seed": 7, "top_k": 20, "draft_n": 3}
    {"repeat_penalty": 1.3, "frequency_penalty": 0.4, "draft_n": 3}
    {"stop": ["e", "t"], "draft_n": 4}
    {"json_schema": {"type": "object", "required": ["a"]}, "draft_n": 4}
    {"n": 3, "temperature": 0.9, "seed": 3, "draft_n": 4}
    """
)
TINY = rows(
    """
    {"arch": "mimo2", "nextn": 1}
    {"arch": "step35", "nextn": 2}
    {"arch": "qwen35", "nextn": 1}
    {"arch": "glm4moe", "nextn": 1, "experts": 4}
    """
)
"""Attention only, chained layers, hybrid, experts; random models whose layers were solved."""


@pytest.fixture(scope="module")
def trained(make_nextn):
    """The bundled target with its own head, and without; to the last bit the same."""
    target = make_nextn("bundled")
    options = (*SMALL, "--reproducible")
    with running() as mesh, running() as other:
        with_head = mesh.verifier(target, *options, engine="llama")
        yield with_head, other.verifier(target, *options, "--mtp", "off", engine="llama")


@pytest.mark.parametrize("changes", REQUESTS)
def test_text_is_that_without_the_head(trained, changes):
    request = body(CODE, N) | changes
    answers = [daemon.client.get("/v1/completions", request) for daemon in trained]
    texts = [[choice["text"] for choice in answer["choices"]] for answer in answers]
    assert texts[0] == texts[1]


def test_drafts_are_of_the_source_mtp(trained):
    report = complete(trained[0], body(CODE, N, draft_n=2, draft_sources=["mtp"])).result["report"]
    assert set(report["by_source"]) == {"mtp"}
    assert report["acceptance_rate"] > 0.3


def test_a_head_that_is_off_drafts_nothing(trained):
    report = complete(trained[1], body(CODE, N, draft_n=2, draft_sources=["mtp"])).result["report"]
    assert report["drafted"] == 0


def test_a_text_that_continues_another_drafts_as_well(trained):
    """Its prefix is in the cache, and so are the head's rows."""
    head = {"draft_n": 2, "draft_sources": ["mtp"]}
    first = complete(trained[0], body(CODE, N, **head))
    longer = CODE + first.text + "\n    return"
    cached = complete(trained[0], body(longer, N, **head))
    anew = complete(trained[0], body(longer, N, cache_prompt=False, **head))
    assert cached.result["report"]["accepted"] >= 0.8 * anew.result["report"]["accepted"]


def test_texts_at_once(trained):
    """More texts than there are sequences draft, and each is the target's own."""
    prompts = [f"def function_{index}(" for index in range(8)]
    plain = [complete(trained[1], body(prompt, N)).ids for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as clients:
        asked = [clients.submit(complete, trained[0], body(p, N, draft_n=2)) for p in prompts]
    assert [stream.result().ids for stream in asked] == plain


@pytest.mark.parametrize("model", TINY)
def test_other_architectures(mesh, make_nextn, model):
    path = make_nextn(f"tiny-{model['arch']}", seed=3, **model)
    verifier = mesh.verifier(path, *SMALL, engine="llama")
    alone = complete(verifier, body("hello", N, draft_n=0, ignore_eos=True))
    head = {"draft_n": 3, "draft_sources": ["mtp"]}
    drafted = complete(verifier, body("hello", N, ignore_eos=True, **head))
    assert drafted.ids == alone.ids
    assert drafted.result["report"]["accepted"] > 0


def test_a_draft_model_takes_the_heads_place(mesh, make_nextn):
    target = make_nextn("bundled")
    verifier = mesh.verifier(target, *SMALL, "--draft-model", "bundled", engine="llama")
    asked = body(CODE, N, draft_n=2, draft_sources=["local", "mtp"])
    assert set(complete(verifier, asked).result["report"]["by_source"]) == {"local"}
