"""llama.cpp as verifier and as drafter."""

from specmesh.engines.llama.engine import LlamaDrafter, LlamaVerifier
from specmesh.engines.llama.model import LlamaSettings

__all__ = ["LlamaDrafter", "LlamaSettings", "LlamaVerifier"]
