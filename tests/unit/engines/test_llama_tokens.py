"""Long prompts, and what a tokenizer does with those it was not made for."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specmesh.engines.llama import LlamaSettings, LlamaVerifier
from specmesh.engines.llama.model import SHORT
from specmesh.errors import RequestError

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.models

MEGABYTE = 10**6


@pytest.fixture(scope="module")
def verifier(tiny_gguf: Path) -> Iterator[LlamaVerifier]:
    engine = LlamaVerifier(LlamaSettings(tiny_gguf, n_ctx=64, threads=1, gpu_layers=0))
    yield engine
    engine.close()


@pytest.mark.fault(
    "E7.83", "empty and megabyte prompts, NUL bytes, emoji, special tokens in the text", "the ids of exactly that text"
)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "\0",
        "a\0b\0" * SHORT,
        "the hell \U0001f600\u4e2d " * SHORT,
        "x" * MEGABYTE,
        "lorem ipsum " * (MEGABYTE // 12),
        " " * MEGABYTE,
    ],
    ids=["empty", "NUL", "NULs", "emoji", "one word", "words", "spaces"],
)
def test_texts_come_back(verifier: LlamaVerifier, text: str):
    assert verifier.vocabulary.text(verifier.encode(text)) == text


@pytest.mark.fault("E7.83", "invalid UTF-8, as lone surrogates", "the request is refused")
def test_lone_surrogates(verifier: LlamaVerifier):
    with pytest.raises(RequestError, match="not valid Unicode"):
        verifier.encode("\udc80")


@pytest.mark.fault("E7.83", "a megabyte of letters without a space", "it is tokenized, and the daemon lives")
def test_a_text_that_would_end_the_daemon(make_gguf: Callable[..., Path]):
    """With some vocabularies each letter of a run takes stack, of which a daemon's threads have too little."""
    engine = LlamaVerifier(LlamaSettings(make_gguf("gpt-4o", pre="gpt-4o"), n_ctx=64, threads=1, gpu_layers=0))
    assert len(engine.encode("x" * MEGABYTE)) == MEGABYTE
    engine.close()
