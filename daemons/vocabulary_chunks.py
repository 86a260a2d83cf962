"""The vocabulary on the wire: VOCAB messages cut from it and put together again."""

import base64
import binascii

from specmesh.core.vocabulary import Vocabulary
from specmesh.errors import RemoteProtocolError
from specmesh.wire.messages import Vocab, Welcome

CHUNK_BYTES = 128 * 1024
"""About how many bytes of pieces one VOCAB carries."""


def vocabulary_chunk(vocabulary: Vocabulary, start: int) -> Vocab:
    """The VOCAB answer from id `start` on; empty past the end."""
    pieces: list[str] = []
    size = 0
    for piece in vocabulary.pieces[start:]:
        pieces.append(base64.b64encode(piece).decode())
        size += len(pieces[-1]) + 3
        if size >= CHUNK_BYTES:
            break
    return Vocab(start, pieces)


class VocabularyDownload:
    """Collects VOCAB answers in order and checks the whole against WELCOME's fingerprint."""

    def __init__(self, welcome: Welcome) -> None:
        self._welcome = welcome
        self._pieces: list[bytes] = []

    def next_request(self) -> Vocab:
        """What to ask for now."""
        return Vocab(len(self._pieces))

    def add(self, answer: Vocab) -> Vocabulary | None:
        """Take an answer in; the vocabulary once complete. Raises RemoteProtocolError where it is not as promised."""
        if answer.start != len(self._pieces) or not answer.pieces:
            return None
        try:
            self._pieces += [base64.b64decode(piece, validate=True) for piece in answer.pieces]
        except binascii.Error:
            raise RemoteProtocolError("the verifier's vocabulary is not base64") from None
        if len(self._pieces) < self._welcome.n_vocab:
            return None
        vocabulary = Vocabulary(tuple(self._pieces), frozenset(self._welcome.eog_ids))
        if vocabulary.fingerprint() != self._welcome.vocab_fingerprint:
            raise RemoteProtocolError("the verifier's vocabulary does not match its own fingerprint")
        return vocabulary
