"""The vocabulary of a Hugging Face directory, as bytes."""

import json
from pathlib import Path
from typing import Any

import pytest
from harness.hf_tokenizer import directory_of

from specmesh.core.vocabulary.match import MatchKind, compare
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines import hf_vocabulary as module
from specmesh.engines.hf_vocabulary import load_hf_vocabulary, padded, token_bytes
from specmesh.engines.load import load_tokenizer
from specmesh.errors import ConfigError

tokenizers = pytest.importorskip("tokenizers")

BYTE_LEVEL: dict[str, Any] = {
    "added_tokens": [
        {"id": 4, "content": "<|end|>", "special": True},
        {"id": 5, "content": "<tool>", "special": False},
    ],
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split"}, {"type": "ByteLevel"}]},
    "model": {"type": "BPE", "vocab": {"a": 0, "Ġthe": 1, "Ċ": 2, "Ã¼": 3}, "merges": []},
}
SENTENCEPIECE: dict[str, Any] = {
    "added_tokens": [{"id": 0, "content": "<unk>", "special": True}, {"id": 1, "content": "</s>", "special": True}],
    "decoder": {"type": "Sequence", "decoders": [{"type": "Replace"}, {"type": "ByteFallback"}]},
    "model": {
        "type": "BPE",
        "unk_token": "<unk>",
        "byte_fallback": True,
        "vocab": {"<unk>": 0, "</s>": 1, "<0x0A>": 2, "▁the": 3, "ü": 4},
        "merges": [],
    },
}


def written(folder: Path, tokenizer: object, **files: object) -> Path:
    for name, value in {"tokenizer": tokenizer, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Vocabulary:
    """Its vocabulary, as where the tokenizers package is not installed."""

    def missing(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr(module.importlib, "import_module", missing)
    found = load_hf_vocabulary(folder)
    assert found.encode is None
    return found.vocabulary


def test_byte_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    vocabulary = read(written(tmp_path, BYTE_LEVEL), monkeypatch)
    assert vocabulary == Vocabulary((b"a", b" the", b"\n", "ü".encode(), b"", b"<tool>"), frozenset({4}))


def test_sentencepiece_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    vocabulary = read(written(tmp_path, SENTENCEPIECE), monkeypatch)
    assert vocabulary == Vocabulary((b"", b"", b"\n", b" the", "ü".encode()), frozenset({1}))


@pytest.mark.parametrize("kind", ["BPE", "Unigram"])
def test_sentencepiece_bytes_and_the_unknown(kind: str):
    texts = ["<unk>", "▁the", "<0x0A>", "▁", "naïve", "<0xZZ>"]
    model: dict[str, Any] = {"type": kind, "unk_token": "<unk>", "vocab": {text: n for n, text in enumerate(texts)}}
    if kind == "Unigram":
        model = {"type": kind, "unk_id": 0, "vocab": [[text, -1.0] for text in texts]}
    found = token_bytes({"model": model, "decoder": SENTENCEPIECE["decoder"]})
    assert padded(found, 7) == (b"", b" the", b"\n", b" ", "naïve".encode(), b"<0xZZ>", b"")


def test_added_tokens():
    """Control tokens, and those that llama.cpp takes for some, are silent; the others stand for their text."""
    contents = {1: "b", 2: "<tool_call>", 3: "<|im_end|>", 4: "<unused7>", 5: "▁▁"}
    added = [{"id": number, "content": text, "special": number == 1} for number, text in contents.items()]
    vocab = {"type": "BPE", "vocab": {"a": 0, "b": 1}}
    found = token_bytes({"model": vocab, "pre_tokenizer": BYTE_LEVEL["pre_tokenizer"], "added_tokens": added})
    assert padded(found, 6) == (b"a", b"", b"<tool_call>", b"", b"", b"  ")


@pytest.mark.parametrize(
    ("files", "ends"),
    [
        ({"generation_config": {"eos_token_id": [2, 3]}}, {2, 3, 4}),
        ({"config": {"eos_token_id": 1}}, {1, 4}),
        ({"tokenizer_config": {"eos_token": "a"}}, {0, 4}),
        ({"tokenizer_config": {"eos_token": {"content": "<tool>"}}}, {4, 5}),
        ({"generation_config": {"eos_token_id": 10**9}}, {4}),
    ],
)
def test_end_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, object], ends: set[int]):
    assert read(written(tmp_path, BYTE_LEVEL, **files), monkeypatch).end_ids == ends


@pytest.mark.parametrize(
    ("tokenizer", "words"),
    [
        ([], "no JSON object"),
        ({}, "not understood"),
        ({"model": {"type": "WordPiece", "vocab": {"a": 0}}, "decoder": {"type": "WordPiece"}}, "WordPiece"),
        (BYTE_LEVEL | {"model": {"vocab": 3}}, "not understood"),
        (BYTE_LEVEL | {"model": {"vocab": {"a": 10**9}}}, "not understood"),
        (BYTE_LEVEL | {"model": {"vocab": {"a": -1}}}, "not understood"),
        (BYTE_LEVEL | {"added_tokens": [3]}, "not understood"),
    ],
)
def test_files_that_are_none(tmp_path: Path, tokenizer: object, words: str):
    with pytest.raises(ConfigError, match=words) as caught:
        load_hf_vocabulary(written(tmp_path, tokenizer))
    assert str(tmp_path / "tokenizer.json") in str(caught.value)


@pytest.mark.models
@pytest.mark.fault("E7.78")
def test_gguf_and_directory_of_one_model_agree(tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """llama.cpp's bytes of a GGUF are those worked out here of a directory with the same tokens."""
    pytest.importorskip("gguf")
    pytest.importorskip("llama_cpp")
    folder = directory_of(tiny_gguf, tmp_path / "hf")
    mine = read(folder, monkeypatch)
    monkeypatch.undo()
    theirs = load_tokenizer(tiny_gguf).vocabulary
    assert mine == theirs
    assert compare(mine, theirs).verdict is MatchKind.SAME
