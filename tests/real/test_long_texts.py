"""SmolLM2 with a drafter that reads windows of its texts: drafted at every length, the same ids."""

from pathlib import Path

import pytest
import real_models
from acceptance import acceptance, drafted_texts
from processes import body, complete

pytestmark = [pytest.mark.real, pytest.mark.models]

N = 48
SLOW = [pytest.param(length, marks=pytest.mark.slow) for length in (3000, 6000, 7500)]
SLOW_GEMMA = [pytest.param(length, marks=pytest.mark.slow) for length in (400, 3000, 16000)]
"""The target reads these for minutes: `pytest -m 'real and slow' tests/real`."""

WINDOW = 128
LENGTH = 400
"""Ids of a text that is longer than two windows."""

DOCUMENTS = ("ARCHITECTURE.md", "docs/usage.md", "docs/operations.md", "README.md")


@pytest.fixture(scope="module")
def verifier(shared):
    target = real_models.path("smollm2-f16.gguf")
    options = ("--ctx", 8192, "--max-sessions", 1, "--reproducible")
    return shared.verifier(target, *options, engine="llama")


@pytest.fixture(scope="module")
def text(verifier):
    return text_of(verifier)


def text_of(verifier):
    """Return the ids of the documents, the model's BOS in front."""
    root = Path(__file__).parents[2]
    content = "".join([(root / name).read_text(encoding="utf-8") for name in DOCUMENTS])
    asked = {"content": content, "add_special": True}
    return verifier.client.get("/tokenize", asked)["tokens"]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("length", [LENGTH, *SLOW])
def test_drafts_at_every_length_change_no_id(verifier, beside, text, length):
    drafter = beside.drafter(real_models.path("smollm2-q4_0.gguf"), engine="llama")
    # Steps of one width compute a cached beginning as any other.
    asked = body(text[:length], N, draft_n=4, draft_sources=["remote"], cache_prompt=True)
    [drafted, *_] = streams = drafted_texts(verifier, [asked], least=N // 4)
    assert drafted.ids == complete(verifier, asked | {"draft_n": 0}).ids
    assert acceptance(streams) > 0.5
    assert drafter.stats()["totals"]["read"] < 4096 + 1000


@pytest.mark.timeout(1800)
def test_no_round_waits_while_windows_take_over(verifier, beside, text):
    draft = real_models.path("smollm2-q4_0.gguf")
    drafter = beside.drafter(draft, "--window", WINDOW, engine="llama")
    asked = body(text[:LENGTH], WINDOW + N, draft_n=4, draft_sources=["remote"], cache_prompt=True)
    complete(verifier, asked)
    window = drafter.stats()["window"]
    assert window["takeovers"] > 0
    assert window["held_up"] == 0


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("length", SLOW_GEMMA)
def test_a_sliding_window_model_at_both_ends(mesh, length):
    """Gemma, whose layers but some see 512 ids."""
    model = real_models.path("gemma3-270m-q4_k_m.gguf")
    options = ("--ctx", 16384 + 1024, "--max-sessions", 1, "--reproducible")
    verifier = mesh.verifier(model, *options, engine="llama")
    mesh.drafter(model, engine="llama")
    ids = text_of(verifier)[:length]
    asked = body(ids, N, draft_n=4, draft_sources=["remote"], cache_prompt=True)
    [drafted, *_] = streams = drafted_texts(verifier, [asked], least=N // 4)
    assert acceptance(streams) > 0.5
    assert drafted.ids == complete(verifier, asked | {"draft_n": 0}).ids
