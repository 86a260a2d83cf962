"""The vocabulary of a Hugging Face tokenizer as bytes per id, to compare with llama.cpp's.

tokenizer.json spells tokens in one of two ways. Byte-level BPE writes each byte as a visible character; SentencePiece
writes a space as U+2581 and bytes that are no character as <0xNN>.
"""

import json
import re
from collections.abc import Callable, Collection
from functools import cache
from typing import Any

from specmesh.core.tool_calls import TOOL_MARKS
from specmesh.errors import ConfigError

_SPACE = "\u2581"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_LOOKS_SPECIAL = re.compile(
    r"<\|.*\|>|<\uff5c.*\uff5c>|<unused.*>|<pad>|<mask>|<2mass>|\[@BOS@\]|<end_of_turn>|<end_of_utterance>|_?<EOT>",
    re.DOTALL,
)
"""Control tokens for llama.cpp and its converter, whatever the tokenizer says of them."""


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
        for token in tokenizer.get("added_tokens") or []:
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
    if '"ByteFallback"' in steps or '"Metaspace"' in steps or tokenizer["model"].get("byte_fallback"):
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
