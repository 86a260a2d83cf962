"""The vocabulary of a Hugging Face tokenizer as bytes per id, to compare with llama.cpp's.

tokenizer.json spells tokens in one of two ways. Byte-level BPE writes each byte as a visible character; SentencePiece
writes a space as U+2581 and bytes that are no character as <0xNN>.
"""

import importlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import ConfigError

_SPACE = "\u2581"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_LOOKS_SPECIAL = re.compile(
    r"<\|.*\|>|<\uff5c.*\uff5c>|<unused.*>|<pad>|<mask>|<2mass>|\[@BOS@\]|<end_of_turn>|<end_of_utterance>|_?<EOT>",
    re.DOTALL,
)
"""Control tokens for llama.cpp and its converter, whatever the tokenizer says of them."""

_MAX_ID = 2**21
_ENDS = frozenset(
    {"</s>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>",
     "<eos>", "<EOT>", "<|return|>"}
)  # fmt: skip
"""Special tokens that end a text by their names, as in llama.cpp."""


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """A model's vocabulary without the model; `encode` is None where `tokenizers` is not installed."""

    vocabulary: Vocabulary
    encode: Callable[[str], list[int]] | None


def byte_level_bytes(token: str) -> bytes:
    """Return the bytes of a byte-level BPE token; characters outside that alphabet stand for themselves."""
    alphabet = _alphabet()
    return b"".join(alphabet.get(letter) or letter.encode("utf-8", "replace") for letter in token)


def sentencepiece_bytes(token: str) -> bytes:
    byte = _BYTE.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else _plain(token)


def load_hf_vocabulary(folder: Path) -> TokenizerFile:
    path = folder / "tokenizer.json"
    tokenizer = _object(path)
    if tokenizer is None:
        raise ConfigError(f"{folder} has no tokenizer.json: name the directory of a Hugging Face model that has one")
    try:
        known = token_bytes(tokenizer)
        added = tokenizer.get("added_tokens") or []
        # Rows of the model's embedding, where config.json tells them.
        config = _object(folder / "config.json") or {}
        parts = [part for part in (config, config.get("text_config")) if isinstance(part, dict)]
        sizes = [size for part in parts if isinstance(size := part.get("vocab_size"), int)]
        size = max(max(known, default=-1) + 1, *sizes, 0)
        ids = _ids(tokenizer["model"]["vocab"]) | {token["content"]: token["id"] for token in added}
        ends = frozenset(end for end in _end_ids(folder, ids, added) if end < size)
    except ConfigError as error:
        raise ConfigError(f"{path} is not understood ({error}): save it anew") from error
    return TokenizerFile(Vocabulary(padded(known, size), ends), _encoder(path))


def token_bytes(tokenizer: dict[str, Any]) -> dict[int, bytes]:
    """Return the bytes of each id; none for control tokens and the unknown one. Raises ConfigError."""
    try:
        spell, model = spelling_of(tokenizer), tokenizer["model"]
        ids = _ids(model["vocab"])
        known = {number: spell(token) for token, number in ids.items()}
        unknown = model.get("unk_id") if model.get("unk_token") is None else ids.get(model["unk_token"])
        if unknown in known and spell is sentencepiece_bytes:
            known[unknown] = b""
        for token in tokenizer.get("added_tokens") or []:
            text = str(token["content"])
            known[token["id"]] = b"" if token.get("special") or _LOOKS_SPECIAL.fullmatch(text) else _plain(text)
        lowest, highest = min(known, default=0), max(known, default=0)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"its tokenizer is not one: {type(error).__name__}: {error}") from error
    if lowest < 0 or highest >= _MAX_ID:
        raise ConfigError(f"its tokenizer is not one: ids from {lowest} to {highest}")
    return known


def padded(known: Mapping[int, bytes], size: int) -> tuple[bytes, ...]:
    return tuple(known.get(number, b"") for number in range(size))


def spelling_of(tokenizer: dict[str, Any]) -> Callable[[str], bytes]:
    """Return the function from a token's spelling to its bytes. Raises ValueError for an unknown kind."""
    places = ("decoder", "pre_tokenizer", "normalizer")
    kinds = {str(part.get("type")) for name in places for part in _parts(tokenizer.get(name))}
    if "ByteLevel" in kinds:
        return byte_level_bytes
    if kinds & {"ByteFallback", "Metaspace"} or tokenizer["model"].get("byte_fallback"):
        return sentencepiece_bytes
    raise ValueError(f"neither byte-level nor SentencePiece, but {', '.join(sorted(kinds)) or 'nothing'}")


def _plain(text: str) -> bytes:
    return text.replace(_SPACE, " ").encode("utf-8", "replace")


@cache
def _alphabet() -> dict[str, bytes]:
    """Byte-level BPE: visible Latin-1 stands for itself, other bytes follow from U+0100 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in visible]
    alphabet = {chr(byte): bytes([byte]) for byte in visible}
    return alphabet | {chr(0x100 + index): bytes([byte]) for index, byte in enumerate(others)}


def _ids(vocab: object) -> dict[str, int]:
    """Token to id, out of BPE's object or Unigram's list of (token, score)."""
    if isinstance(vocab, dict):
        return {str(token): int(number) for token, number in vocab.items()}
    if isinstance(vocab, list):
        return {str(token): number for number, (token, _) in enumerate(vocab)}
    raise TypeError("its vocabulary is neither an object nor a list")


def _parts(component: Any) -> Iterator[dict[str, Any]]:
    """A decoder, pre-tokenizer or normalizer and, of a sequence, its members."""
    if isinstance(component, dict):
        yield component
        for name in ("decoders", "pretokenizers", "normalizers"):
            for part in component.get(name) or []:
                yield from _parts(part)


def _object(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None where there is no such file. Raises ConfigError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} is no JSON object")
    return value


def _end_ids(folder: Path, ids: dict[str, int], added: list[dict[str, Any]]) -> set[int]:
    """End ids by the model's configuration, the tokenizer's, and well-known names."""
    ends = {token["id"] for token in added if token.get("special") and token["content"] in _ENDS}
    for name in ("generation_config.json", "config.json"):
        told = (_object(folder / name) or {}).get("eos_token_id")
        ends |= {number for number in (told if isinstance(told, list) else [told]) if isinstance(number, int)}
    named = (_object(folder / "tokenizer_config.json") or {}).get("eos_token")
    named = named.get("content") if isinstance(named, dict) else named
    return ends | ({ids[named]} if named in ids else set())


def _encoder(path: Path) -> Callable[[str], list[int]] | None:
    try:
        tokenizers: Any = importlib.import_module("tokenizers")
    except ImportError:
        return None
    try:  # the package raises plain Exception
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:
        raise ConfigError(f"{path} cannot be loaded: {error}") from error

    return lambda text: list(tokenizer.encode(text).ids)
