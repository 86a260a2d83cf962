"""SmolLM2 in 16 bits by llama.cpp with a drafter by MLX, of the same weights.

On a CPU MLX takes some 180 ms for a token, which the target takes 20 ms for: the target's steps are stretched.
"""

from collections.abc import Iterator

import pytest
import real_models
from acceptance import acceptance
from meshes import running
from processes import Daemon, Mesh, body, complete, drafted, edited

pytestmark = [pytest.mark.real, pytest.mark.models]

STEP_MS = 500
STRETCHED = edited(
    "from specmesh.machines import STEPS_MS", f"STEPS_MS['spark-7b'] = {{1: {STEP_MS}.0}}"
)
OPTIONS = ("--ctx", 256, "--max-sessions", 1)
N = 40
DRAFT_N = 3
PROMPT = "def fibonacci(n):\n    "


@pytest.fixture(scope="module")
def alone() -> Iterator[list[int]]:
    """The ids that a verifier without a drafter, whose steps are not stretched, says."""
    with running() as mesh:
        target = real_models.path("smollm2-f16.gguf")
        verifier = mesh.verifier(target, *OPTIONS, "--reproducible", engine="llama")
        yield complete(verifier, body(PROMPT, N)).ids


@pytest.fixture(scope="module")
def verifier(shared: Mesh) -> Daemon:
    """A verifier with stretched steps and a drafter on MLX."""
    target = real_models.path("smollm2-f16.gguf")
    stretch = ("--reproducible", "--stretch", "spark-7b")
    made = shared.verifier(target, *OPTIONS, *stretch, engine="llama", program=STRETCHED)
    shared.drafter(real_models.path("smollm2-mlx"), *OPTIONS, engine="mlx")
    return made


def test_drafts_change_no_id(verifier: Daemon, alone: list[int]):
    assert drafted(verifier, body(PROMPT, N, draft_n=DRAFT_N)).ids == alone


def test_most_drafts_are_accepted(verifier: Daemon):
    assert acceptance(verifier, [body(PROMPT, N, draft_n=DRAFT_N)], least=10) > 0.5
