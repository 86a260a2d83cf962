"""Vocabularies of Hugging Face tokenizers, of each kind."""

from types import SimpleNamespace

import pytest
from harness.tables import cases, rows

from specmesh.engines.hf_vocabulary import bytes_of_ids, token_bytes
from specmesh.errors import ConfigError

# --- tokenizer.json

BYTE_LEVEL, SENTENCEPIECE = rows("""
    {"type": "Sequence", "pretokenizers": [{"type": "Split"}, {"type": "ByteLevel"}]}
    {"type": "Sequence", "decoders": [{"type": "Replace"}, {"type": "ByteFallback"}]}
    """)


def test_sentencepiece_bytes_and_the_unknown():
    texts = ["<unk>", "▁the", "<0x0A>", "▁", "naïve", "<0xZZ>"]
    ids = {text: number for number, text in enumerate(texts)}
    model = {"type": "BPE", "unk_token": "<unk>", "vocab": ids}
    found = token_bytes({"model": model, "decoder": SENTENCEPIECE}, 7, ())
    assert found == (b"", b" the", b"\n", b" ", "naïve".encode(), b"<0xZZ>", b"")


def test_added_tokens():
    """Control tokens are silent but for marks of calls, as in llama.cpp."""
    [tokenizer] = rows(
        """
        {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}}, "pre_tokenizer": $BYTES,
         "added_tokens": [
           {"id": 1, "content": "b", "special": true},
           {"id": 2, "content": "<tool_call>", "special": false},
           {"id": 3, "content": "<|im_end|>", "special": false},
           {"id": 4, "content": "[TOOL_CALLS]", "special": true},
           {"id": 5, "content": "▁▁", "special": false},
           {"id": 6, "content": "</s>", "special": false}
         ]}
        """,
        BYTES=BYTE_LEVEL,
    )
    found = token_bytes(tokenizer, 7, ())
    assert found == (b"a", b"", b"<tool_call>", b"", b"[TOOL_CALLS]", b"  ", b"")


@cases(
    "tokenizer",
    """
    {}
    {"model": {"type": "WordPiece", "vocab": {"a": 0}}, "decoder": {"type": "WordPiece"}}
    {"pre_tokenizer": $BYTES, "model": {"vocab": 3}}
    {"model": {"type": "Unigram", "vocab": [["a"]]}, "decoder": $SENTENCEPIECE}
    {"pre_tokenizer": $BYTES, "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
     "added_tokens": [3]}
    """,
    BYTES=BYTE_LEVEL,
    SENTENCEPIECE=SENTENCEPIECE,
)
def test_files_that_are_none(tokenizer):
    with pytest.raises(ConfigError, match="is not one"):
        token_bytes(tokenizer, 6, ())


def test_unigram_has_a_list():
    model = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["▁a", -1.0]]}
    assert token_bytes({"model": model, "decoder": SENTENCEPIECE}, 3, ()) == (b"", b" a", b"")


# --- other kinds


class Pieces:
    """A SentencePieceProcessor."""

    PIECES = ("<unk>", "</s>", "▁the", "<0x0A>", "[TOOL_CALLS]", "dummy", "<end_of_turn>")

    def get_piece_size(self):
        return len(self.PIECES)

    def id_to_piece(self, token):
        return self.PIECES[token]

    def is_unknown(self, token):
        return token == 0

    def is_control(self, token):
        return token in (1, 4)

    def is_unused(self, token):
        return token == 5


class Encoding:
    """A tiktoken.Encoding without the id 2."""

    special_tokens_set = frozenset({"<|im_end|>", "<tool_call>"})

    def token_byte_values(self):
        return [b"a", b"\xf0\x9f"]

    def encode_single_token(self, piece):
        return {b"a": 0, b"\xf0\x9f": 1, "<|im_end|>": 3, "<tool_call>": 4}[piece]


class Tekken:
    """A Tekkenizer: its first ids are special."""

    n_words = 4

    def is_special(self, token):
        return token < 2

    def id_to_piece(self, token):
        return ("</s>", "[TOOL_CALLS]", "a", "\ufffd")[token]

    def id_to_byte_piece(self, token):
        return (b"", b"", b"a", b"\xe2")[token]


class Added(str):
    """An AddedToken of tokenizers, whose text is its str()."""

    __slots__ = ("special",)

    def __new__(cls, text, *, special):
        made = super().__new__(cls, text)
        made.special = special
        return made


def test_sentencepiece():
    found = bytes_of_ids(SimpleNamespace(sp_model=Pieces()), 8, ())
    assert found == (b"", b"", b" the", b"\n", b"[TOOL_CALLS]", b"", b"", b"")


def test_tokens_that_transformers_adds():
    """Those of a tokenizer that is not its own have no place in the model."""
    added = {1: Added("<more>", special=False), 6: Added("<extra>", special=True)}
    found = bytes_of_ids(SimpleNamespace(sp_model=Pieces(), added_tokens_decoder=added), 7, ())
    assert found[1] == b"<more>"
    assert found[6] == b""


def test_tiktoken():
    found = bytes_of_ids(SimpleNamespace(model=Encoding()), 6, ())
    assert found == (b"a", b"\xf0\x9f", b"", b"", b"<tool_call>", b"")


def test_tekken_behind_two_wrappers():
    wrapped = SimpleNamespace(instruct_tokenizer=SimpleNamespace(tokenizer=Tekken()))
    assert bytes_of_ids(wrapped, 4, ()) == (b"", b"[TOOL_CALLS]", b"a", b"\xe2")


def test_a_mark_that_ends_a_text_is_silent():
    assert bytes_of_ids(Tekken(), 4, {1})[1] == b""


def test_an_unknown_kind():
    with pytest.raises(ConfigError, match="SimpleNamespace, is of no kind that is known"):
        bytes_of_ids(SimpleNamespace(model=3), 4, ())
