"""A Hugging Face model in MLX: its weights and its vocabulary."""

import gc
import json
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from specmesh.config import ModelSettings
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines.hf_vocabulary import token_bytes
from specmesh.errors import ConfigError


class MlxModel:
    """A directory with config.json, safetensors and tokenizer.json, quantised by mlx-lm or not; or a hub id
    ("org/name") in the hub's cache. `module` is its loading thread's own."""

    def __init__(self, settings: ModelSettings) -> None:
        """Load it on this thread, which must make all further calls. Raises ConfigError."""
        where = Path(settings.model or "").expanduser()
        if where.is_file():
            raise ConfigError(f"{where} is a file: MLX loads a Hugging Face directory (a .gguf file: --engine llama)")
        mx, mlx_lm = _library("mlx.core"), _library("mlx_lm")
        device = _device(mx, gpu=bool(settings.gpu_layers))
        self.backend, self.name = f"MLX {version('mlx')}, {device}", where.resolve().name
        advice = "is it complete, and of an architecture that this mlx-lm knows?"
        try:
            if not where.is_dir():
                self.name = str(where)
                advice = f"no such directory here, and not in the hub's cache: get it by `hf download {where}`"
                where = Path(_library("huggingface_hub").snapshot_download(self.name, local_files_only=True))
            self.module, self._tokenizer, self._config = mlx_lm.load(str(where), lazy=True, return_config=True)
            _evaluate(mx, self.module)
        except Exception as error:  # mlx-lm, its model classes and the hub have no common error
            said = f"{type(error).__name__}: {error}".strip().splitlines()[0][:300]
            raise ConfigError(f"{settings.model} could not be loaded by mlx-lm ({said}): {advice}") from error

    @property
    def trained_ctx(self) -> int:
        """Trained context length; 0 where the config does not say."""
        known = {**self._config, **(self._config.get("text_config") or {})}
        lengths = (known.get(key) for key in ("max_position_embeddings", "n_positions", "max_seq_len"))
        return next((length for length in lengths if isinstance(length, int)), 0)

    def vocabulary(self, n_vocab: int) -> Vocabulary:
        """Return the vocabulary, `n_vocab` ids long. Raises ConfigError where the tokenizer does not tell it."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ConfigError(f"{self.name} has no tokenizer.json: choose a copy of the model that has one")
        ends = frozenset(token for token in self._tokenizer.eos_token_ids if 0 <= token < n_vocab)
        try:
            known = token_bytes(json.loads(backend.to_str()), n_vocab, ends)
        except ConfigError as error:
            raise ConfigError(f"{self.name} cannot draft: {error}") from error
        return Vocabulary(known, ends)


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"MLX cannot be used here ({error}): pip install 'specmesh[mlx]'") from error


def free() -> None:
    """Free the memory that MLX keeps; the model must be unreachable by now."""
    mx = sys.modules.get("mlx.core")
    if mx is not None:
        gc.collect()  # modules refer to each other
        mx.clear_cache()


def _device(mx: Any, *, gpu: bool = True) -> str:
    """Choose where this thread's arrays live, a GPU only where MLX has one; returns its name."""
    if not gpu:
        mx.set_default_device(mx.cpu)
    if mx.default_device().type != mx.gpu:
        return "CPU"
    return str(mx.device_info().get("device_name", "GPU"))


def _evaluate(mx: Any, module: Any) -> None:
    """Read the weights, which MLX has only mapped so far."""
    # Logits in half precision are rounded so coarsely that the best two of a thousand positions are equal at one or
    # two. Single precision costs nothing on a CPU, whose half precision is slower.
    if mx.default_device().type != mx.gpu:
        module.set_dtype(mx.float32)
    mx.eval(module.parameters())
