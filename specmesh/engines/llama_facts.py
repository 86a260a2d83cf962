"""What only llama.cpp can say of a GGUF model: its vocabulary as bytes, and whether its memory can be cut."""

from pathlib import Path

from specmesh.core.vocabulary import Vocabulary
from specmesh.engines.llama_context import LlamaContext
from specmesh.engines.llama_model import LlamaModel, LlamaSettings

_SMALLEST = 16
_ROWS = 4
"""Rows of one step that a target would have to take back; enough to find out how."""


def read_vocabulary(path: Path) -> Vocabulary:
    """A file's vocabulary, read without its weights; raises ConfigError where it cannot be."""
    model = LlamaModel(LlamaSettings(path, vocab_only=True, gpu_layers=0))
    try:
        return model.vocabulary
    finally:
        model.close()


def probe_trim(path: Path) -> bool:
    """Load a model, weights and all, and try to take rows back; raises ConfigError where it cannot load."""
    settings = LlamaSettings(path, n_ctx=_SMALLEST, n_batch=_SMALLEST, gpu_layers=0)
    model = LlamaModel(settings)
    try:
        context = LlamaContext(model, settings, 1, _ROWS)
    except BaseException:
        model.close()
        raise
    context.close()
    return context.info.can_trim
