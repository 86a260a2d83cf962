"""A GGUF model in memory."""

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import structlog

from specmesh.config import ModelSettings
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines.base import Progress
from specmesh.engines.llama import large_pages
from specmesh.engines.llama.encoder import LlamaEncoder
from specmesh.engines.llama.header import read_headers
from specmesh.engines.llama.library import (
    CPU_ONLY,
    ERRORS,
    NOT_LOCKED,
    add_servers,
    gpu_backends,
    library,
    quoted_errors,
)
from specmesh.engines.llama.nextn import NextN, nextn_of
from specmesh.engines.llama.params import (
    LOCK_REMEDY,
    READING,
    ModelParams,
    metadata_text,
    model_params,
    trained_ctx,
    used_devices,
)
from specmesh.engines.tokenizer import ChatTokenizer, ChosenTemplate, ModelTexts
from specmesh.errors import ConfigError
from specmesh.host import lockable_bytes
from specmesh.llama_options import NO_DEVICE
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
    size: bytes of its weights.
    reading: a thread that reads the vocabulary, and does what is to be done with it afterwards.
    backend: the GPUs and their layers in words, if `on_gpu`.
    has_states: some layers have a state for each sequence.
    recurrent: all layers have, and no memory grows with a text.
    n_swa: ids of a sliding window, if some layers have one; else 0.
    chunked: these windows begin at multiples of n_swa.
    gpus: the names of those that take layers.
    gpu_share: of its layers that GPUs have.
    nextn: its NextN layers that are loaded; 0: none.
    """

    def __init__(
        self, settings: ModelSettings, progress: Progress | None = None, *, mtp: bool = False
    ) -> None:
        """Load the file. Raises ConfigError.

        mtp: its NextN layers too, if it has some that can be used. A warning says why not.
        """
        path = Path(settings.model or "")
        lib = library()
        check_files(path)
        if settings.rpc:
            add_servers(settings.rpc)
        gpus = used_devices(settings)
        if not gpus and settings.gpu_layers != 0 and settings.llama.device != NO_DEVICE:
            _note_no_gpu(settings)
        self.lib = lib
        self.name = path.stem
        self.options = settings.llama
        self.nextn = _usable_nextn(path) if mtp else 0
        self._params = model_params(lib, settings, nextn=self.nextn > 0)
        if settings.llama.mlock:
            lockable_bytes()  # raises this process's limit
        self.handle = self._loaded(path, settings, progress)
        self._adapters = list[Any]()
        try:
            if settings.llama.mlock:
                _check_locked()
            for adapter in settings.llama.lora:
                self._adapters.append(_load_adapter(lib, self.handle, adapter.path))
        except ConfigError:
            lib.llama_model_free(self.handle)
            raise
        has_encoder = lib.llama_model_has_encoder(self.handle)
        if has_encoder or not lib.llama_model_has_decoder(self.handle):
            lib.llama_model_free(self.handle)
            reason = f"{path} is no decoder-only language model"
            raise ConfigError(reason, "choose one that generates text")
        self._vocab: Any = lib.llama_model_get_vocab(self.handle)
        self.n_vocab: int = lib.llama_vocab_n_tokens(self._vocab)
        self.size: int = lib.llama_model_size(self.handle)
        self.reading = ThreadPoolExecutor(1, "vocabulary")
        self._encoder = self.reading.submit(LlamaEncoder, lib, self._vocab)
        layers: int = lib.llama_model_n_layer(self.handle) + 1
        wanted: int = self._params.struct.n_gpu_layers
        taken = layers if wanted < 0 else min(wanted, layers)
        self.backend = f"{'; '.join(gpus)}, {taken} of {layers} layers"
        self.on_gpu = bool(gpus)
        self.gpus = tuple(gpu.partition(":")[0] for gpu in gpus)
        self.gpu_share = taken / layers if gpus else 0.0
        self.recurrent: bool = lib.llama_model_is_recurrent(self.handle)
        self.n_swa: int = lib.llama_model_n_swa(self.handle)
        self.chunked = metadata_text(lib, self.handle, "general.architecture") == "llama4"
        self.has_states = self.recurrent or bool(lib.llama_model_is_hybrid(self.handle))

    def _loaded(self, path: Path, settings: ModelSettings, progress: Progress | None) -> Any:
        """Return llama.cpp's model, without NextN layers if it does not load with them."""
        try:
            return _load(self.lib, path, self._params, progress)
        except ConfigError as error:
            without = _nextn(path).without
            if not self.nextn and not without:
                raise
            self._params = model_params(self.lib, settings, values=without)
            handle = _load(self.lib, path, self._params, progress)
            if self.nextn:
                warn_of_nextn(error.what)
            self.nextn = 0
            return handle

    @property
    def trained_ctx(self) -> int:
        """Return the ids of the longest text that it is made for, 0 if its file has no number."""
        return trained_ctx(self.lib, self.handle, self.options)

    def adapt(self, context: Any) -> None:
        """Make a llama_context of this model use its adapters. Raises ConfigError."""
        count = len(self._adapters)
        if not count:
            return
        handles = (self.lib.llama_adapter_lora_p_ctypes * count)(*self._adapters)
        scales = (ctypes.c_float * count)(*[adapter.scale for adapter in self.options.lora])
        if self.lib.llama_set_adapters_lora(context, handles, count, scales) != 0:
            raise ConfigError(f"llama.cpp did not use the adapters ({quoted_errors()})")

    @property
    def encoder(self) -> LlamaEncoder:
        """Return the encoder, once the vocabulary is read."""
        return self._encoder.result()

    @property
    def vocabulary(self) -> Vocabulary:
        """Return the vocabulary, once it is read."""
        return self.encoder.vocabulary

    def tokenizer(self, chosen: ChosenTemplate) -> ChatTokenizer:
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
        return ChatTokenizer(self.name, self.encoder, own, chosen)

    @property
    def bos(self) -> int | None:
        """Return the id that the model's texts begin with; None if they begin with none."""
        if not self.lib.llama_vocab_get_add_bos(self._vocab):
            return None
        bos: int = self.lib.llama_vocab_bos(self._vocab)
        return bos if bos >= 0 else None

    def close(self) -> None:
        """Free the model once no thread uses its encoder."""
        self.reading.shutdown()
        if self._encoder.exception() is None:
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
    params = ModelParams(lib.llama_model_default_params())
    params.struct.vocab_only = True
    handle = _load(lib, path, params)
    for key in _METADATA_KEYS:
        length: int = lib.llama_model_meta_val_str(handle, key.encode(), buffer, len(buffer))
        if length >= 0:
            found[key] = buffer.value.decode("utf-8", "replace")
    lib.llama_model_free(handle)
    return found


