"""A vocabulary as bytes per id: what text and fingerprints are made of."""

import codecs
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """pieces[id] are the bytes an id stands for (empty for control tokens); end_ids end a generation."""

    pieces: tuple[bytes, ...]
    end_ids: frozenset[int]

    def __len__(self) -> int:
        return len(self.pieces)

    def fingerprint(self) -> str:
        """SHA-256 over the ordered pieces, each preceded by its length: equal means same ids, same bytes."""
        digest = hashlib.sha256()
        for piece in self.pieces:
            digest.update(len(piece).to_bytes(4, "little") + piece)
        return digest.hexdigest()

    def text(self, ids: Iterable[int]) -> str:
        """The text of ids; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(self.pieces[token] for token in ids).decode("utf-8", "replace")


class TextStream:
    """Turns ids into text as they come, never emitting half a UTF-8 character."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._pieces = vocabulary.pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids: Iterable[int]) -> str:
        """Text that became complete with these ids."""
        return self._decoder.decode(b"".join(self._pieces[token] for token in ids))

    def finish(self) -> str:
        """What is left when the text ends: U+FFFD for an unfinished character, else nothing."""
        return self._decoder.decode(b"", final=True)
