"""`specmesh verifier --engine mlx`: the same promises where MLX runs the target."""

import json
from importlib.resources import files
from pathlib import Path

import pytest
from processes import body, by_drafters, command, complete, drafted, until
from served import Served

pytestmark = pytest.mark.models

BUNDLED = Path(str(files("specmesh") / "models"))
SMALL = ("--ctx", 512, "--max-sessions", 3)
N = 48
CODE = "class Stack:\n    def __init__(self"
SAMPLED = {"temperature": 0.8, "seed": 7, "top_k": 40}
DRAFTERS = {"llama": BUNDLED / "drafter.gguf", "mlx": BUNDLED / "drafter-hf", "ngram": ""}
MOOD = {
    "type": "object",
    "properties": {"mood": {"enum": ["good", "bad"]}},
    "required": ["mood"],
}
TOOL = {"type": "function", "function": {"name": "feel", "parameters": MOOD}}
TEMPLATE = "{% for message in messages %}# {{ message.role }}: {{ message.content }}\n{% endfor %}"


@pytest.fixture(scope="module")
def target(make_hf):
    return make_hf("bundled-target", gguf=BUNDLED / "target.gguf")


@pytest.fixture(scope="module")
def verifier(shared, target):
    template = shared.folder / "chat.jinja"
    template.write_text(TEMPLATE, encoding="utf-8")
    options = (*SMALL, "--reproducible", "--chat-template", template)
    return shared.verifier(target, *options, engine="mlx")


@pytest.fixture(scope="module", params=[{}, SAMPLED], ids=["greedy", "sampled"])
def sampling(request):
    return request.param


@pytest.fixture(scope="module")
def alone(verifier, sampling):
    """The ids of a text without drafts."""
    return complete(verifier, body(CODE, N, draft_n=0, **sampling)).ids


@pytest.mark.parametrize("engine", DRAFTERS)
def test_drafts_change_no_id(verifier, beside, alone, sampling, engine):
    beside.drafter(DRAFTERS[engine], *SMALL, engine=engine)
    if engine == "ngram":
        found = complete(verifier, body(CODE, N, draft_n=3, **sampling))
    else:
        found = drafted(verifier, body(CODE, N, draft_n=3, **sampling))
    assert found.ids == alone


def test_a_vocabulary_from_two_formats_is_the_same(verifier, beside):
    drafter = beside.drafter(DRAFTERS["llama"], *SMALL, engine="llama")
    assert drafter.verifier()["vocabulary"] == {"verdict": "same", "overlap": 1.0}
    assert verifier.client.stats()["model"]["model_hash"]


def test_an_audit_finds_no_difference(verifier, beside):
    beside.drafter(DRAFTERS["llama"], *SMALL, engine="llama")
    options = {"num_prompts": 1, "max_tokens": 24, "draft_n": "auto,3"}

    def compared():
        done = command("audit", socket=verifier.socket, json=True, **options)
        found = done.json
        assert (done.code, done.err) == (0, "")
        assert (found["noise"], found["divergences"], found["failed"]) == (0.0, [], False)
        return found["ways"][1]["accepted"] > 0

    until(compared, "drafts stand")


def test_bench_run(verifier, beside):
    beside.drafter(DRAFTERS["llama"], *SMALL, engine="llama")
    options = {"iterations": 1, "num_prompts": 1, "max_tokens": 8}
    done = command("bench", "run", socket=verifier.socket, json=True, **options)
    assert done.code == 0
    assert [variant["identical"] for variant in done.json["variants"]] == [1] * 4


def test_a_text_is_resumed(verifier):
    whole = complete(verifier, body(CODE, N))
    model = verifier.client.stats()["model"]
    resume = {
        "id": "cmpl-" + 32 * "1",
        "model": model["name"],
        "model_hash": model["model_hash"],
        "prompt_token_ids": whole.result["prompt_token_ids"],
        "token_ids": whole.ids[:20],
    }
    asked = {"resume": resume, "max_tokens": N, "temperature": 0, "draft_n": 3}
    assert whole.ids[:20] + complete(verifier, asked).ids == whole.ids


def test_a_next_prompt_reuses_the_last_one(verifier):
    """Of a reproducible target's it reuses whole parts of 128 ids."""
    first = complete(verifier, body(CODE * 15, 16, cache_prompt=True))
    following = CODE * 15 + first.text + "\n    def"
    again = complete(verifier, body(following, 16, cache_prompt=True))
    anew = complete(verifier, body(following, 16))
    assert again.result["report"]["cached_tokens"] == 128
    assert again.ids == anew.ids


