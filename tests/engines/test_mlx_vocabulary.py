"""Bytes per id from a tokenizer.json, as llama.cpp gives them."""

import pytest

from specmesh.engines.mlx_vocabulary import byte_alphabet, pieces
from specmesh.errors import ConfigError

BYTE_LEVEL = {"type": "Sequence", "pretokenizers": [{"type": "Split"}, {"type": "ByteLevel"}]}
METASPACE = {"type": "Sequence", "decoders": [{"type": "Replace"}, {"type": "ByteFallback"}]}


def added(token, content, *, special=False):
    return {"id": token, "content": content, "special": special}


def test_alphabet_is_every_byte_once():
    """256 characters for 256 bytes; a space is written as U+0120, a line feed as U+010A."""
    alphabet = byte_alphabet()
    assert sorted(alphabet.values()) == list(range(256))
    assert (alphabet["\u0120"], alphabet["\u010a"], alphabet["!"]) == (0x20, 0x0A, 0x21)


def test_byte_level():
    """Characters are bytes, half a UTF-8 character too; those outside the alphabet stand for themselves."""
    vocab = {"\u0120the": 0, "\u00e3\u0123": 1, "!": 2, "\u65e5": 3, "<0x41>": 4}
    found = pieces({"model": {"type": "BPE", "vocab": vocab}, "pre_tokenizer": BYTE_LEVEL}, 6)
    assert found == (b" the", b"\xe3\x81", b"!", "\u65e5".encode(), b"<0x41>", b"")


@pytest.mark.parametrize("kind", ["BPE", "Unigram"])
def test_sentence_piece(kind):
    """U+2581 is a space, <0xNN> a byte, the unknown token nothing."""
    texts = ["<unk>", "\u2581the", "<0x0A>", "\u2581", "na\u00efve", "<0xZZ>"]
    model = {"type": kind, "unk_token": "<unk>", "vocab": {text: token for token, text in enumerate(texts)}}
    if kind == "Unigram":
        model = {"type": kind, "unk_id": 0, "vocab": [[text, -1.0] for text in texts]}
    found = pieces({"model": model, "decoder": METASPACE}, 6)
    assert found == (b"", b" the", b"\n", b" ", "na\u00efve".encode(), b"<0xZZ>")


def test_added_tokens():
    """Control tokens, and those that look like some, are silent; the others stand for their text."""
    told = {
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}},
        "pre_tokenizer": BYTE_LEVEL,
        "added_tokens": [
            added(1, "b", special=True),
            added(2, "<tool_call>"),
            added(3, "<|im_end|>"),
            added(4, "<unused7>"),
            added(5, "\u2581\u2581"),
            added(9, "beyond the rows"),
        ],
    }
    assert pieces(told, 7) == (b"a", b"", b"<tool_call>", b"", b"", b"  ", b"")


@pytest.mark.parametrize("model", [{}, {"type": "WordPiece", "vocab": {"##a": 0}}])
def test_not_understood(model):
    """A tokenizer of another kind is refused, not guessed at."""
    with pytest.raises(ConfigError, match="tokenizer"):
        pieces({"model": model}, 2)
