"""llama.cpp as verifier and as drafter."""

from specmesh.engines.llama.engine import LlamaDrafter, LlamaVerifier

__all__ = ["LlamaDrafter", "LlamaVerifier"]
