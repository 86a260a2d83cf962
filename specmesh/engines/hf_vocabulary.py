"""Vocabularies of Hugging Face tokenizers: the bytes that each id stands for.

They equal those that llama.cpp has of the same model as GGUF, so that a drafter of either kind fits
a target of the other. There are four kinds of tokenizers:

| kind | spells its tokens |
|---|---|
| tokenizer.json, byte-level BPE | each byte as a visible character |
| tokenizer.json or SentencePiece | a space as U+2581, and bytes that are no character as <0xNN> |
| tiktoken | as bytes |
| Mistral's tekken | as bytes, behind the special tokens |

Control tokens have no bytes, except for marks of calls and thoughts: some models have control
tokens for these, but they are text.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator
from functools import cache
from typing import Any

from specmesh.core.text.tool_formats import TOOL_MARKS
from specmesh.errors import ConfigError

_SPACE = "\u2581"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_LOOKS_SPECIAL = re.compile(
    r"<\|.*\|>|<\uff5c.*\uff5c>|<unused.*>|<pad>|<mask>|<2mass>|\[@BOS@\]"
    r"|<end_of_turn>|<end_of_utterance>|_?<EOT>|</s>|<eos>|<turn\|>|\[EO[TS]\]",
    re.DOTALL,
)
"""Control tokens for llama.cpp and its converter, whatever the tokenizer calls them."""

Reader = Callable[[Any, Collection[int]], dict[int, bytes]]
"""Returns the bytes of the ids of a tokenizer; the second argument: ids that end a text."""

_WITHIN = (
    "backend_tokenizer", "sp_model", "tokenizer", "_tokenizer", "instruct_tokenizer", "model",
    "_model",
)  # fmt: skip
"""Attributes by which tokenizers wrap others: transformers', vLLM's, Mistral's and models' own."""
_DEPTH = 3  # wrappers around a tokenizer


def token_bytes(tokenizer: dict[str, Any], size: int, ends: Collection[int]) -> tuple[bytes, ...]:
    """Return the bytes of the first `size` ids of a tokenizer.json. Raises ConfigError.

    The unknown token and control tokens have none, except for marks of calls and thoughts that are
    no `ends`.
    """
    known = _read(_of_json, tokenizer, ends)
    return tuple(known.get(token, b"") for token in range(size))


def byte_level_bytes(token: str) -> bytes:
    """Return the bytes of a byte-level BPE token.

    Characters outside of that alphabet stand for themselves.
    """
    alphabet = _alphabet()
    return b"".join(alphabet.get(letter) or letter.encode("utf-8", "replace") for letter in token)


def sentencepiece_bytes(token: str) -> bytes:
    byte = _BYTE.fullmatch(token)
    if not byte:
        return _plain(token)
    return bytes([int(byte[1], 16)])


def _inner(tokenizer: Any) -> Iterator[Any]:
    """Yield a tokenizer and those that it wraps, the outer ones first."""
    level = [tokenizer]
    for _ in range(_DEPTH + 1):
        yield from level
        wrapped = [getattr(one, name, None) for one in level for name in _WITHIN]
        level = [one for one in wrapped if one is not None]


def _read(read: Reader, source: Any, ends: Collection[int]) -> dict[int, bytes]:
    try:
        return read(source, ends)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ConfigError(f"its tokenizer is not one: {type(error).__name__}: {error}") from error


# --- tokenizer.json


def _of_backend(backend: Any, ends: Collection[int]) -> dict[int, bytes]:
    return _of_json(json.loads(backend.to_str()), ends)


def _of_json(tokenizer: dict[str, Any], ends: Collection[int]) -> dict[int, bytes]:
    spell = _spelling_of(tokenizer)
    model = tokenizer["model"]
    ids: dict[str, int] = model["vocab"]
    if model.get("type") == "Unigram":  # a list, with a score for each
        ids = {text: token for token, (text, _) in enumerate(model["vocab"])}
    known = {token: spell(text) for text, token in ids.items()}
    unknown = ids.get(model.get("unk_token"), model.get("unk_id"))
    if unknown in known and spell is sentencepiece_bytes:
        known[unknown] = b""
    for added in list[dict[str, Any]](tokenizer.get("added_tokens") or []):
        text = str(added["content"])
        known[added["id"]] = _added_bytes(added["id"], text, ends, special=added.get("special"))
    return known


def _spelling_of(tokenizer: dict[str, Any]) -> Callable[[str], bytes]:
    """Return the function from a token's spelling to its bytes.

    Raises ValueError for an unknown kind.
    """
    steps = json.dumps([tokenizer.get(name) for name in ("decoder", "pre_tokenizer", "normalizer")])
    if '"ByteLevel"' in steps:
        return byte_level_bytes
    has_sentencepiece_steps = '"ByteFallback"' in steps or '"Metaspace"' in steps
    if has_sentencepiece_steps or tokenizer["model"].get("byte_fallback"):
        return sentencepiece_bytes
    raise ValueError("neither byte-level nor SentencePiece")


def _added_bytes(token: int, text: str, ends: Collection[int], *, special: object) -> bytes:
    """Return the bytes of a token beside the model's own. special: it is a control token."""
    is_control = special or _LOOKS_SPECIAL.fullmatch(text)
    is_mark = text in TOOL_MARKS and token not in ends
    return b"" if is_control and not is_mark else _plain(text)


