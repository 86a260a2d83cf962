"""The vocabulary exchange: how a drafter gets the vocabulary of its verifier."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from specmesh.core.states import state_after
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.wire.messages import Vocab, Welcome

MAX_VOCAB = 2**20  # tokens of a vocabulary that is believed
MAX_VOCAB_BYTES = 64 * 2**20  # bytes of its pieces, in base64
RETRY = 1.0  # seconds after which an unanswered VOCAB is sent again
MOST_KEPT = 2
"""Vocabularies of verifiers that are kept: a verifier may change its model back and forth."""

Pieces = tuple[bytes, ...]


class VocabularyState(Enum):
    """How well a drafter knows the vocabulary of its verifier."""

    NEW = "new"  # no WELCOME has come
    FETCHING = "fetching"  # its parts are gathered: asked for one after the other, or kept
    COMPARING = "comparing"  # it is whole, and compared with that of the draft model
    KNOWN = "known"  # it is compared: it may suit or not
    UNUSABLE = "unusable"  # what came is no vocabulary, or not the one that was announced


class VocabularyEvent(Enum):
    """An event that changes the state.

    - ANNOUNCED: a WELCOME names a vocabulary. One that is known or unusable, and still the same, is
      no event.
    - COMPLETE: all its parts are there. Those of the draft model's own vocabulary, and of one that
      was fetched before and kept, are there at once.
    - REFUSED: the verifier claims too much, or its parts do not fit its claim.
    - COMPARED: it was compared.
    """

    ANNOUNCED = "announced"
    COMPLETE = "complete"
    REFUSED = "refused"
    COMPARED = "compared"


VOCABULARY_STATES: Mapping[VocabularyState, Mapping[VocabularyEvent, VocabularyState]] = {
    VocabularyState.NEW: {VocabularyEvent.ANNOUNCED: VocabularyState.FETCHING},
    VocabularyState.FETCHING: {
        VocabularyEvent.ANNOUNCED: VocabularyState.FETCHING,
        VocabularyEvent.COMPLETE: VocabularyState.COMPARING,
        VocabularyEvent.REFUSED: VocabularyState.UNUSABLE,
    },
    VocabularyState.COMPARING: {
        VocabularyEvent.ANNOUNCED: VocabularyState.FETCHING,
        VocabularyEvent.COMPARED: VocabularyState.KNOWN,
    },
    VocabularyState.KNOWN: {VocabularyEvent.ANNOUNCED: VocabularyState.FETCHING},
    VocabularyState.UNUSABLE: {VocabularyEvent.ANNOUNCED: VocabularyState.FETCHING},
}
"""The state that follows each event, in each state."""


@dataclass(frozen=True, slots=True)
class _Claim:
    """A verifier's description of its vocabulary, on which the translation of its ids depends."""

    fingerprint: str
    n_vocab: int
    end_ids: frozenset[int]


