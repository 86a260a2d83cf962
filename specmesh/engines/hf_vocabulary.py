"""The vocabulary of a Hugging Face directory as bytes per id, without any model library.

tokenizer.json spells tokens in one of two ways. Byte-level BPE writes each byte as a visible character; SentencePiece
writes a space as U+2581 and bytes that are no character as <0xNN>. llama.cpp's GGUF files keep those spellings, and
llama.cpp gives the bytes; here they are worked out, so that both can be compared.
"""

import importlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from specmesh.core.vocabulary import Vocabulary
from specmesh.errors import ConfigError

Spelling = Callable[[str], bytes]
"""From a token as a file spells it to its bytes."""

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_MAX_ID = 2**21
_ENDS = frozenset(
    {"</s>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>",
     "<eos>", "<EOT>", "<|return|>"}
)  # fmt: skip
"""Special tokens that end a text by their names, as llama.cpp takes them."""


@dataclass(frozen=True, slots=True)
class HfVocabulary:
    """A directory's vocabulary; `encode` is None where the `tokenizers` package is not installed."""

    vocabulary: Vocabulary
    encode: Callable[[str], list[int]] | None


def byte_level_bytes(token: str) -> bytes:
    """The bytes of a byte-level BPE token; characters outside that alphabet stand for themselves."""
    alphabet = _alphabet()
    return b"".join(alphabet.get(letter) or letter.encode("utf-8", "replace") for letter in token)


def sentencepiece_bytes(token: str) -> bytes:
    """The bytes of a SentencePiece token."""
    byte = _BYTE.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("\u2581", " ").encode("utf-8", "replace")


def load_hf_vocabulary(folder: Path) -> HfVocabulary:
    """Read a directory's tokenizer.json; raises ConfigError where it is missing or not understood."""
    path = folder / "tokenizer.json"
    tokenizer = _object(path)
    if tokenizer is None:
        raise ConfigError(f"{folder} has no tokenizer.json: name the directory of a Hugging Face model that has one")
    try:
        vocabulary = hf_vocabulary(tokenizer, folder)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path} is not understood ({type(error).__name__}: {error}): save it anew") from error
    return HfVocabulary(vocabulary, _encoder(path))


def hf_vocabulary(tokenizer: dict[str, Any], folder: Path) -> Vocabulary:
    """The vocabulary of a parsed tokenizer.json, padded and with end ids as the files beside it say.

    Raises KeyError, TypeError, AttributeError or ValueError for what no tokenizer.json contains.
    """
    spell = spelling_of(tokenizer)
    model, added = tokenizer["model"], tokenizer.get("added_tokens") or []
    ids = _ids(model["vocab"])
    texts = {number: spell(token) for token, number in ids.items()}
    if model.get("unk_token") in ids:
        texts[ids[model["unk_token"]]] = b""
    for token in added:
        texts[token["id"]] = b"" if token.get("special") else token["content"].encode("utf-8", "replace")
    size = max(max(texts, default=-1) + 1, _padded_size(folder))
    if min(texts, default=0) < 0 or size > _MAX_ID:
        raise ValueError(f"ids from {min(texts)} to {size - 1}")
    ends = _end_ids(folder, ids | {token["content"]: token["id"] for token in added}, added)
    return Vocabulary(tuple(texts.get(number, b"") for number in range(size)), frozenset(n for n in ends if n < size))


def spelling_of(tokenizer: dict[str, Any]) -> Spelling:
    """How a tokenizer.json spells its tokens; raises ValueError for a way that is not known."""
    kinds = {str(part.get("type")) for name in ("decoder", "pre_tokenizer") for part in _parts(tokenizer.get(name))}
    if "ByteLevel" in kinds:
        return byte_level_bytes
    if kinds & {"ByteFallback", "Metaspace"} or tokenizer["model"].get("byte_fallback"):
        return sentencepiece_bytes
    raise ValueError(f"neither byte-level nor SentencePiece, but {', '.join(sorted(kinds)) or 'nothing'}")


@cache
def _alphabet() -> dict[str, bytes]:
    """The byte of each character of byte-level BPE: visible Latin-1 is itself, others follow from U+0100 on."""
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
    """A decoder or pre-tokenizer and, of a sequence, its members."""
    if isinstance(component, dict):
        yield component
        for name in ("decoders", "pretokenizers"):
            for part in component.get(name) or []:
                yield from _parts(part)


def _object(path: Path) -> dict[str, Any] | None:
    """A JSON object from a file; None where there is no such file. Raises ConfigError for anything else in it."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} is no JSON object")
    return value


def _padded_size(folder: Path) -> int:
    """Rows of the model's embedding; 0 where config.json does not tell."""
    config = _object(folder / "config.json") or {}
    sizes = [part.get("vocab_size") for part in (config, config.get("text_config")) if isinstance(part, dict)]
    return max((size for size in sizes if isinstance(size, int)), default=0)


def _end_ids(folder: Path, ids: dict[str, int], added: list[dict[str, Any]]) -> set[int]:
    """Ids that end a text: by the model's configuration, the tokenizer's, and well-known names."""
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

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text).ids)

    return encode
