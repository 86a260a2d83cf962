"""Byte-level BPE over the training text, and token ids for text.

Splitting follows GPT-2 (Radford et al. 2019), because llama.cpp knows that rule by name and so
gives the same ids.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB = 2048
END = "<|endoftext|>"
END_ID = 0


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Train a tokenizer of `VOCAB` tokens: the end marker, 256 bytes, and merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    return tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a `tokenizer.json`."""
    return Tokenizer.from_file(str(path))


def encode_files(tokenizer: Tokenizer, files: dict[str, str]) -> list[list[int]]:
    """Return the ids of each file, with the end marker at its end."""
    encoded: list[list[int]] = []
    for text in files.values():
        ids = tokenizer.encode(text).ids
        encoded.append([*ids, END_ID])
    return encoded
