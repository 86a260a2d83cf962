"""A drafter on MLX beside a verifier on llama.cpp, what test_models.py does not show of it."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import Mesh, Stream, body, complete, generate, until

pytest.importorskip("mlx.core")
pytest.importorskip("mlx_lm")
pytestmark = pytest.mark.models

PROMPT = "def fibonacci(n):\n    "
SMALL = ("--ctx", 256, "--max-sessions", 4)


def test_killed_and_started_again_mid_session(make_gguf: Callable[..., Path], make_hf: Callable[..., Path], mesh: Mesh):
    """kill -9 of an MLX drafter mid-generation, then a new one: the same ids, and the new one drafts in that session.

    The verifier is frozen while the new one loads, which takes longer than the text.
    """
    target = make_gguf("unseen-mlx", seed=21)
    folder = make_hf("unseen-mlx", gguf=target)
    verifier = mesh.verifier(target, "--ctx", 4096, "--max-sessions", 2, "--reproducible", engine="llama")
    first = mesh.drafter(folder, "--ctx", 4096, engine="mlx", name="first")
    count = 3000
    alone = complete(verifier, body(PROMPT, count, draft_n=0)).ids
    with Stream(verifier, body(PROMPT, count, draft_n=2)) as stream:
        stream.read(while_=lambda: sum(stream.accepted) < 10)
        first.kill()
        verifier.signal(signal.SIGSTOP)
        second = mesh.drafter(folder, "--ctx", 4096, engine="mlx", name="second", ready=False)
        until(lambda: second.events("ready"), "the second drafter has loaded")
        verifier.signal(signal.SIGCONT)
        mesh.attached(second)
        stream.read()
    until(lambda: second.events("session_finished"), "the second drafter hears the end")
    assert stream.ids == alone
    assert second.events("session_finished")[0]["drafted"] > 0


@pytest.mark.parametrize("kind", ["hybrid", "sliding"])
def test_models_that_cannot_be_cut(make_gguf: Callable[..., Path], make_hf: Callable[..., Path], mesh: Mesh, kind: str):
    """A hybrid and a sliding-window drafter, past the window and wrong all the time: the verifier's own text."""
    verifier = mesh.verifier(make_gguf("target", seed=1, layers=2), *SMALL, engine="llama")
    drafter = mesh.drafter(make_hf(f"e2e-{kind}", kind), *SMALL, engine="mlx")
    alone = complete(verifier, body(PROMPT, 80, draft_n=0)).ids
    assert complete(verifier, body(PROMPT, 80, draft_n=3)).ids == alone
    assert drafter.stats()["model"]["trimming"] == "restore"


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
