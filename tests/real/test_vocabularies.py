"""Vocabularies of real models by their Hugging Face tokenizers: those that llama.cpp reads."""

import json
import os
from contextlib import closing
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_size_t, c_void_p
from functools import cache

import gguf
import pytest
import real_models
from sentencepiece import SentencePieceProcessor
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from tokenizers import Tokenizer

from specmesh.config import ModelSettings
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines.hf_vocabulary import bytes_of_ids
from specmesh.engines.llama.engine import LlamaDrafter
from specmesh.engines.llama.header import _InitParams as InitParams
from specmesh.engines.llama.library import ggml_function

pytestmark = [pytest.mark.real, pytest.mark.models]

GEMMA = "gemma3-270m-q4_k_m.gguf"
SMOLLM2 = "smollm2-q4_0.gguf"
HEADER = c_void_p


def of_llama(name):
    """Return the vocabulary that llama.cpp reads from a model's file."""
    path = str(real_models.path(name))
    settings = ModelSettings(engine="llama", model=path, ctx=256, max_sessions=1, threads=1)
    with closing(LlamaDrafter(settings, lambda _: None)) as engine:
        return engine.vocabulary


@pytest.fixture(scope="module")
def gemma():
    return of_llama(GEMMA)


def fingerprint(tokenizer, like):
    """Return the fingerprint by a tokenizer, for as many ids and the ends of another vocabulary."""
    return Vocabulary(bytes_of_ids(tokenizer, len(like), like.end_ids), like.end_ids).fingerprint()


@cache
def tokens_of(name):
    """Return the texts and the kinds of a model's tokens, which are arrays in its file's header.

    They are read by ggml: GGUFReader takes 17 seconds for these 262,144.
    """
    start = ggml_function("gguf_init_from_file", HEADER, c_char_p, InitParams)
    find = ggml_function("gguf_find_key", c_int64, HEADER, c_char_p)
    length = ggml_function("gguf_get_arr_n", c_size_t, HEADER, c_int64)
    text_at = ggml_function("gguf_get_arr_str", c_char_p, HEADER, c_int64, c_size_t)
    numbers = ggml_function("gguf_get_arr_data", POINTER(c_int32), HEADER, c_int64)
    header = start(os.fsencode(real_models.path(name)), InitParams(no_alloc=True))
    texts = find(header, b"tokenizer.ggml.tokens")
    kinds = numbers(header, find(header, b"tokenizer.ggml.token_type"))
    tokens = []
    for token in range(length(header, texts)):
        text = text_at(header, texts, token).decode()
        tokens.append((text, gguf.TokenType(kinds[token])))
    ggml_function("gguf_free", None, HEADER)(header)
    return tokens


def test_byte_level():
    tokenizer = Tokenizer.from_file(str(real_models.path("smollm2-mlx") / "tokenizer.json"))
    known = of_llama(SMOLLM2)
    assert fingerprint(tokenizer, known) == known.fingerprint()


def test_byte_fallback_of_a_tokenizer_json(gemma):
    """Gemma's: SentencePiece's tokens as a BPE that spells foreign bytes."""
    ids = {}
    added = []
    for token, (text, kind) in enumerate(tokens_of(GEMMA)):
        ids[text] = token
        if kind not in (gguf.TokenType.NORMAL, gguf.TokenType.BYTE):
            special = kind is not gguf.TokenType.USER_DEFINED
            added.append({"id": token, "content": text, "special": special})
    model = {"type": "BPE", "unk_token": "<unk>", "byte_fallback": True, "vocab": ids}
    content = {"model": model, "added_tokens": added, "decoder": {"type": "ByteFallback"}}

    class Written:
        """A tokenizers.Tokenizer, which would take the merges too."""

        def to_str(self):
            return json.dumps(content)

    assert fingerprint(Written(), gemma) == gemma.fingerprint()


def test_sentencepiece(gemma):
    """The same tokens in SentencePiece's own file."""
    proto = ModelProto()
    proto.trainer_spec.model_type = proto.trainer_spec.BPE
    proto.trainer_spec.byte_fallback = True
    for text, kind in tokens_of(GEMMA):
        proto.pieces.add(piece=text, score=0.0, type=int(kind))
    processor = SentencePieceProcessor(model_proto=proto.SerializeToString())
    assert fingerprint(processor, gemma) == gemma.fingerprint()
