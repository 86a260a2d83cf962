"""Byte-level tokenizers as Hugging Face directories have them."""

import json
from pathlib import Path
from typing import Any

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
MODEL = {
    "type": "BPE",
    "dropout": None,
    "unk_token": None,
    "fuse_unk": False,
    "byte_fallback": False,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
}


def tokenizer(vocab: dict[str, int], merges: list[Any], added: dict[int, tuple[str, bool]]) -> dict[str, Any]:
    """tokenizer.json; `added` are (text, special) by id."""
    listed = [{"id": token, "content": text, "special": special} for token, (text, special) in added.items()]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "normalizer": None,
        "post_processor": None,
        "pre_tokenizer": BYTE_LEVEL,
        "decoder": BYTE_LEVEL,
        "added_tokens": [one | FLAGS for one in listed],
        "model": MODEL | {"vocab": vocab, "merges": merges},
    }


def directory_of(path: Path, folder: Path) -> Path:
    """Make a directory with the tokenizer of a byte-level GGUF, without weights; returns `folder`."""
    import gguf  # noqa: PLC0415 - tests without it do without this

    fields = gguf.GGUFReader(path).fields
    tokens, types, merges = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "token_type", "merges"))
    kinds = list(enumerate(zip(tokens, types, strict=True)))
    vocab = {text: token for token, (text, kind) in kinds if kind == 1}
    added = {token: (text, kind == 3) for token, (text, kind) in kinds if kind in {3, 4}}
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(vocab, merges, added)))
    (folder / "config.json").write_text(json.dumps({"vocab_size": len(tokens)}))
    return folder
