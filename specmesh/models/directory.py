"""A Hugging Face model directory: which files make one, and what its configuration says."""

import json
from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod
from pathlib import Path

from specmesh.errors import ConfigError

CONFIG = "config.json"
WEIGHTS = "model*.safetensors"
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
_FILES = (
    CONFIG,
    "generation_config.json",
    WEIGHTS,
    "model.safetensors.index.json",
    "tokenizer*.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.*",
)
_MAX_HEADER = 100_000_000
_MAX_CONFIG = 10_000_000

# By `model_type`. A type that is not told here is not guessed at.
_ATTENTION = frozenset(
    """
    cohere deepseek deepseek_v2 deepseek_v3 ernie4_5 falcon gemma glm glm4 gpt2 gpt_bigcode gpt_neox granite
    granitemoe internlm2 llama minicpm mixtral olmo olmo2 opt phi qwen2 qwen2_moe qwen3 qwen3_moe smollm3
    stablelm starcoder2
    """.split()  # noqa: SIM905 - one a line would fill a page
)
_RECURRENT = frozenset(
    """
    bamba falcon_h1 falcon_mamba granitemoehybrid jamba kimi_linear lfm2 lfm2_moe mamba mamba2 nemotron_h plamo2
    qwen3_5 qwen3_5_moe qwen3_next recurrent_gemma rwkv rwkv7 zamba2
    """.split()  # noqa: SIM905 - one a line would fill a page
)


@dataclass(frozen=True, slots=True)
class HfDirectory:
    """config: the language model's; weights: elements by safetensors' type; size_bytes: of the weights' files."""

    config: dict[str, object]
    weights: dict[str, int]
    size_bytes: int

    @property
    def architecture(self) -> str | None:
        value = self.config.get("model_type")
        return value if isinstance(value, str) else None

    @property
    def context(self) -> int | None:
        return _int(self.config.get("max_position_embeddings"))

    @property
    def vocabulary_size(self) -> int | None:
        return _int(self.config.get("vocab_size"))

    @property
    def parameters(self) -> int | None:
        """Weights in all files; unknown for a quantised model, whose elements are packed."""
        return None if _quantised(self.config) else sum(self.weights.values())

    @property
    def quantisation(self) -> str | None:
        """The method and its bits, else the type most of the weights have."""
        stated = _quantised(self.config)
        return stated or max(self.weights, key=lambda name: self.weights[name], default=None)

    @property
    def can_trim(self) -> bool | None:
        """Whether part of its context can be removed, as far as its architecture tells; None: unknown."""
        if self.architecture in _RECURRENT:
            return False
        windowed = self.config.get("sliding_window") is not None and self.config.get("use_sliding_window", True)
        return True if self.architecture in _ATTENTION and not windowed else None


def is_model(names: list[str]) -> bool:
    weights = any(fnmatchcase(name, WEIGHTS) for name in names)
    return weights and CONFIG in names and any(name in names for name in TOKENIZERS)


def needed(names: list[str]) -> list[str]:
    return [name for name in names if any(fnmatchcase(name, pattern) and "/" not in name for pattern in _FILES)]


def read_directory(path: Path) -> HfDirectory:
    """Read configuration and headers; raises ConfigError where it is no complete model directory."""
    weights: Counter[str] = Counter()
    size = 0
    try:
        names = sorted(entry.name for entry in path.iterdir())
        config = _language(_object((path / CONFIG).read_bytes()[:_MAX_CONFIG]))
        for name in names:
            if fnmatchcase(name, WEIGHTS):
                weights.update(_elements(path / name))
                size += (path / name).stat().st_size
    except OSError as error:
        raise ConfigError(f"{error.filename or path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is no complete model directory ({error}): download it again") from error
    if not weights:
        raise ConfigError(f"{path} is no model directory: it has no {WEIGHTS}")
    return HfDirectory(config, dict(weights), size)


def _elements(path: Path) -> Counter[str]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(_MAX_HEADER, path.stat().st_size):
            raise ValueError(f"{path.name} is damaged")
        header = _object(file.read(length))
    counts: Counter[str] = Counter()
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        if not isinstance(tensor, dict) or not isinstance(tensor.get("shape"), list):
            raise ValueError(f"{path.name} is damaged")  # noqa: TRY004 - the file's fault, not the caller's
        counts[str(tensor.get("dtype"))] += prod(int(length) for length in tensor["shape"])
    return counts


def _object(raw: bytes) -> dict[str, object]:
    value = json.loads(raw)
    if not isinstance(value, dict):
        raise ValueError("JSON that is no object")  # noqa: TRY004 - the file's fault, not the caller's
    return value


def _language(config: dict[str, object]) -> dict[str, object]:
    """The language model's part of a configuration that has others beside it."""
    inner = config.get("text_config")
    return config | inner if isinstance(inner, dict) else config


def _quantised(config: dict[str, object]) -> str | None:
    """MLX writes `quantization`, transformers `quantization_config`."""
    for key, default in (("quantization", "mlx"), ("quantization_config", "quantised")):
        stated = config.get(key)
        if isinstance(stated, dict):
            method, bits = stated.get("quant_method", default), _int(stated.get("bits"))
            return str(method) if bits is None else f"{method} {bits} bit"
    return None


def _int(value: object) -> int | None:
    return value if isinstance(value, int) else None
