"""A vocabulary: the bytes that each id stands for."""

import base64
import hashlib
from dataclasses import dataclass

CHUNK_BYTES = 128 * 1024  # about how many bytes of pieces one VOCAB carries


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A model's tokens.

    pieces: the bytes of each id; empty for control tokens. end_ids: ids that end a generation.
    """

    pieces: tuple[bytes, ...]
    end_ids: frozenset[int]

    def __len__(self) -> int:
        return len(self.pieces)

    def fingerprint(self) -> str:
        """Return the SHA-256 over the pieces in order, each preceded by its length (u32).

        If it is equal, so are the bytes of all ids.
        """
        digest = hashlib.sha256()
        for piece in self.pieces:
            digest.update(len(piece).to_bytes(4, "little") + piece)
        return digest.hexdigest()


def chunk(vocabulary: Vocabulary, start: int) -> list[str]:
    """Return pieces from id `start` on in base64, as many as one VOCAB carries.

    Past the end there are none.
    """
    pieces: list[str] = []
    size = 0
    for piece in vocabulary.pieces[start:]:
        encoded = base64.b64encode(piece).decode()
        pieces.append(encoded)
        size += len(encoded) + 3
        if size >= CHUNK_BYTES:
            break
    return pieces