def _added_to(tokenizer: Any, ends: Collection[int]) -> dict[int, bytes]:
    """Return the bytes of the ids that transformers added; other tokenizers have no such ids."""
    added: dict[int, Any] = getattr(tokenizer, "added_tokens_decoder", {})
    known = dict[int, bytes]()
    for token, one in added.items():
        known[token] = _added_bytes(token, str(one), ends, special=getattr(one, "special", True))
    return known


# --- tokenizers of other libraries


def _of_sentencepiece(processor: Any, ends: Collection[int]) -> dict[int, bytes]:
    """Read a SentencePieceProcessor."""
    known = dict[int, bytes]()
    for token in range(processor.get_piece_size()):
        piece = processor.id_to_piece(token)
        silent = processor.is_unknown(token) or processor.is_unused(token)
        is_control = processor.is_control(token) or _LOOKS_SPECIAL.fullmatch(piece)
        if silent or is_control:
            known[token] = _added_bytes(token, piece, ends, special=True)
        else:
            known[token] = sentencepiece_bytes(piece)
    return known


def _of_tiktoken(encoding: Any, ends: Collection[int]) -> dict[int, bytes]:
    """Read a tiktoken.Encoding: it knows which texts are special, and may leave ids out."""
    known = dict[int, bytes]()
    for piece in encoding.token_byte_values():
        known[encoding.encode_single_token(piece)] = piece
    for text in encoding.special_tokens_set:
        token = encoding.encode_single_token(text)
        known[token] = _added_bytes(token, text, ends, special=True)
    return known


def _of_tekken(tekkenizer: Any, ends: Collection[int]) -> dict[int, bytes]:
    """Read a Tekkenizer of mistral_common."""
    known = dict[int, bytes]()
    for token in range(tekkenizer.n_words):
        piece = tekkenizer.id_to_piece(token)
        if tekkenizer.is_special(token):
            known[token] = _added_bytes(token, piece, ends, special=True)
        else:
            known[token] = tekkenizer.id_to_byte_piece(token)
    return known


_READERS: dict[str, Reader] = {
    "to_str": _of_backend,
    "token_byte_values": _of_tiktoken,
    "id_to_byte_piece": _of_tekken,
    "get_piece_size": _of_sentencepiece,
}
"""The readers, by a method that only tokenizers of their kinds have."""


def bytes_of_ids(tokenizer: Any, size: int, ends: Collection[int]) -> tuple[bytes, ...]:
    """Return the bytes of the first `size` ids of a tokenizer, of whatever kind.

    tokenizer: transformers', or one that wraps a known kind. ends: ids that end a text.
    Raises ConfigError.
    """
    for inner in _inner(tokenizer):
        for method, read in _READERS.items():
            if callable(getattr(inner, method, None)):
                known = _read(read, inner, ends)
                if read is not _of_backend:  # whose JSON has them all
                    known |= _read(_added_to, tokenizer, ends)
                return tuple(known.get(token, b"") for token in range(size))
    kind = type(tokenizer).__name__
    reason = f"its tokenizer, a {kind}, is of no kind that is known"
    raise ConfigError(f"{reason}: byte-level BPE, SentencePiece, tiktoken or tekken")


def _plain(text: str) -> bytes:
    return text.replace(_SPACE, " ").encode("utf-8", "replace")


@cache
def _alphabet() -> dict[str, bytes]:
    """Return the bytes that the characters of byte-level BPE stand for.

    Visible Latin-1 stands for itself. The other bytes follow from U+0100 on.
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    alphabet = dict[str, bytes]()
    following = 0x100
    for byte in range(256):
        character = byte
        if byte not in visible:
            character = following
            following += 1
        alphabet[chr(character)] = bytes([byte])
    return alphabet
