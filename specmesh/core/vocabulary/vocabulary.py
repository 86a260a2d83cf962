"""A vocabulary as bytes per id: what text and fingerprints are made of."""

import codecs
import hashlib
from collections.abc import Iterable, Iterator
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
        for part in framed(self.pieces):
            digest.update(part)
        return digest.hexdigest()

    def text(self, ids: Iterable[int]) -> str:
        """The text of ids; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(self.pieces[token] for token in ids).decode("utf-8", "replace")


def framed(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The bytes that a fingerprint is taken over: each piece behind its length as u32."""
    return (len(piece).to_bytes(4, "little") + piece for piece in pieces)


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