def test_a_grammar_with_drafts(verifier):
    form = {"type": "json_schema", "json_schema": {"name": "mood", "schema": MOOD}}
    answers = []
    for draft_n in (0, 3):
        answer = Served(verifier).chat(max_tokens=80, response_format=form, draft_n=draft_n)
        answers.append(answer.choices[0]["message"]["content"])
    assert answers[0] == answers[1]
    assert json.loads(answers[0])["mood"] in ("good", "bad")


def test_a_call_of_a_tool(verifier):
    answer = Served(verifier).chat(
        max_tokens=200, tools=[TOOL], tool_choice="required", parallel_tool_calls=False
    )
    [call] = answer.choices[0]["message"]["tool_calls"]
    assert call["function"]["name"] == "feel"
    assert json.loads(call["function"]["arguments"])["mood"] in ("good", "bad")


def test_log_probabilities_are_those_without_drafts(verifier, beside):
    beside.drafter(DRAFTERS["llama"], *SMALL, engine="llama")
    asked = body(CODE, 12, logprobs=2)
    found = []
    for draft_n in (0, 3):
        chunks = list(verifier.client.complete(asked | {"draft_n": draft_n}))
        places = []
        for chunk in chunks:
            places += chunk["specmesh"].get("logprobs", [])
        found.append(places)
    assert found[0] == found[1]


def test_a_draft_model_beside_the_target(mesh, target):
    options = (*SMALL, "--draft-model", "bundled")
    verifier = mesh.verifier(target, *options, engine="mlx")
    report = complete(verifier, body(CODE, N, draft_n=3)).result["report"]
    counts = report["by_source"]["local"]
    assert counts["accepted"] > 0.3 * counts["drafted"]


# --- models that cannot remove rows

CLOSE = 1e-3
"""By how much logits of one row and of several may differ, in single precision."""


def scored(daemon, prompt, **options):
    """Return each token with its log-probability and the two likeliest, and the report."""
    found = []
    for chunk in daemon.client.complete(body(prompt, N, logprobs=2, **options)):
        found += chunk["specmesh"].get("logprobs", [])
    return found, chunk["specmesh"]["report"]


def agree(found, truth):
    """Check that two texts are the same, up to a near tie of two ids."""
    for place, other in zip(found, truth, strict=True):
        if place["id"] != other["id"]:
            first, second = (top["logprob"] for top in other["top_logprobs"])
            assert first - second < 2 * CLOSE
            break
        assert place["logprob"] == pytest.approx(other["logprob"], abs=CLOSE)


@pytest.mark.parametrize("kind", ["sliding", "hybrid"])
def test_windows_and_states(make_hf, mesh, kind):
    """A twin drafts, and its drafts stand: rows are taken back from windows and states."""
    folder = make_hf(f"verifier-{kind}", kind)
    verifier = mesh.verifier(folder, *SMALL, engine="mlx")
    assert verifier.event("ready")["trimming"] == "restore"
    truth, _ = scored(verifier, CODE, draft_n=0)
    mesh.drafter(folder, *SMALL, engine="mlx")
    drafts = 0

    def enough():
        nonlocal drafts
        found, report = scored(verifier, CODE, draft_n=4)
        agree(found, truth)
        drafts += report["drafted"]
        return drafts > 0

    until(enough, "drafts are verified")
    agree(scored(verifier, CODE, cache_prompt=True)[0], truth)
    agree(scored(verifier, CODE, cache_prompt=True)[0], truth)


def test_a_twin_by_mlx_is_accepted(make_hf, mesh):
    folder = make_hf("verifier-twin")
    verifier = mesh.verifier(folder, *SMALL, "--reproducible", engine="mlx")
    mesh.drafter(folder, *SMALL, engine="mlx")
    alone = complete(verifier, body(CODE, N, draft_n=0)).ids
    found = drafted(verifier, body(CODE, N, draft_n=3))
    tried, right = by_drafters(found.result["report"])
    assert found.ids == alone
    assert right > 0.8 * tried


@pytest.mark.parametrize(
    ("model", "says"),
    [("target.gguf", "is a file"), ("no/such/folder", "no/such"), ("drafter-hf", "reproducible")],
)
def test_what_cannot_be_loaded(mesh, make_hf, model, says):
    """A GGUF file, no folder, and a model that cannot keep to one width."""
    pytest.importorskip("mlx_lm")
    path = BUNDLED / model if model.endswith("gguf") else model
    if says == "reproducible":
        path = make_hf("verifier-sliding", "sliding")
    options = ("--engine", "mlx", "--model", path, "--reproducible")
    mesh.cannot_start("verifier", *options, env={"HF_HUB_OFFLINE": "1"}).refused(78, says)
