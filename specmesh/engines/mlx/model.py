"""A Hugging Face model in MLX: its weights, and its vocabulary as bytes per id, to compare with llama.cpp's.

tokenizer.json spells tokens in one of two ways. Byte-level BPE writes each byte as a visible character; SentencePiece
writes a space as U+2581 and bytes that are no character as <0xNN>.
"""

import gc
import json
import re
import sys
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import structlog

from specmesh.config import ModelSettings
from specmesh.core.text.tool_formats import TOOL_MARKS
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import ConfigError, SpecmeshError

log = structlog.get_logger("specmesh.engines.mlx")

_SPACE = "\u2581"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_LOOKS_SPECIAL = re.compile(
    r"<\|.*\|>|<\uff5c.*\uff5c>|<unused.*>|<pad>|<mask>|<2mass>|\[@BOS@\]|<end_of_turn>|<end_of_utterance>|_?<EOT>",
    re.DOTALL,
)
"""Control tokens for llama.cpp and its converter, whatever the tokenizer says of them."""


class MlxModel:
    """A directory with config.json, safetensors and tokenizer.json, quantised by mlx-lm or not; or a hub id
    ("org/name") in the hub's cache. `module` is its loading thread's own."""

    def __init__(self, settings: ModelSettings) -> None:
        """Load it on this thread, which must make all further calls. Raises ConfigError."""
        where = Path(settings.model or "")
        if where.is_file():
            raise ConfigError(
                f"{where} is a file: MLX loads a Hugging Face directory (a .gguf file: --engine llama)"
            )
        mx, mlx_lm = _library("mlx.core"), _library("mlx_lm")
        if settings.gpu_layers == 0:
            mx.set_default_device(mx.cpu)
        on_gpu = mx.default_device().type == mx.gpu
        if settings.require_gpu and not on_gpu:
            raise ConfigError(
                "--require-gpu: MLX has no GPU here", "leave it out, or see the README"
            )
        if not on_gpu and settings.gpu_layers:
            log.warning("no_gpu", meaning="the CPU does all: MLX finds no GPU")
        device = mx.device_info().get("device_name", "GPU") if on_gpu else "CPU"
        self.backend, self.name = f"MLX {version('mlx')}, {device}", where.resolve().name
        advice = "is it complete, and of an architecture that this mlx-lm knows?"
        with mapped(
            lambda said: ConfigError(
                f"{settings.model} could not be loaded by mlx-lm ({said})", advice
            )
        ):
            if not where.is_dir():
                self.name = str(where)
                advice = f"no such directory here, and not in the hub's cache: get it by `hf download {where}`"
                where = Path(
                    _library("huggingface_hub").snapshot_download(self.name, local_files_only=True)
                )
            self.module, self._tokenizer, self._config = mlx_lm.load(
                str(where), lazy=True, return_config=True
            )
            # Logits in half precision are rounded so coarsely that the best two of a thousand positions are equal at
            # one or two. Single precision costs nothing on a CPU, whose half precision is slower.
            if not on_gpu:
                self.module.set_dtype(mx.float32)
            mx.eval(self.module.parameters())  # read the weights, which MLX has only mapped so far

    @property
    def trained_ctx(self) -> int:
        """Trained context length; 0 where the config does not say."""
        known: dict[str, Any] = {**self._config, **(self._config.get("text_config") or {})}
        lengths = (
            known.get(key) for key in ("max_position_embeddings", "n_positions", "max_seq_len")
        )
        return next((length for length in lengths if isinstance(length, int)), 0)

    def vocabulary(self, n_vocab: int) -> Vocabulary:
        """Return the vocabulary, `n_vocab` ids long. Raises ConfigError where the tokenizer does not tell it."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ConfigError(
                f"{self.name} has no tokenizer.json", "choose a copy of the model that has one"
            )
        ends = frozenset(token for token in self._tokenizer.eos_token_ids if 0 <= token < n_vocab)
        try:
            known = token_bytes(json.loads(backend.to_str()), n_vocab, ends)
        except ConfigError as error:
            raise ConfigError(f"{self.name} cannot draft: {error}") from error
        return Vocabulary(known, ends)


@contextmanager
def mapped(ours: Callable[[str], SpecmeshError]) -> Generator[None]:
    """Raise what `ours` makes of the first line of any error of MLX."""
    try:
        yield
    except (
        Exception
    ) as error:  # MLX, mlx-lm, the classes of its models and the hub have no error in common
        raise ours(f"{type(error).__name__}: {error}".strip().splitlines()[0][:300]) from error


def _library(name: str) -> Any:
    with mapped(
        lambda said: ConfigError(f"MLX cannot be used here ({said})", "pip install 'specmesh[mlx]'")
    ):
        return import_module(name)


def free() -> None:
    """Free the memory that MLX keeps; the model must be unreachable by now."""
    mx = sys.modules.get("mlx.core")
    if mx is not None:
        gc.collect()  # modules refer to each other
        mx.clear_cache()


def byte_level_bytes(token: str) -> bytes:
    """Return the bytes of a byte-level BPE token; characters outside that alphabet stand for themselves."""
    alphabet = _alphabet()
    return b"".join(alphabet.get(letter) or letter.encode("utf-8", "replace") for letter in token)


def sentencepiece_bytes(token: str) -> bytes:
    byte = _BYTE.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else _plain(token)


def token_bytes(tokenizer: dict[str, Any], size: int, ends: Collection[int]) -> tuple[bytes, ...]:
    """Return the bytes of the first `size` ids; none for the unknown one and control tokens, but for marks of calls and
    thoughts that are no `ends`. Raises ConfigError."""
    try:
        spell, model = _spelling_of(tokenizer), tokenizer["model"]
        ids = model["vocab"]  # of Unigram, which no draft model has, a list
        known = {number: spell(token) for token, number in ids.items()}
        unknown = ids.get(model.get("unk_token"))
        if unknown in known and spell is sentencepiece_bytes:
            known[unknown] = b""
        for token in list[dict[str, Any]](tokenizer.get("added_tokens") or []):
            text = str(token["content"])
            control = token.get("special") or _LOOKS_SPECIAL.fullmatch(text)
            silent = control and (text not in TOOL_MARKS or token["id"] in ends)
            known[token["id"]] = b"" if silent else _plain(text)
        return tuple(known.get(number, b"") for number in range(size))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"its tokenizer is not one: {type(error).__name__}: {error}") from error


def _spelling_of(tokenizer: dict[str, Any]) -> Callable[[str], bytes]:
    """Return the function from a token's spelling to its bytes. Raises ValueError for an unknown kind."""
    steps = json.dumps([tokenizer.get(name) for name in ("decoder", "pre_tokenizer", "normalizer")])
    if '"ByteLevel"' in steps:
        return byte_level_bytes
    if (
        '"ByteFallback"' in steps
        or '"Metaspace"' in steps
        or tokenizer["model"].get("byte_fallback")
    ):
        return sentencepiece_bytes
    raise ValueError("neither byte-level nor SentencePiece")


def _plain(text: str) -> bytes:
    return text.replace(_SPACE, " ").encode("utf-8", "replace")


@cache
def _alphabet() -> dict[str, bytes]:
    """Byte-level BPE: visible Latin-1 stands for itself, other bytes follow from U+0100 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in visible]
    alphabet = {chr(byte): bytes([byte]) for byte in visible}
    return alphabet | {chr(0x100 + index): bytes([byte]) for index, byte in enumerate(others)}
