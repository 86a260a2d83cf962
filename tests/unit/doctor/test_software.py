"""What is said of Python and the engines."""

import pytest

from specmesh.doctor.machine import LlamaFacts, judge_llama
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
