"""Long prompts, and what a tokenizer does with those it was not made for, in a process of its own."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specmesh.engines.llama import LlamaSettings, LlamaVerifier, model
from specmesh.engines.llama.model import SHORT, Tokenizer
from specmesh.engines.sandbox import Child, Json, Limits
from specmesh.errors import RequestError

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.models

MEGABYTE = 10**6


@pytest.fixture(scope="module")
def verifier(tiny_gguf: Path) -> Iterator[LlamaVerifier]:
    engine = LlamaVerifier(LlamaSettings(tiny_gguf, n_ctx=64, threads=1, gpu_layers=0))
    yield engine
    engine.close()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the texts that went to the process."""
    lengths: list[int] = []
    ask = Child.ask

    def noted(child: Child, request: Json) -> Json:
        lengths.append(len(str(request["text"])))
        return ask(child, request)

    monkeypatch.setattr(Child, "ask", noted)
    return lengths


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
def test_texts_come_back(verifier: LlamaVerifier, asked: list[int], text: str):
    """Whatever is in it; only long ones go to the process."""
    assert verifier.vocabulary.text(verifier.encode(text)) == text
    assert asked == ([len(text)] if len(text) > SHORT else [])


def test_both_ways_give_the_same_ids(verifier: LlamaVerifier):
    """Special tokens written in the text are recognised, here as there."""
    text = "the<|end|>hell<tool> " * (SHORT // 20)
    assert len(text) > SHORT
    assert verifier.encode(text) == verifier._model.encode(text)


@pytest.mark.fault("E7.83", "invalid UTF-8, as lone surrogates", "the request is refused")
@pytest.mark.parametrize("length", [1, SHORT + 1])
def test_lone_surrogates(verifier: LlamaVerifier, length: int):
    """Refused in the same words, long or short."""
    with pytest.raises(RequestError, match="not valid Unicode"):
        verifier.encode("\udc80" * length)


@pytest.mark.fault("E7.83", "a megabyte of letters without a space", "it is tokenized, and the daemon lives")
def test_a_text_that_would_end_the_daemon(make_gguf: Callable[..., Path]):
    """With some vocabularies each letter of a run takes stack, of which a daemon's threads have too little."""
    engine = LlamaVerifier(LlamaSettings(make_gguf("gpt-4o", pre="gpt-4o"), n_ctx=64, threads=1, gpu_layers=0))
    assert len(engine.encode("x" * MEGABYTE)) == MEGABYTE
    engine.close()


def test_it_has_limits(verifier: LlamaVerifier, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch):
    """What takes too long is the request's error."""
    monkeypatch.setattr(model, "TOKENIZING", Limits(2**32, 0.05))
    tokenizer = Tokenizer(tiny_gguf, verifier.vocabulary.fingerprint())
    with pytest.raises(RequestError, match="failed over this prompt: it took more than"):
        tokenizer.encode("x" * 10 * MEGABYTE)
    tokenizer.close()
