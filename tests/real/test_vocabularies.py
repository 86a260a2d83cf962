"""Vocabularies of real models by their Hugging Face tokenizers: those that llama.cpp reads."""

import json
from contextlib import closing
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

pytestmark = [pytest.mark.real, pytest.mark.models]

GEMMA = "gemma3-270m-q4_k_m.gguf"
SMOLLM2 = "smollm2-q4_0.gguf"


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
    """Return the texts and the kinds of a model's tokens, which gguf reads for seconds."""
    fields = gguf.GGUFReader(real_models.path(name)).fields
    texts = fields["tokenizer.ggml.tokens"].contents()
    kinds = fields["tokenizer.ggml.token_type"].contents()
    return list(zip(texts, map(gguf.TokenType, kinds), strict=True))


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
