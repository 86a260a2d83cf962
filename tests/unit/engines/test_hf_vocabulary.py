"""The vocabulary of a Hugging Face directory, as bytes."""

from typing import Any

import pytest

from specmesh.engines.mlx.model import token_bytes
from specmesh.errors import ConfigError

BYTE_LEVEL: dict[str, Any] = {
    "added_tokens": [
        {"id": 4, "content": "<|end|>", "special": True},
        {"id": 5, "content": "<tool>", "special": False},
    ],
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split"}, {"type": "ByteLevel"}]},
    "model": {"type": "BPE", "vocab": {"a": 0, "Ġthe": 1, "Ċ": 2, "Ã¼": 3}, "merges": []},
}
SENTENCEPIECE: dict[str, Any] = {"type": "Sequence", "decoders": [{"type": "Replace"}, {"type": "ByteFallback"}]}


def test_byte_level():
    assert token_bytes(BYTE_LEVEL, 6, {4}) == (b"a", b" the", b"\n", "ü".encode(), b"", b"<tool>")


def test_sentencepiece_bytes_and_the_unknown():
    texts = ["<unk>", "▁the", "<0x0A>", "▁", "naïve", "<0xZZ>"]
    model: dict[str, Any] = {"type": "BPE", "unk_token": "<unk>", "vocab": {text: n for n, text in enumerate(texts)}}
    found = token_bytes({"model": model, "decoder": SENTENCEPIECE}, 7, ())
    assert found == (b"", b" the", b"\n", b" ", "naïve".encode(), b"<0xZZ>", b"")


def test_added_tokens():
    """Control tokens, and those that llama.cpp takes for some, are silent, but for marks of calls; the others stand for
    their text."""
    contents = {1: "b", 2: "<tool_call>", 3: "<|im_end|>", 4: "[TOOL_CALLS]", 5: "▁▁"}
    added = [{"id": number, "content": text, "special": number in (1, 4)} for number, text in contents.items()]
    vocab = {"type": "BPE", "vocab": {"a": 0, "b": 1}}
    found = token_bytes({"model": vocab, "pre_tokenizer": BYTE_LEVEL["pre_tokenizer"], "added_tokens": added}, 6, ())
    assert found == (b"a", b"", b"<tool_call>", b"", b"[TOOL_CALLS]", b"  ")


@pytest.mark.parametrize(
    "tokenizer",
    [
        {},
        {"model": {"type": "WordPiece", "vocab": {"a": 0}}, "decoder": {"type": "WordPiece"}},
        BYTE_LEVEL | {"model": {"vocab": 3}},
        {"model": {"type": "Unigram", "vocab": [["a", -1.0]]}, "decoder": SENTENCEPIECE},
        BYTE_LEVEL | {"added_tokens": [3]},
    ],
)
def test_files_that_are_none(tokenizer: dict[str, Any]):
    with pytest.raises(ConfigError, match="is not one"):
        token_bytes(tokenizer, 6, ())