class VocabularyExchange:
    """A drafter's part in getting to know a verifier.

    A call returns the next action: a VOCAB to send, or a vocabulary to compare until it is known.

    fingerprint: of the draft model's vocabulary; empty if that knows ids only.
    state: changed by `advance` only.
    trouble: why the verifier's vocabulary is unusable; empty if it is not.
    """

    def __init__(self, own: Vocabulary | None) -> None:
        """Begin without a verifier.

        own: the draft model's vocabulary; None if that knows ids only.
        """
        self.fingerprint = "" if own is None else own.fingerprint()
        self.state = VocabularyState.NEW
        self.trouble = ""
        self._own = own
        self._claim = _Claim("", 0, frozenset())
        self._verifier = ""  # that made the claim
        self._kept: dict[tuple[str, int], Pieces] = {}  # by fingerprint and size
        self._pieces: list[bytes] = []  # that came
        self._size = 0  # of these pieces, in base64
        self._sent_at = 0.0

    def advance(self, event: VocabularyEvent) -> None:
        """Change the state. Raise InvalidTransition if it has no such event."""
        self.state = state_after(VOCABULARY_STATES, "vocabulary", self.state, event)

    def welcomed(self, welcome: Welcome, now: float) -> Vocab | Vocabulary | None:
        """Begin with a verifier."""
        end_ids = frozenset(welcome.end_ids)
        claim = _Claim(welcome.vocab_fingerprint, welcome.n_vocab, end_ids)
        same = claim == self._claim
        if same and self.state is VocabularyState.KNOWN:
            return None
        refused = same and self._verifier == welcome.verifier
        if refused and self.state is VocabularyState.UNUSABLE:
            return None  # it was asked once
        self._claim = claim
        self._verifier = welcome.verifier
        self.trouble = ""
        self._pieces = []
        self._size = 0
        self.advance(VocabularyEvent.ANNOUNCED)
        pieces = self._known_pieces(claim)
        if pieces is not None:
            # A reconnect costs nothing: a vocabulary may have megabytes.
            self.advance(VocabularyEvent.COMPLETE)
            return Vocabulary(pieces, end_ids)
        # A number that a peer claims must not decide how much is fetched and kept.
        if claim.n_vocab > MAX_VOCAB:
            self._refuse(f"the verifier claims a vocabulary of {claim.n_vocab} tokens")
            return None
        return self._ask(now)

    def _known_pieces(self, claim: _Claim) -> Pieces | None:
        """Return the pieces of a vocabulary that need not be fetched."""
        own = self._own
        if own is not None and claim.n_vocab == len(own) and claim.fingerprint == self.fingerprint:
            return own.pieces
        return self._kept.get((claim.fingerprint, claim.n_vocab))

    def answered(self, answer: Vocab, now: float) -> Vocab | Vocabulary | None:
        """Take the next part."""
        fetching = self.state is VocabularyState.FETCHING
        # Answers may be late or come twice. Only the part that was asked for counts.
        if not fetching or not answer.pieces or answer.start != len(self._pieces):
            return None
        try:
            self._pieces += [base64.b64decode(piece, validate=True) for piece in answer.pieces]
        except ValueError:  # binascii.Error is one, and text that is not ASCII raises another
            self._refuse("the verifier's vocabulary is not base64")
            return None
        self._size += sum(map(len, answer.pieces))
        missing = self._claim.n_vocab - len(self._pieces)
        if missing < 0 or self._size > MAX_VOCAB_BYTES:
            self._refuse("the verifier sends more vocabulary than it has")
            return None
        if missing:
            return self._ask(now)
        vocabulary = Vocabulary(tuple(self._pieces), self._claim.end_ids)
        # It is kept under this name, for any verifier that claims it. A false one would spoil
        # others.
        if vocabulary.fingerprint() != self._claim.fingerprint:
            self._refuse("the verifier's vocabulary does not match its own fingerprint")
            return None
        self._keep(vocabulary.pieces)
        self.advance(VocabularyEvent.COMPLETE)
        return vocabulary

    def compared(self) -> None:
        """Note that the vocabulary was compared."""
        self.advance(VocabularyEvent.COMPARED)

    def _keep(self, pieces: Pieces) -> None:
        """Keep a vocabulary that was fetched, and drop the oldest of too many."""
        self._kept[self._claim.fingerprint, self._claim.n_vocab] = pieces
        while len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]

    def _refuse(self, trouble: str) -> None:
        """Drop what came: the vocabulary is not fetched again before another is announced."""
        self.trouble = trouble
        self._pieces = []
        self.advance(VocabularyEvent.REFUSED)

    def late(self, now: float) -> Vocab | None:
        """Return the VOCAB to send again if its answer does not come."""
        fetching = self.state is VocabularyState.FETCHING
        if fetching and now - self._sent_at > RETRY:
            return self._ask(now)
        return None

    def _ask(self, now: float) -> Vocab:
        self._sent_at = now
        return Vocab(len(self._pieces))
