"""A drafter on MLX beside a verifier on llama.cpp, what test_models.py does not show of it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from processes import Mesh, generate, until

pytest.importorskip("mlx.core")
pytest.importorskip("mlx_lm")
pytestmark = pytest.mark.models

PROMPT = "def fibonacci(n):\n    "
SMALL = ("--ctx", 256, "--max-sessions", 4)


def test_auto_takes_mlx_for_a_directory(make_gguf: Callable[..., Path], make_hf: Callable[..., Path], mesh: Mesh):
    """Without --engine a Hugging Face directory runs on MLX, and the log says which; a stop is clean."""
    target = make_gguf("unseen-mlx", seed=21)
    verifier = mesh.verifier(target, *SMALL, engine="llama")
    drafter = mesh.drafter(make_hf("unseen-mlx", gguf=target), *SMALL, engine="auto")
    (chosen,) = drafter.events("engine_chosen")
    assert chosen["engine"] == "mlx"
    options = ("--max-tokens", 200, "--json", "--draft-n", 2)  # a first step of MLX takes as long as many of the target
    until(lambda: generate(verifier, PROMPT, *options).json["accepted"] > 0, "drafts stand")
    assert drafter.stop() == 0


@pytest.mark.parametrize("model", ["no/such/folder", "nobody-here/no-such-model", ""])
def test_unusable_model(mesh: Mesh, model: str):
    """No directory and no model of the hub: exit 78, one line, no traceback."""
    done = mesh.cannot_start("drafter", "--engine", "mlx", "--model", model, env={"HF_HUB_OFFLINE": "1"})
    done.refused(78, model)
