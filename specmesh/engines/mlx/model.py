"""A Hugging Face model in MLX: its weights, and its vocabulary as bytes per id.

The vocabulary is compared with llama.cpp's.
"""

import gc
import json
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import structlog

from specmesh.config import ModelSettings
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines.base import Progress
from specmesh.engines.hf_vocabulary import token_bytes
from specmesh.engines.mlx.positions import missing_keys
from specmesh.engines.tokenizer import ModelTexts
from specmesh.errors import ConfigError, SpecmeshError, pip_install

log = structlog.get_logger("specmesh.engines.mlx")


class MlxModel:
    """A Hugging Face directory, or a hub id ("org/name") in the hub's cache.

    The directory has config.json, safetensors and tokenizer.json, quantised by mlx-lm or not.
    `module` belongs to the thread that loaded it.
    """

    def __init__(
        self, settings: ModelSettings, progress: Progress | None = None, *, group: Any = None
    ) -> None:
        """Load it on this thread, which must make all further calls. Raises ConfigError.

        progress: called with the share of the weights that is read.
        group: MLX's group of ranks, each of which has a part of all layers; None for no other rank.
        """
        path = Path(settings.model or "")
        if path.is_file():
            reason = "MLX loads a Hugging Face directory (a .gguf file: --engine llama)"
            raise ConfigError(f"{path} is a file: {reason}")
        mx = _library("mlx.core")
        mlx_lm = _library("mlx_lm")
        on_gpu = _choose_device(mx, settings)
        device = mx.device_info().get("device_name", "GPU") if on_gpu else "CPU"
        self.backend = f"MLX {version('mlx')}, {device}"
        self.name = path.resolve().name
        advice = "is it complete, and of an architecture that this mlx-lm knows?"

        def not_loaded(error: str) -> ConfigError:
            return ConfigError(f"{settings.model} could not be loaded by mlx-lm ({error})", advice)

        with mapped(not_loaded):
            if not path.is_dir():
                self.name = str(path)
                remedy = f"get it by `hf download {path}`"
                advice = f"no such directory here, and not in the hub's cache: {remedy}"
                hub = _library("huggingface_hub")
                path = Path(hub.snapshot_download(self.name, local_files_only=True))
            doubled = _doubled_weight(path)
        if doubled:
            reason = f"{self.name} has weights twice: {doubled}"
            raise ConfigError(reason, "remove the older files, or get it into an empty folder")
        with mapped(not_loaded):
            config = json.loads((path / "config.json").read_text(encoding="utf-8"))
            loaded = mlx_lm.load(
                str(path), model_config=missing_keys(config), lazy=True, return_config=True
            )
            self.module, self._tokenizer, self._config = loaded
            self._read_texts_whole()
        _refuse_fp8(mx, self.name, self.module)
        with mapped(not_loaded):
            # Logits in half precision are rounded so coarsely that the best two of a thousand
            # positions are equal at one or two. Single precision costs nothing on a CPU, whose half
            # precision is slower.
            if not on_gpu:
                self.module.set_dtype(mx.float32)
            if group is not None:
                self._split(group)
            _read_weights(mx, self.module, progress)

    def _read_texts_whole(self) -> None:
        """Have texts neither cut off nor filled up, as a file that was saved after training says.

        transformers itself takes no notice of it either.
        """
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is not None:
            backend.no_truncation()
            backend.no_padding()

    def _split(self, group: Any) -> None:
        """Keep this rank's part of each layer, in `mlx_lm.utils.sharded_load`'s way.

        That itself would load a model with missing weights, and run a folder's own code.
        """
        if not hasattr(self.module, "shard"):
            raise ValueError("mlx-lm cannot split this architecture for --distributed")
        self.module.shard(group)
        self.backend += f", {group.size()} ranks"

    @property
    def trained_ctx(self) -> int:
        """Return the trained context length; 0 if the config has none."""
        config: dict[str, Any] = self._config | (self._config.get("text_config") or {})
        for key in ("max_position_embeddings", "n_positions", "max_seq_len"):
            length = config.get(key)
            if isinstance(length, int) and length > 0:
                return length
        return 0

    @property
    def bos(self) -> int | None:
        """Return the id that the tokenizer begins texts with; None if it begins with none."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:
            return None
        ids: list[int] = backend.encode("").ids
        return ids[0] if ids else None

    def vocabulary(self, n_vocab: int) -> Vocabulary:
        """Return the vocabulary of `n_vocab` ids. Raises ConfigError if it cannot be read."""
        ends = frozenset(range(n_vocab)) & frozenset(self._tokenizer.eos_token_ids)
        try:
            known = token_bytes(self.tokenizer_json, n_vocab, ends)
        except ConfigError as error:
            raise ConfigError(f"{self.name} cannot be used: {error}") from error
        return Vocabulary(known, ends)

    @property
    def tokenizer_json(self) -> dict[str, Any]:
        """Return the contents of tokenizer.json, as the library has read them."""
        contents: dict[str, Any] = json.loads(self.backend_tokenizer.to_str())
        return contents

    @property
    def backend_tokenizer(self) -> Any:
        """Return the `tokenizers.Tokenizer`. Raises ConfigError for a model without one."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:
            reason = f"{self.name} has no tokenizer.json"
            raise ConfigError(reason, "choose a copy of the model that has one")
        return backend

    @property
    def texts(self) -> ModelTexts:
        """Return the texts that the model's files hold for a chat."""
        template = getattr(self._tokenizer, "chat_template", None)
        if isinstance(template, dict):  # several by name
            named = cast("dict[str, str]", template)
            template = named.get("default")
        return ModelTexts(
            bos=str(self._tokenizer.bos_token or ""),
            eos=str(self._tokenizer.eos_token or ""),
            adds_bos=self.bos is not None,
            template=template if isinstance(template, str) else "",
        )


