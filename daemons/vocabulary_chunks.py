"""The vocabulary on the wire: VOCAB messages cut from it and put together again."""

import base64

from specmesh.core.vocabulary import Vocabulary
from specmesh.errors import RemoteProtocolError
from specmesh.wire.messages import Vocab, Welcome

CHUNK_BYTES = 128 * 1024
"""About how many bytes of pieces one VOCAB carries."""

MAX_VOCAB = 2**20
"""Most tokens a vocabulary is believed to have."""

MAX_VOCAB_BYTES = 64 * 2**20
"""Most bytes its pieces are taken to need, in base64."""


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
        """Begin; raises RemoteProtocolError for a size no vocabulary has."""
        if welcome.n_vocab > MAX_VOCAB:
            raise RemoteProtocolError(f"the verifier claims a vocabulary of {welcome.n_vocab} tokens")
        self._welcome = welcome
        self._pieces: list[bytes] = []
        self._size = 0

    def next_request(self) -> Vocab:
        return Vocab(len(self._pieces))

    def add(self, answer: Vocab) -> Vocabulary | None:
        """Take an answer in; the vocabulary once complete. Raises RemoteProtocolError where it is not as promised."""
        if answer.start != len(self._pieces) or not answer.pieces:
            return None
        try:
            self._pieces += [base64.b64decode(piece, validate=True) for piece in answer.pieces]
        except ValueError:  # binascii.Error is one, and what is not ASCII raises another
            raise RemoteProtocolError("the verifier's vocabulary is not base64") from None
        self._size += sum(map(len, answer.pieces))
        if len(self._pieces) > self._welcome.n_vocab or self._size > MAX_VOCAB_BYTES:
            raise RemoteProtocolError("the verifier sends more vocabulary than it has")
        if len(self._pieces) < self._welcome.n_vocab:
            return None
        vocabulary = Vocabulary(tuple(self._pieces), frozenset(self._welcome.eog_ids))
        if vocabulary.fingerprint() != self._welcome.vocab_fingerprint:
            raise RemoteProtocolError("the verifier's vocabulary does not match its own fingerprint")
        return vocabulary
