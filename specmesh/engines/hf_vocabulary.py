"""The vocabulary of a Hugging Face tokenizer as bytes per id, without any model library.

tokenizer.json spells tokens in one of two ways. Byte-level BPE writes each byte as a visible character; SentencePiece
writes a space as U+2581 and bytes that are no character as <0xNN>. llama.cpp's GGUF files keep those spellings, and
llama.cpp gives the bytes; here they are worked out, so that both can be compared.
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

Spelling = Callable[[str], bytes]
"""From a token as a file spells it to its bytes."""

_SPACE = "\u2581"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_LOOKS_SPECIAL = re.compile(
    r"<\|.*\|>|<\uff5c.*\uff5c>|<unused.*>|<pad>|<mask>|<2mass>|\[@BOS@\]|<end_of_turn>|<end_of_utterance>|_?<EOT>",
    re.DOTALL,
)
"""Tokens that llama.cpp and its converter take for control tokens, whatever the tokenizer says of them."""

_MAX_ID = 2**21
_ENDS = frozenset(
    {"</s>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>",
     "<eos>", "<EOT>", "<|return|>"}
)  # fmt: skip
"""Special tokens that end a text by their names, as llama.cpp takes them."""


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """A model's vocabulary without the model; `encode` is None where what it takes is not installed."""

    vocabulary: Vocabulary
    encode: Callable[[str], list[int]] | None


def byte_level_bytes(token: str) -> bytes:
    """The bytes of a byte-level BPE token; characters outside that alphabet stand for themselves."""
    alphabet = _alphabet()
    return b"".join(alphabet.get(letter) or letter.encode("utf-8", "replace") for letter in token)


def sentencepiece_bytes(token: str) -> bytes:
    """The bytes of a SentencePiece token."""
    byte = _BYTE.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else _plain(token)


def load_hf_vocabulary(folder: Path) -> TokenizerFile:
    """Read a directory's tokenizer.json; raises ConfigError where it is missing or not understood."""
    path = folder / "tokenizer.json"
    tokenizer = _object(path)
    if tokenizer is None:
        raise ConfigError(f"{folder} has no tokenizer.json: name the directory of a Hugging Face model that has one")
    try:
        vocabulary = hf_vocabulary(tokenizer, folder)
    except ConfigError as error:
        raise ConfigError(f"{path} is not understood ({error}): save it anew") from error
    return TokenizerFile(vocabulary, _encoder(path))


def hf_vocabulary(tokenizer: dict[str, Any], folder: Path) -> Vocabulary:
    """The vocabulary of a parsed tokenizer.json, padded and with end ids as the files beside it say.

    Raises ConfigError for what no tokenizer.json contains.
    """
    known = token_bytes(tokenizer)
    added = tokenizer.get("added_tokens") or []
    size = max(max(known, default=-1) + 1, _padded_size(folder))
    ids = _ids(tokenizer["model"]["vocab"]) | {token["content"]: token["id"] for token in added}
    ends = _end_ids(folder, ids, added)
    return Vocabulary(padded(known, size), frozenset(end for end in ends if end < size))


def token_bytes(tokenizer: dict[str, Any]) -> dict[int, bytes]:
    """The bytes of each id of a parsed tokenizer.json; empty for control tokens and the unknown one.

    Raises ConfigError where it is not understood.
    """
    try:
        return _token_bytes(tokenizer)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"its tokenizer is not one: {type(error).__name__}: {error}") from error


def _token_bytes(tokenizer: dict[str, Any]) -> dict[int, bytes]:
    spell, model = spelling_of(tokenizer), tokenizer["model"]
    ids = _ids(model["vocab"])
    known = {number: spell(token) for token, number in ids.items()}
    unknown = model.get("unk_id") if model.get("unk_token") is None else ids.get(model["unk_token"])
    if unknown in known and spell is sentencepiece_bytes:
        known[unknown] = b""
    known |= {token["id"]: _added(token) for token in tokenizer.get("added_tokens") or []}
    if min(known, default=0) < 0 or max(known, default=0) >= _MAX_ID:
        raise ValueError(f"ids from {min(known)} to {max(known)}")
    return known


def padded(known: Mapping[int, bytes], size: int) -> tuple[bytes, ...]:
    """`size` rows; empty where no token stands for one."""
    return tuple(known.get(number, b"") for number in range(size))


def spelling_of(tokenizer: dict[str, Any]) -> Spelling:
    """How a tokenizer.json spells its tokens; raises ValueError for a way that is not known."""
    places = ("decoder", "pre_tokenizer", "normalizer")
    kinds = {str(part.get("type")) for name in places for part in _parts(tokenizer.get(name))}
    if "ByteLevel" in kinds:
        return byte_level_bytes
    if kinds & {"ByteFallback", "Metaspace"} or tokenizer["model"].get("byte_fallback"):
        return sentencepiece_bytes
    raise ValueError(f"neither byte-level nor SentencePiece, but {', '.join(sorted(kinds)) or 'nothing'}")


def _added(token: dict[str, Any]) -> bytes:
    """A token added to the model's own: a control token, or one that stands for its text."""
    text = str(token["content"])
    return b"" if token.get("special") or _LOOKS_SPECIAL.fullmatch(text) else _plain(text)


def _plain(text: str) -> bytes:
    return text.replace(_SPACE, " ").encode("utf-8", "replace")


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
    """A decoder, pre-tokenizer or normaliser and, of a sequence, its members."""
    if isinstance(component, dict):
        yield component
        for name in ("decoders", "pretokenizers", "normalizers"):
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
