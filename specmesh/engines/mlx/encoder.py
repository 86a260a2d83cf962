"""A Hugging Face tokenizer as encoder: text to ids."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines.base import bytes_of
from specmesh.engines.mlx.model import mapped
from specmesh.engines.text_coverage import NO_LIMIT, TextCoverage, bytes_lost
from specmesh.errors import EngineError

_SHORT_TEXT = 4096
"""Letters of a text whose ids are counted as fast as they are bounded."""

_KEEPING = {"Sequence", "Prepend", "Replace"}
"""Normalizers that make no text shorter: in models they put a mark in the place of a blank."""

_TYPE = re.compile(r'"type": "(\w+)"')


class MlxEncoder:
    """`Encoder` by the `tokenizers` library, which any thread may call."""

    def __init__(self, backend: Any, vocabulary: Vocabulary, coverage: TextCoverage) -> None:
        """backend: a `tokenizers.Tokenizer`. coverage: the text that its ids stand for."""
        self._backend = backend
        self._coverage = coverage
        self._closed = False
        self.vocabulary = vocabulary

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the ids of a text as `Encoder.encode`."""
        bytes_of(text)  # refuses what is no Unicode
        if self._closed:
            raise EngineError("the model is closed")
        with mapped(_failed):
            ids: list[int] = self._backend.encode(text, add_special_tokens=special).ids
        return ids

    def least_ids(self, text: str) -> int:
        """Return a lower bound of the number of ids, in next to no time."""
        return 0 if len(text) <= _SHORT_TEXT else self._coverage.least_ids(text)

    def close(self) -> None:
        """Refuse further texts."""
        self._closed = True


def coverage_of(tokenizer: Mapping[str, Any], pieces: Sequence[bytes]) -> TextCoverage:
    """Return the coverage of a tokenizer.json whose ids stand for these bytes."""
    steps = json.dumps(tokenizer.get("normalizer"))
    if any(name not in _KEEPING for name in _TYPE.findall(steps)):
        return NO_LIMIT
    model = tokenizer["model"]
    is_byte_level = '"ByteLevel"' in json.dumps(tokenizer.get("pre_tokenizer"))
    if not is_byte_level and not model.get("byte_fallback"):
        return NO_LIMIT
    longest = 0
    for piece in pieces:
        # SentencePiece has a character of three bytes for a blank, as a text may.
        size = len(piece) if is_byte_level else len(piece) + 2 * piece.count(b" ")
        longest = max(longest, size)
    for added in tokenizer.get("added_tokens") or ():
        if added.get("lstrip") or added.get("rstrip"):
            return NO_LIMIT
        longest = max(longest, len(str(added["content"]).encode("utf-8", "replace")))
    return TextCoverage(longest, bytes_lost(pieces) if is_byte_level else b"")


def _failed(reason: str) -> EngineError:
    return EngineError(f"the tokenizer failed: {reason}")
