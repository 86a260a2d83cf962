"""A GGUF model in memory, its vocabulary and its tokenizer."""

import ctypes
import os
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog

from specmesh.config import ModelSettings
from specmesh.core.fields import Json
from specmesh.core.session_params import ChatMessage
from specmesh.core.text.template_traits import TemplateTraits
from specmesh.core.text.tool_formats import TOOL_MARKS
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines.base import Progress
from specmesh.engines.chat_template import ChatTemplate
from specmesh.engines.llama.library import (
    CPU_ONLY,
    ERRORS,
    add_servers,
    gpu_backends,
    gpu_devices,
    keeping_gil,
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

_INSTANT = 256  # bytes that are tokenized in microseconds
_AT_ONCE = 2**16  # ids that are taken from llama.cpp by one call


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
        # A short text takes less than to get the GIL back from a busy thread.
        self._tokenize_shortly = keeping_gil(self.lib, "llama_tokenize")
        self._used = threading.Condition()
        self._users = 0  # threads in a call of the tokenizer, under which the model is not freed
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
        self._coverage = TextCoverage.of(self.lib, self.vocab, self.vocabulary)
        self.name = path.stem
        self._no_template = f"{self.name} has no chat template"
        layers: int = self.lib.llama_model_n_layer(self.handle) + 1
        taken = layers if wanted < 0 else min(wanted, layers)
        self.backend = f"{'; '.join(gpus)}, {taken} of {layers} layers"  # where it is on a GPU
        self.on_gpu = bool(gpus)
        # Some layers have a state for each sequence.
        self.has_states = bool(
            self.lib.llama_model_is_recurrent(self.handle)
            or self.lib.llama_model_is_hybrid(self.handle)
        )

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the ids of a raw prompt, special tokens written in it included, those at its ends where `special`;
        safe from any thread. Raises RequestError for a lone surrogate, EngineError after `close`."""
        try:
            raw = text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(f"the prompt is not valid Unicode: {error.reason}") from error
        with self._in_use():
            return (self._tokenize if len(raw) <= SHORT_TEXT else self._tokenize_deeply)(
                raw, special
            )

    @contextmanager
    def _in_use(self) -> Generator[None]:
        """Keep the model while threads use it side by side. Raises EngineError after `close`."""
        with self._used:
            if self.handle is None:
                raise EngineError("the model is closed")
            self._users += 1
        try:
            yield
        finally:
            with self._used:
                self._users -= 1
                self._used.notify_all()

    def _tokenize_deeply(self, raw: bytes, special: bool) -> list[int]:
        """llama.cpp splits text by regular expressions, which for many vocabularies take some 310 bytes of stack for
        each letter of a run: a long one would end the process on a common thread. This one's has 1024."""
        deep = ThreadPoolExecutor(1, "tokens")
        with self._used:  # the size is that of all threads that begin meanwhile
            before = threading.stack_size(2**24 * (1 + len(raw) // 2**14))
            try:
                ids = deep.submit(self._tokenize, raw, special)
            except RuntimeError as error:
                raise EngineError(
                    f"no thread could be started to tokenize {len(raw)} bytes ({error})"
                ) from error
            finally:
                threading.stack_size(before)
                deep.shutdown(wait=False)
        return ids.result()

    def _tokenize(self, raw: bytes, special: bool) -> list[int]:
        count = len(raw) + 8  # a token has at least one byte; room for the special ones at the ends
        ids = (self.lib.llama_token * count)()
        tokenize = self._tokenize_shortly if len(raw) <= _INSTANT else self.lib.llama_tokenize
        written: int = tokenize(self.vocab, raw, len(raw), ids, count, special, True)
        if written < 0:
            raise EngineError(f"llama.cpp could not tokenize a prompt of {len(raw)} bytes")
        made = list[int]()
        for at in range(0, written, _AT_ONCE):  # other threads run in between
            made += ids[at : min(at + _AT_ONCE, written)]
        return made

    def least_ids(self, text: str) -> int:
        """Return a number of ids that `encode` makes of a text at least; safe from any thread."""
        return self._coverage.least_ids(text)

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
        with self._used:
            handle, self.handle = self.handle, None
            self._used.wait_for(lambda: self._users == 0)
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


@dataclass(frozen=True, slots=True)
class TextCoverage:
    """How much of a text an id of a vocabulary can stand for. longest: bytes of one id at most,
    special tokens as they are written; 0 where there is no limit: an id for whatever is unknown, or
    blanks that a special token swallows. lost: bytes that no id stands for."""

    longest: int
    lost: bytes

    @classmethod
    def of(cls, lib: Any, vocab: Any, vocabulary: Vocabulary) -> "TextCoverage":
        kind: int = lib.llama_vocab_type(vocab)
        if kind not in (lib.LLAMA_VOCAB_TYPE_SPM, lib.LLAMA_VOCAB_TYPE_BPE):
            return cls(0, b"")
        swallows = lib.LLAMA_TOKEN_ATTR_LSTRIP | lib.LLAMA_TOKEN_ATTR_RSTRIP
        singles = {piece[0] for piece in vocabulary.pieces if len(piece) == 1}
        longest, buffer = 0, ctypes.create_string_buffer(_PIECE_BYTES)
        for token, piece in enumerate(vocabulary.pieces):
            if lib.llama_vocab_get_attr(vocab, token) & swallows:
                return cls(0, b"")
            text = piece or _piece(lib, vocab, token, buffer, special=True)
            # SentencePiece has a character of three bytes for a blank, and a text may have it too.
            blanks = text.count(b" ") if kind == lib.LLAMA_VOCAB_TYPE_SPM else 0
            longest = max(longest, len(text) + 2 * blanks)
        return cls(longest, bytes(set(range(256)) - singles))

    def least_ids(self, text: str) -> int:
        """Return a number of ids that a text has at least."""
        if not self.longest:
            return 0
        kept = text.encode("utf-8", "surrogatepass").translate(None, self.lost)
        return -(-len(kept) // self.longest)


def _piece(lib: Any, vocab: Any, token: int, buffer: Any, special: bool = False) -> bytes:
    """The bytes of an id; those of control tokens only with `special`."""
    length = lib.llama_token_to_piece(vocab, token, buffer, len(buffer), 0, special)
    if length < 0:  # llama.cpp names the size it needs
        return _piece(lib, vocab, token, ctypes.create_string_buffer(-length), special)
    return ctypes.string_at(buffer, length)
