"""A GGUF model in memory."""

import ctypes
import os
from pathlib import Path
from typing import Any

import structlog

from specmesh.config import ModelSettings
from specmesh.engines.base import Progress
from specmesh.engines.llama.encoder import LlamaEncoder
from specmesh.engines.llama.library import (
    CPU_ONLY,
    ERRORS,
    add_servers,
    gpu_backends,
    gpu_devices,
    library,
    quoted_errors,
)
from specmesh.engines.tokenizer import ChatTokenizer, ModelTexts
from specmesh.errors import ConfigError
from specmesh.models.files import check_files

log = structlog.get_logger("specmesh.engines.llama")

_METADATA_KEYS = (
    "general.architecture",
    "general.name",
    "general.size_label",
    "tokenizer.ggml.pre",
)


class LlamaModel:
    """A loaded model.

    handle: llama.cpp's pointer, valid until `close`.
    backend: the GPUs and their layers in words, if `on_gpu`.
    has_states: some layers have a state for each sequence.
    recurrent: all layers have, and no memory grows with a text.
    n_swa: ids of a sliding window, if some layers have one; else 0.
    chunked: these windows begin at multiples of n_swa.
    gpu_share: of its layers that GPUs have.
    """

    def __init__(self, settings: ModelSettings, progress: Progress | None = None) -> None:
        """Load the file. Raises ConfigError."""
        path = Path(settings.model or "")
        lib = library()
        check_files(path)
        if settings.rpc:
            add_servers(settings.rpc)
        wanted = -1 if settings.gpu_layers is None else settings.gpu_layers
        gpus = gpu_devices() if wanted else ()
        if wanted and not gpus:
            _note_no_gpu(settings)
        self.lib = lib
        self.name = path.stem
        self.handle = _load(lib, path, progress, n_gpu_layers=wanted)
        has_encoder = lib.llama_model_has_encoder(self.handle)
        if has_encoder or not lib.llama_model_has_decoder(self.handle):
            lib.llama_model_free(self.handle)
            reason = f"{path} is no decoder-only language model"
            raise ConfigError(reason, "choose one that generates text")
        self._vocab: Any = lib.llama_model_get_vocab(self.handle)
        self.encoder = LlamaEncoder(lib, self._vocab)
        self.vocabulary = self.encoder.vocabulary
        self.n_vocab = len(self.vocabulary)
        layers: int = lib.llama_model_n_layer(self.handle) + 1
        taken = layers if wanted < 0 else min(wanted, layers)
        self.backend = f"{'; '.join(gpus)}, {taken} of {layers} layers"
        self.on_gpu = bool(gpus)
        self.gpu_share = taken / layers if gpus else 0.0
        self.recurrent: bool = lib.llama_model_is_recurrent(self.handle)
        self.n_swa: int = lib.llama_model_n_swa(self.handle)
        self.chunked = self._architecture() == "llama4"
        self.has_states = self.recurrent or bool(lib.llama_model_is_hybrid(self.handle))

    def _architecture(self) -> str:
        buffer = ctypes.create_string_buffer(256)
        key = b"general.architecture"
        self.lib.llama_model_meta_val_str(self.handle, key, buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

    def tokenizer(self, chosen: str | None, tool_format: str | None = None) -> ChatTokenizer:
        """Return the tokenizer with the `chosen` template, or with the model's own if it works.

        Raises ConfigError for an invalid chosen one.
        """
        template: bytes | None = self.lib.llama_model_chat_template(self.handle, None)
        own = ModelTexts(
            bos=self.encoder.special_text(self.lib.llama_vocab_bos(self._vocab)),
            eos=self.encoder.special_text(self.lib.llama_vocab_eos(self._vocab)),
            adds_bos=bool(self.lib.llama_vocab_get_add_bos(self._vocab)),
            template=(template or b"").decode("utf-8", "replace"),
        )
        return ChatTokenizer(self.name, self.encoder, own, chosen, tool_format)

    @property
    def bos(self) -> int | None:
        """Return the id that the model's texts begin with; None if they begin with none."""
        if not self.lib.llama_vocab_get_add_bos(self._vocab):
            return None
        bos: int = self.lib.llama_vocab_bos(self._vocab)
        return bos if bos >= 0 else None

    def close(self) -> None:
        """Free the model once no thread uses its encoder."""
        self.encoder.close()
        handle = self.handle
        self.handle = None
        if handle is not None:
            self.lib.llama_model_free(handle)


def metadata(path: Path) -> dict[str, str]:
    """Return those of the _METADATA_KEYS that a GGUF file has; its weights are not read.

    Raises ConfigError.
    """
    check_files(path)
    lib = library()
    buffer = ctypes.create_string_buffer(256)
    found = dict[str, str]()
    handle = _load(lib, path, vocab_only=True)
    for key in _METADATA_KEYS:
        length: int = lib.llama_model_meta_val_str(handle, key.encode(), buffer, len(buffer))
        if length >= 0:
            found[key] = buffer.value.decode("utf-8", "replace")
    lib.llama_model_free(handle)
    return found


def _note_no_gpu(settings: ModelSettings) -> None:
    """Warn that the CPU does all, if a GPU was asked for or the build is for one.

    Raises ConfigError if a GPU is required.
    """
    backends = gpu_backends()
    reason = CPU_ONLY
    if backends:
        reason = f"{', '.join(backends)} of llama.cpp finds none"
    if settings.require_gpu:
        raise ConfigError(f"--require-gpu: there is no GPU: {reason}", "see `specmesh doctor`")
    if backends or settings.gpu_layers is not None:
        log.warning("no_gpu", meaning=f"the CPU does all: {reason}")


def _load(lib: Any, path: Path, progress: Progress | None = None, **changed: int) -> Any:
    """Return llama.cpp's model; changed: its parameters that differ from the defaults."""

    def report(share: float, _user: object) -> bool:
        if progress is not None:
            progress(share)
        return True  # go on

    callback = lib.llama_progress_callback(report)  # lives until the load returns
    params = lib.llama_model_default_params()
    params.progress_callback = callback
    for name, value in changed.items():
        setattr(params, name, value)
    ERRORS.clear()
    handle = lib.llama_model_load_from_file(os.fsencode(path), params)
    if handle is not None:
        return handle
    remedy = (
        "give a GGUF file; if it is damaged or incomplete, download it again; if memory ran out, "
        "use a smaller one"
    )
    raise ConfigError(f"{path} could not be loaded ({quoted_errors()})", remedy)
