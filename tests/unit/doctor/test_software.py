"""What is said of Python and the engines."""

import pytest

from specmesh.doctor.machine import LlamaFacts, MlxFacts, judge_llama, judge_mlx
from specmesh.engines.llama.library import PINNED


@pytest.mark.parametrize(
    ("facts", "status", "found", "fix"),
    [
        (LlamaFacts(None, needed=True), "warn", "not installed", "pip install"),
        (LlamaFacts(None, needed=False), "ok", "not installed", None),
        (LlamaFacts("0.3.1", needed=True), "fail", f"0.3.1, specmesh needs {PINNED}", f"=={PINNED}"),
        (LlamaFacts(PINNED, True, error="does not load"), "fail", "does not load", "--force-reinstall"),
        (
            LlamaFacts(PINNED, True, None, ("CUDA", "CPU"), ("CUDA0: H",)),
            "ok",
            "CUDA, CPU; sees CUDA0: H",
            None,
        ),
        (LlamaFacts(PINNED, True, None, ("CUDA", "CPU")), "warn", "sees no GPU", "nvidia-smi"),
        (LlamaFacts(PINNED, True, None, ("Vulkan", "CPU")), "warn", "sees no GPU", "vulkaninfo"),
        (LlamaFacts(PINNED, True, None, ("CPU",), (), True), "warn", "is not used", "GGML_CUDA=on"),
        (LlamaFacts(PINNED, True, None, ("BLAS", "CPU")), "ok", "no GPU", None),
    ],
)
def test_llama(facts: LlamaFacts, status: str, found: str, fix: str | None):
    """Each state of llama.cpp."""
    check = judge_llama(facts)
    assert check.status == status
    assert found in check.found
    assert (fix is None and check.fix is None) or (fix is not None and fix in str(check.fix))


@pytest.mark.parametrize(
    ("facts", "status", "found"),
    [
        (MlxFacts(None, apple=False), "ok", "not installed"),
        (MlxFacts(None, apple=True), "warn", "not installed"),
        (MlxFacts("0.32", apple=True, device="Apple M9"), "ok", "MLX 0.32, Apple M9"),
        (MlxFacts("0.32", apple=True, device="CPU"), "warn", "GPU is not used"),
        (MlxFacts("0.32", apple=False, device="CPU"), "ok", "MLX 0.32, CPU"),
        (MlxFacts("0.32", apple=True, error="cannot be used"), "fail", "cannot be used"),
    ],
)
def test_mlx(facts: MlxFacts, status: str, found: str):
    """Each state of MLX."""
    check = judge_mlx(facts)
    assert check.status == status
    assert found in check.found
