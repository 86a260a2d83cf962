"""The vocabulary of a vLLM server's model: the bytes of its Hugging Face tokenizer's ids."""

from typing import Any

from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import ConfigError


def vocabulary_of(vllm_config: Any) -> Vocabulary:
    """Return the vocabulary of the model that vLLM has loaded. Raises ConfigError."""
    raise ConfigError(f"no vocabulary can be made of {vllm_config.model_config.tokenizer} yet")
