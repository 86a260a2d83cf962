"""The bytes of each id from a Hugging Face tokenizer, the same as llama.cpp gives for the model's GGUF.

Two spellings exist. Byte-level BPE (GPT-2 and its heirs) writes each byte as a printable character. SentencePiece
models write a space as U+2581 and a lone byte as <0xNN>.
"""

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from specmesh.errors import ConfigError

_SPACE = "\u2581"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_LOOKS_SPECIAL = re.compile(
    r"<\|.*\|>|<\uff5c.*\uff5c>|<unused.*>|<pad>|<mask>|<2mass>|\[@BOS@\]|<end_of_turn>|<end_of_utterance>|_?<EOT>",
    re.DOTALL,
)
"""Tokens that llama.cpp and its converter take for control tokens, whatever the tokenizer says of them."""


def pieces(tokenizer: Mapping[str, Any], n_vocab: int) -> tuple[bytes, ...]:
    """Bytes per id, `n_vocab` of them; empty for control tokens, and for rows no token stands for.

    `tokenizer` is a parsed tokenizer.json. Raises ConfigError for one whose tokens are not understood.
    """
    model = tokenizer.get("model") or {}
    byte_level = _has_byte_level(tokenizer)
    if not byte_level and model.get("type") not in ("BPE", "Unigram"):
        raise ConfigError(f"its tokenizer is a {model.get('type')}: byte-level BPE and SentencePiece models work")
    found = [b""] * n_vocab
    for token, text in _tokens(model):
        if 0 <= token < n_vocab:
            found[token] = _byte_level(text) if byte_level else _sentence_piece(text)
    if not byte_level and 0 <= _unknown(model) < n_vocab:
        found[_unknown(model)] = b""
    for added in tokenizer.get("added_tokens") or ():
        if 0 <= added["id"] < n_vocab:
            found[added["id"]] = _added(added)
    return tuple(found)


@functools.cache
def byte_alphabet() -> Mapping[str, int]:
    """The byte that each character of GPT-2's alphabet stands for."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + index): byte for index, byte in enumerate(hidden)}


def _tokens(model: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    vocab = model.get("vocab") or {}
    if isinstance(vocab, Mapping):
        return ((int(token), str(text)) for text, token in vocab.items())
    return ((token, str(entry[0])) for token, entry in enumerate(vocab))


def _unknown(model: Mapping[str, Any]) -> int:
    """The id of the unknown token, -1 for none."""
    if model.get("type") == "Unigram":
        return -1 if model.get("unk_id") is None else int(model["unk_id"])
    return int((model.get("vocab") or {}).get(model.get("unk_token"), -1))


def _has_byte_level(tokenizer: Mapping[str, Any]) -> bool:
    parts = [tokenizer.get(name) for name in ("pre_tokenizer", "decoder", "normalizer")]
    while parts:
        part = parts.pop()
        if isinstance(part, Mapping):
            if part.get("type") == "ByteLevel":
                return True
            parts.extend(part.values())
        elif isinstance(part, list):
            parts.extend(part)
    return False


def _byte_level(text: str) -> bytes:
    alphabet = byte_alphabet()
    return b"".join(bytes((alphabet[letter],)) if letter in alphabet else letter.encode() for letter in text)


def _sentence_piece(text: str) -> bytes:
    byte = _BYTE.fullmatch(text)
    return bytes((int(byte[1], 16),)) if byte else text.replace(_SPACE, " ").encode()


def _added(added: Mapping[str, Any]) -> bytes:
    """A token added to the model's own: a control token, or one that stands for its text."""
    text = str(added["content"])
    if added.get("special") or _LOOKS_SPECIAL.fullmatch(text):
        return b""
    return text.replace(_SPACE, " ").encode()