def _usable_nextn(path: Path) -> int:
    """Return the number of NextN layers that a model can draft with; warn if it names others."""
    nextn = _nextn(path)
    if nextn.fault:
        warn_of_nextn(nextn.fault)
    return nextn.layers


def _nextn(path: Path) -> NextN:
    """Return the NextN layers of a model; none of a file that llama.cpp does not load anyway.

    Raises ConfigError for a file with which llama.cpp would end the process.
    """
    try:
        headers = read_headers(path)
    except ConfigError:
        return NextN()
    return nextn_of(headers)


def warn_of_nextn(fault: str) -> None:
    """Warn that a model's own head does not draft."""
    effect = "the model drafts nothing itself; --mtp off leaves this warning out"
    log.warning("no_mtp", fault=fault, meaning=effect)


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


def _load(lib: Any, path: Path, params: ModelParams, progress: Progress | None = None) -> Any:
    """Return llama.cpp's model. Raises ConfigError."""

    is_mapped = params.struct.load_mode not in READING

    def report(share: float, _user: object) -> bool:
        if share == 0 and not is_mapped:  # memory is reserved, and nothing is written there
            large_pages.advise()
        if progress is not None:
            progress(share)
        return True  # go on

    callback = lib.llama_progress_callback(report)  # lives until the load returns
    params.struct.progress_callback = callback
    NOT_LOCKED.clear()
    ERRORS.clear()
    handle = lib.llama_model_load_from_file(os.fsencode(path), params.struct)
    if handle is not None:
        return handle
    remedy = (
        "give a GGUF file; if it is damaged or incomplete, download it again; if memory ran out, "
        "use a smaller one"
    )
    raise ConfigError(f"{path} could not be loaded ({quoted_errors()})", remedy)


def _load_adapter(lib: Any, model: Any, path: Path) -> Any:
    """Return llama.cpp's adapter, which is freed with its model. Raises ConfigError."""
    ERRORS.clear()
    handle = lib.llama_adapter_lora_init(model, os.fsencode(path))
    if handle is not None:
        return handle
    reason = f"--lora {path} could not be loaded ({quoted_errors()})"
    raise ConfigError(reason, "give a LoRA adapter of this very model")


def _check_locked() -> None:
    """Raise ConfigError if the system refused to lock the memory of the load that just ended."""
    if not NOT_LOCKED:
        return
    raise ConfigError(f"--mlock: {NOT_LOCKED[0]}", LOCK_REMEDY)
