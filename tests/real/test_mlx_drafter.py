"""SmolLM2 in 16 bits by llama.cpp with a drafter by MLX, of the same weights.

On a CPU MLX takes some 180 ms for a token, and the target takes 20 ms: no draft would ever be in
time. So the target's steps are stretched, far enough for a busy machine too.
"""

from pathlib import Path

import pytest
import real_models
from acceptance import acceptance, drafted_texts
from meshes import running
from processes import body, complete, edited

pytestmark = [pytest.mark.real, pytest.mark.models]

ROOT = Path(__file__).parents[2]
STEP_MS = 1500
STRETCHED = edited(
    "from specmesh.machines import STEPS_MS", f"STEPS_MS['spark-7b'] = {{1: {STEP_MS}.0}}"
)
OPTIONS = ("--ctx", 256, "--max-sessions", 1)
N = 16
DRAFT_N = 3
PROMPT = "def fibonacci(n):\n    "


@pytest.fixture(scope="module")
def alone():
    """The ids of a verifier without a drafter, whose steps are not stretched."""
    with running() as mesh:
        target = real_models.path("smollm2-f16.gguf")
        verifier = mesh.verifier(target, *OPTIONS, "--reproducible", engine="llama")
        return complete(verifier, body(PROMPT, N)).ids


@pytest.fixture(scope="module")
def verifier(shared):
    """A verifier with stretched steps and a drafter on MLX."""
    target = real_models.path("smollm2-f16.gguf")
    stretch = ("--reproducible", "--stretch", "spark-7b")
    made = shared.verifier(target, *OPTIONS, *stretch, engine="llama", program=STRETCHED)
    shared.drafter(real_models.path("smollm2-mlx"), *OPTIONS, engine="mlx")
    return made


@pytest.fixture(scope="module")
def texts(verifier):
    """Return the text with drafts, of several tries if they came too late at first."""
    return drafted_texts(verifier, [body(PROMPT, N, draft_n=DRAFT_N)], least=6)


def test_drafts_change_no_id(texts, alone):
    for text in texts:
        assert text.ids == alone


def test_most_drafts_are_accepted(texts):
    assert acceptance(texts) > 0.5


@pytest.mark.slow  # both ends read for minutes
@pytest.mark.timeout(1800)
def test_a_prompt_longer_than_the_context(mesh):
    target = real_models.path("smollm2-f16.gguf")
    options = ("--ctx", 8192, "--max-sessions", 1, "--reproducible", "--stretch", "spark-7b")
    verifier = mesh.verifier(target, *options, engine="llama", program=STRETCHED)
    mesh.drafter(real_models.path("smollm2-mlx"), engine="mlx")
    prompt = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    ids = verifier.client.get("/tokenize", {"content": prompt})["tokens"][:6000]
    asked = body(ids, N, draft_n=DRAFT_N, cache_prompt=True)
    complete(verifier, asked)  # meanwhile the drafter reads its window, for minutes
    [drafted, *_] = streams = drafted_texts(verifier, [asked], least=10)
    assert acceptance(streams) > 0.5
    assert drafted.ids == complete(verifier, asked | {"draft_n": 0}).ids
