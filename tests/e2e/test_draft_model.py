"""`specmesh verifier --draft-model`: a draft model beside the target, in one process."""

from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path

import pytest
from meshes import running
from processes import body, complete, until, writes

BUNDLED = Path(str(files("specmesh") / "models"))
SMALL = ("--ctx", 256, "--max-sessions", 4)
SIMULATED = ("--draft-model", "draft_ms=0.1,alpha=0.9")
N = 60
CODE = "def fibonacci(n):\n    "
JSON = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}

REQUESTS = {
    "greedy": {},
    "four drafts": {"draft_n": 4},
    "sampled": {"temperature": 0.8, "seed": 7},
    "sampled from the likeliest": {"temperature": 1.0, "seed": 7, "top_p": 0.9, "top_k": 20},
    "penalties": {"repeat_penalty": 1.3, "frequency_penalty": 0.4, "draft_n": 3},
    "stop": {"stop": ["return", "print"], "draft_n": 4},
    "JSON": {"json_schema": JSON, "draft_n": 4},
    "several": {"n": 3, "temperature": 0.9, "seed": 3, "draft_n": 4},
    "no drafts": {"draft_n": 0},
    "greedy strategy": {"strategy": "greedy"},
}


@pytest.fixture(scope="module")
def simulated():
    with running() as mesh:
        yield mesh.verifier("step_ms=4,row_ms=0.1", *SIMULATED)


def test_drafts_stand_without_a_drafter(simulated):
    """A gate that slow steps of this machine have shut opens again after some texts."""

    def most_stand():
        report = writes(simulated, "abc", 200).result["report"]
        return report if report["accepted"] > 100 else None

    report = until(most_stand, "most tokens are accepted drafts")
    assert set(report["by_source"]) == {"local"}


def test_nothing_is_said_to_be_missing(simulated):
    """Neither in the report of a text, nor in the state of a daemon without any."""
    report = writes(simulated, "abc", 200).result["report"]
    assert report["no_drafts"] is None
    simulated.idle()
    assert simulated.client.stats()["no_drafts"] is None


def test_texts_at_once(simulated):
    """Each of more texts than there are sequences is the target's own."""
    with ThreadPoolExecutor(12) as clients:
        asked = [clients.submit(writes, simulated, f"text {i}", 80) for i in range(12)]
    drafted = [stream.result().result["report"]["accepted"] for stream in asked]
    assert sum(drafted) > 0


def test_stats_name_the_model(simulated):
    stats = simulated.client.stats()
    assert stats["model"]["draft_model"] == "sim-drafter"


def test_a_drafter_may_come_and_go(mesh):
    verifier = mesh.verifier("step_ms=4,row_ms=0.1", *SIMULATED)
    drafter = mesh.drafter()
    writes(verifier, "abc", 100)
    drafter.kill()
    writes(verifier, "abcd", 100)


def test_drafts_that_do_not_pay_are_not_made(mesh):
    verifier = mesh.verifier("step_ms=4", "--draft-model", "draft_ms=4,alpha=0.1")
    report = writes(verifier, "abc", 300).result["report"]
    assert report["drafted"] < 150


@pytest.fixture(scope="module")
def pair():
    """The bundled target with its draft model, and without; to the last bit the same."""
    target = BUNDLED / "target.gguf"
    options = (*SMALL, "--reproducible")
    with running() as mesh, running() as other:
        with_drafts = mesh.verifier(target, *options, "--draft-model", "bundled", engine="llama")
        yield with_drafts, other.verifier(target, *options, engine="llama")


@pytest.mark.models
@pytest.mark.parametrize("request_of", [*REQUESTS])
def test_text_is_that_without_a_draft_model(pair, request_of):
    request = body(CODE, N) | REQUESTS[request_of]
    answers = [daemon.client.get("/v1/completions", request) for daemon in pair]
    texts = [[choice["text"] for choice in answer["choices"]] for answer in answers]
    assert texts[0] == texts[1]


@pytest.mark.models
def test_text_that_is_resumed_goes_on_as_it_was(pair):
    whole = complete(pair[1], body(CODE, N))
    stats = pair[0].client.stats()
    resume = {
        "id": "cmpl-" + 32 * "1",
        "model": stats["model"]["name"],
        "model_hash": stats["model"]["model_hash"],
        "prompt_token_ids": whole.result["prompt_token_ids"],
        "token_ids": whole.ids[:20],
    }
    asked = {"resume": resume, "max_tokens": N, "temperature": 0, "draft_n": 4}
    assert whole.ids[:20] + complete(pair[0], asked).ids == whole.ids


@pytest.mark.models
def test_drafts_of_a_model_of_the_same_family_stand(pair):
    asked = body(CODE, N, draft_n=4, draft_sources=["local"])
    assert complete(pair[0], asked).result["report"]["acceptance_rate"] > 0.3


def rate_with(mesh, target, draft):
    """Return the acceptance rate of a draft model's drafts; the text is the target's own."""
    verifier = mesh.verifier(target, *SMALL, "--draft-model", draft, engine="llama")
    alone = complete(verifier, body(CODE, N, draft_n=0))
    drafted = complete(verifier, body(CODE, N, draft_n=3, draft_sources=["local"]))
    assert drafted.ids == alone.ids
    return drafted.result["report"]["acceptance_rate"]


@pytest.mark.models
@pytest.mark.parametrize("arch", ["llama", "mamba", "lfm2", "gemma3"])
def test_twin_is_accepted(make_gguf, mesh, arch):
    """Targets and draft models with recurrent layers or windows too."""
    model = make_gguf(f"twin-{arch}", arch=arch, seed=1)
    assert rate_with(mesh, model, model) > 0.9


@pytest.mark.models
def test_twin_with_other_ids_is_translated(make_gguf, mesh):
    target = make_gguf("own-ids", seed=1, words=58)
    assert rate_with(mesh, target, make_gguf("other-ids", seed=1, words=58, permute=5)) > 0.9


@pytest.mark.models
def test_text_longer_than_the_context_of_the_draft_model(make_gguf, mesh):
    target = make_gguf("long", seed=1, n_ctx=512)
    draft = make_gguf("short", seed=1, n_ctx=64)
    verifier = mesh.verifier(target, "--draft-model", draft, engine="llama")
    asked = body(CODE, 300, draft_n=3, draft_sources=["local"])
    assert complete(verifier, asked).result["report"]["drafted"] > 100


# --- what is refused


@pytest.mark.models
def test_model_of_another_vocabulary_is_refused(make_gguf, mesh):
    draft = make_gguf("stranger", seed=1)
    refused = mesh.cannot_start(
        "verifier", engine="llama", model="bundled", draft_model=draft, ctx=64
    )
    assert refused.code == 78
    assert "--draft-model stranger does not fit target" in refused.err


@pytest.mark.parametrize("engine", ["llama", "sim"])
def test_file_that_is_not_there(mesh, engine):
    refused = mesh.cannot_start("verifier", engine=engine, draft_model="no/such.gguf")
    assert refused.code == 78
    assert len(refused.err.splitlines()) == 1


@pytest.mark.models
def test_file_that_is_no_model_is_refused_before_the_target_is_loaded(mesh, tmp_path):
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF and no more")
    refused = mesh.cannot_start(
        "verifier", engine="llama", model="bundled", draft_model=damaged, ctx=64
    )
    assert refused.code == 78
    assert "damaged.gguf" in refused.err.splitlines()[-1]
    assert "target" not in refused.err
