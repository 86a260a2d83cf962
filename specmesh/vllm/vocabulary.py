"""The vocabulary of a vLLM server's model: the bytes of its Hugging Face tokenizer's ids."""

from importlib import import_module
from typing import Any, cast

from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines.hf_vocabulary import bytes_of_ids
from specmesh.errors import ConfigError

_PLACES = ("vllm.tokenizers", "vllm.transformers_utils.tokenizer")
"""Modules of vLLM that have had `cached_tokenizer_from_config`, the newest first."""


def vocabulary_of(vllm_config: Any) -> Vocabulary:
    """Return the vocabulary of the model that vLLM has loaded. Raises ConfigError."""
    config = vllm_config.model_config
    tokenizer = _tokenizer_of(config)
    n_vocab = int(config.get_vocab_size())
    ends = end_ids(config, tokenizer) & frozenset(range(n_vocab))
    try:
        return Vocabulary(bytes_of_ids(tokenizer, n_vocab, ends), ends)
    except ConfigError as error:
        raise ConfigError(
            f"drafters cannot read the vocabulary of {config.model}: {error}"
        ) from error


def end_ids(model_config: Any, tokenizer: Any) -> frozenset[int]:
    """Return the ids that end a text: of the tokenizer, and of generation_config.json."""
    generation: dict[str, Any] = model_config.try_get_generation_config() or {}
    ends = set[int]()
    for named in (getattr(tokenizer, "eos_token_id", None), generation.get("eos_token_id")):
        if isinstance(named, int):
            ends.add(named)
        elif isinstance(named, list):
            ends.update(cast("list[int]", named))
    return frozenset(ends)


def _tokenizer_of(model_config: Any) -> Any:
    """Return the tokenizer that vLLM itself uses; it has read it already. Raises ConfigError."""
    if getattr(model_config, "skip_tokenizer_init", False):
        reason = "vLLM has no tokenizer, so drafters cannot compare vocabularies"
        raise ConfigError(reason, "start it without --skip-tokenizer-init")
    for place in _PLACES:
        try:
            found: Any = import_module(place).cached_tokenizer_from_config
        except (ImportError, AttributeError):
            continue
        return found(model_config)
    raise ConfigError("this vLLM has no cached_tokenizer_from_config: its version is not known")