def _doubled_weight(folder: Path) -> str:
    """Return a weight that two files have, and their names; "" if each is in one file only.

    A model that was downloaded or saved over another one may leave such files. mlx-lm reads all of
    them, whatever the folder's index names, and keeps the weight that it happens to read last.
    """
    files: dict[str, str] = {}
    for path in sorted(folder.glob("model*.safetensors")):
        with _library("safetensors").safe_open(path, "numpy") as weights:
            for name in weights.keys():  # noqa: SIM118
                if name in files:
                    return f"{name} in {files[name]} and in {path.name}"
                files[name] = path.name
    return ""


def _refuse_fp8(mx: Any, name: str, module: Any) -> None:
    """Raise ConfigError for weights in FP8, whose bytes MLX takes for whole numbers.

    mlx-lm loads them without a word if nothing else of the checkpoint is unknown to it, and the
    model writes nonsense. Bytes with a scale beside them are a quantisation that it knows.
    """
    for place, layer in module.named_modules():
        weight = layer.get("weight")
        whole = weight is not None and weight.dtype == mx.uint8
        if whole and not any("scale" in key for key in layer):
            reason = f"{name} has weights in FP8 ({place}.weight), which MLX cannot compute with"
            raise ConfigError(reason, "choose a copy in BF16, or one quantised by mlx-lm")


def _read_weights(mx: Any, module: Any, progress: Progress | None) -> None:
    """Read the weights, which MLX has only mapped so far."""
    tree_flatten = _library("mlx.utils").tree_flatten
    weights = [weight for _, weight in tree_flatten(module.parameters())]
    total = sum(weight.nbytes for weight in weights)
    read = 0
    for weight in weights:
        mx.eval(weight)
        read += weight.nbytes
        if progress is not None:
            progress(read / total)


def _choose_device(mx: Any, settings: ModelSettings) -> bool:
    """Use the CPU if no layers are for a GPU; return True for a GPU. Raises ConfigError."""
    if settings.gpu_layers == 0:
        mx.set_default_device(mx.cpu)
    on_gpu: bool = mx.default_device().type == mx.gpu
    if settings.require_gpu and not on_gpu:
        raise ConfigError("--require-gpu: MLX has no GPU here", "leave it out, or see the README")
    if settings.gpu_layers and not on_gpu:
        log.warning("no_gpu", meaning="the CPU does all: MLX finds no GPU")
    return on_gpu


@contextmanager
def mapped(error_of: Callable[[str], SpecmeshError]) -> Generator[None]:
    """Raise the error that `error_of` returns for the first line of any error of MLX."""
    try:
        yield
    except Exception as error:  # MLX, mlx-lm, its models and the hub have no error in common
        first = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        raise error_of(first[:300]) from error


def check_library() -> None:
    """Raise ConfigError if MLX or mlx-lm cannot be imported."""
    _library("mlx.core")
    _library("mlx_lm")


def _library(name: str) -> Any:
    def unusable(error: str) -> ConfigError:
        return ConfigError(f"MLX cannot be used here ({error})", pip_install("mlx"))

    with mapped(unusable):
        return import_module(name)


def free() -> None:
    """Free the memory that MLX keeps; the model must be unreachable by now."""
    mx = sys.modules.get("mlx.core")
    if mx is not None:
        gc.collect()  # modules refer to each other
        mx.clear_cache()
