"""A GGUF model in memory, its vocabulary and its tokenizer."""

import ctypes
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from specmesh.config import ModelSettings
from specmesh.core.fields import Json
from specmesh.core.session_params import ChatMessage
from specmesh.core.template_traits import TemplateTraits
from specmesh.core.tool_formats import TOOL_MARKS
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines.base import Progress
from specmesh.engines.chat_template import ChatTemplate
from specmesh.engines.llama.library import (
    CPU_ONLY,
    ERRORS,
    add_servers,
    gpu_backends,
    gpu_devices,
    library,
    quoted_errors,
)
from specmesh.errors import ConfigError, EngineError, RequestError
from specmesh.models import check_files

log = structlog.get_logger("specmesh.engines.llama")

_PIECE_BYTES = 256
_METADATA_KEYS = (
    "general.architecture",
    "general.name",
    "general.size_label",
    "tokenizer.ggml.pre",
)

SHORT_TEXT = 4096
"""Bytes that any thread can tokenize."""


class LlamaModel:
    """A loaded model. `handle` and `vocab` are llama.cpp's pointers, valid until `close`."""

    def __init__(self, settings: ModelSettings, progress: Progress | None = None) -> None:
        """Load the file. Raises ConfigError."""
        self.lib, path = library(), Path(settings.model or "")
        check_files(path)
        if settings.rpc:
            add_servers(settings.rpc)
        wanted = -1 if settings.gpu_layers is None else settings.gpu_layers
        gpus = gpu_devices() if wanted else ()
        if wanted and not gpus:
            _note_no_gpu(settings)
        self.handle = _load(self.lib, path, progress, n_gpu_layers=wanted)
        self._lock = threading.Lock()
        self._template: ChatTemplate | None = None
        self._begins = False
        self.texts: dict[str, str] = {}  # `Tokenizer.texts`, once the template is loaded
        self.traits = TemplateTraits()
        self.vocab: Any = self.lib.llama_model_get_vocab(self.handle)
        if self.lib.llama_model_has_encoder(self.handle) or not self.lib.llama_model_has_decoder(
            self.handle
        ):
            self.close()
            raise ConfigError(
                f"{path} is no decoder-only language model", "choose one that generates text"
            )
        self.n_vocab: int = self.lib.llama_vocab_n_tokens(self.vocab)
        self.vocabulary = _vocabulary(self.lib, self.vocab, self.n_vocab)
        self.name = path.stem
        self._no_template = f"{self.name} has no chat template"
        layers: int = self.lib.llama_model_n_layer(self.handle) + 1
        taken = layers if wanted < 0 else min(wanted, layers)
        self.backend = f"{'; '.join(gpus)}, {taken} of {layers} layers"  # where it is on a GPU
        self.on_gpu = bool(gpus)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the ids of a raw prompt, special tokens written in it included, those at its ends where `special`;
        safe from any thread. Raises RequestError for a lone surrogate, EngineError after `close`."""
        try:
            raw = text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(f"the prompt is not valid Unicode: {error.reason}") from error
        with self._lock:  # another thread may free the model
            if self.handle is None:
                raise EngineError("the model is closed")
            return (self._tokenize if len(raw) <= SHORT_TEXT else self._tokenize_deeply)(
                raw, special
            )

    def _tokenize_deeply(self, raw: bytes, special: bool) -> list[int]:
        """llama.cpp splits text by regular expressions, which for many vocabularies take some 310 bytes of stack for
        each letter of a run: a long one would end the process on a common thread. This one's has 1024."""
        before = threading.stack_size(2**24 * (1 + len(raw) // 2**14))
        try:
            with ThreadPoolExecutor(1, "tokens") as deep:
                return deep.submit(self._tokenize, raw, special).result()
        except RuntimeError as error:
            raise EngineError(
                f"no thread could be started to tokenize {len(raw)} bytes ({error})"
            ) from error
        finally:
            threading.stack_size(before)

    def _tokenize(self, raw: bytes, special: bool) -> list[int]:
        count = len(raw) + 8  # a token has at least one byte; room for the special ones at the ends
        ids = (self.lib.llama_token * count)()
        written: int = self.lib.llama_tokenize(self.vocab, raw, len(raw), ids, count, special, True)
        if written < 0:
            raise EngineError(f"llama.cpp could not tokenize a prompt of {len(raw)} bytes")
        return list(ids[:written])

    def load_template(self, chosen: str | None, tool_format: str | None = None) -> None:
        """Use the `chosen` template, or the model's own if it works. Raises ConfigError for an invalid chosen one."""
        bos, eos = self.lib.llama_vocab_bos(self.vocab), self.lib.llama_vocab_eos(self.vocab)
        written = self._written(bos), self._written(eos)
        self._begins = bool(self.lib.llama_vocab_get_add_bos(self.vocab))
        self.texts = dict(zip(("bos_token", "eos_token"), written, strict=True))
        own: bytes | None = self.lib.llama_model_chat_template(self.handle, None)
        source = chosen if chosen is not None else (own or b"").decode("utf-8", "replace")
        try:
            self._template = (
                ChatTemplate(source, *written) if source or chosen is not None else None
            )
        except ConfigError as error:
            if chosen is not None:
                raise
            log.warning("chat_template_unusable", error=str(error))
            self._no_template = f"{self.name}: {error}"
        if self._template is not None:
            self.texts["chat_template"] = source
            self.traits = self._template.traits
        if tool_format is not None:
            self.traits = replace(self.traits, tool_format=tool_format)

    def chat_text(
        self, messages: Sequence[ChatMessage], variables: Json, *, continued: bool = False
    ) -> str:
        template = self._template
        if template is None:
            raise RequestError(
                self._no_template, "messages", "give the verifier --chat-template FILE"
            )
        text = template.render(messages, variables, continued=continued)
        # The tokenizer begins with it anyway.
        return text.removeprefix(template.bos) if template.bos and self._begins else text

    def _written(self, token: int) -> str:
        """A special token as a template writes it; empty where the vocabulary has none."""
        if not 0 <= token < self.n_vocab:
            return ""
        buffer = ctypes.create_string_buffer(_PIECE_BYTES)
        return _piece(self.lib, self.vocab, token, buffer, special=True).decode("utf-8", "replace")

    def close(self) -> None:
        if self._template is not None:
            self._template.close()
        with self._lock:
            handle, self.handle = self.handle, None
            if handle is not None:
                self.lib.llama_model_free(handle)


def _note_no_gpu(settings: ModelSettings) -> None:
    """Warn that the CPU does all, if a GPU was asked for or the build is for one. Raises
    ConfigError if one is required."""
    backends = gpu_backends()
    seen = f"{', '.join(backends)} of llama.cpp finds none" if backends else CPU_ONLY
    if settings.require_gpu:
        raise ConfigError(f"--require-gpu: there is no GPU: {seen}", "see `specmesh doctor`")
    if backends or settings.gpu_layers is not None:
        log.warning("no_gpu", meaning=f"the CPU does all: {seen}")


def metadata(path: Path) -> dict[str, str]:
    """Return what a GGUF file says of its model, read without its weights: the _METADATA_KEYS that it has. Raises
    ConfigError."""
    check_files(path)
    lib, buffer, found = library(), ctypes.create_string_buffer(256), dict[str, str]()
    handle = _load(lib, path, vocab_only=True)
    for key in _METADATA_KEYS:
        if lib.llama_model_meta_val_str(handle, key.encode(), buffer, len(buffer)) >= 0:
            found[key] = buffer.value.decode("utf-8", "replace")
    lib.llama_model_free(handle)
    return found


def _load(lib: Any, path: Path, progress: Progress | None = None, **wanted: int) -> Any:
    """Return llama.cpp's model. wanted: its parameters that are not as usual."""

    def report(share: float, _user: object) -> bool:
        if progress is not None:
            progress(share)
        return True  # go on

    callback = lib.llama_progress_callback(report)  # lives until the load returns
    params = lib.llama_model_default_params()
    params.progress_callback = callback
    for name, value in wanted.items():
        setattr(params, name, value)
    ERRORS.clear()
    handle = lib.llama_model_load_from_file(os.fsencode(path), params)
    if handle is not None:
        return handle
    remedy = "give a GGUF file; if it is damaged or incomplete, download it again; if memory ran out, use a smaller one"
    raise ConfigError(f"{path} could not be loaded ({quoted_errors()})", remedy)


def _vocabulary(lib: Any, vocab: Any, n_vocab: int) -> Vocabulary:
    buffer = ctypes.create_string_buffer(_PIECE_BYTES)
    ends = frozenset(token for token in range(n_vocab) if lib.llama_vocab_is_eog(vocab, token))
    pieces = [_piece(lib, vocab, token, buffer) for token in range(n_vocab)]
    for token in range(
        n_vocab
    ):  # some models have control tokens for what begins a call of tools: that is text
        if not pieces[token] and token not in ends:
            mark = _piece(lib, vocab, token, buffer, special=True)
            pieces[token] = mark if mark.decode("utf-8", "replace") in TOOL_MARKS else b""
    return Vocabulary(tuple(pieces), ends)


def _piece(lib: Any, vocab: Any, token: int, buffer: Any, special: bool = False) -> bytes:
    """The bytes of an id; those of control tokens only with `special`."""
    length = lib.llama_token_to_piece(vocab, token, buffer, len(buffer), 0, special)
    if length < 0:  # llama.cpp names the size it needs
        return _piece(lib, vocab, token, ctypes.create_string_buffer(-length), special)
    return ctypes.string_at(buffer, length)
