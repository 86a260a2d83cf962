"""The acceptance of drafts that followed earlier ids which agree with the end of the text.

What predicts it is the number of ids that agree. If the first draft is accepted the second one
follows a match that is longer by one, and so on. So one table serves all drafts: the rate of a
draft behind a match of so many ids.
"""

from bisect import bisect_right
from collections.abc import Sequence

LENGTHS = (0, 1, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""The least length of each class of matches. Shorter ones than 3 follow a wrong draft."""

MATCH_PRIOR = (0.22, 0.7, 0.65, 0.7, 0.8, 0.87, 0.91, 0.93, 0.95, 0.96, 0.97, 0.99)
"""Rate of each class, as bench/suffix.py measures it for edits, code, prose and agents' turns."""

PREDICTION_PRIOR = (0.7, 0.7, 0.86, 0.82, 0.87, 0.92, 0.955, 0.97, 0.982, 0.987, 0.99, 0.999)
"""Rate of each class behind a client's prediction, as bench/predictions.py measures it.

A prediction is followed in its order, so a match there is right more often than any earlier one.
The first rate is less than measured: an answer may begin with words before the edited text.
"""

MATCH_PRIOR_DRAFTS = 6.0  # drafts that the rates known before count for
MEMORY = 64.0  # drafts of a class after which one counts half: texts change


class MatchAcceptance:
    """Rates by the length of a match, exponentially forgotten.

    parent: records all that is recorded here, and has the rates to begin with.
    prior: the rates to begin with where there is no parent.
    """

    def __init__(
        self, parent: "MatchAcceptance | None" = None, *, prior: Sequence[float] = MATCH_PRIOR
    ) -> None:
        self._tested = [0.0] * len(LENGTHS)
        self._accepted = [0.0] * len(LENGTHS)
        self._keep = 0.5 ** (1.0 / MEMORY)
        self._parent = parent
        self._prior = prior

    def record(self, length: int, tested: int, accepted: int) -> None:
        """Learn from `tested` drafts behind a match of `length` ids; the first were accepted."""
        if self._parent is not None:
            self._parent.record(length, tested, accepted)
        for draft in range(tested):
            number = _class_of(length + draft)
            self._tested[number] = self._tested[number] * self._keep + 1
            self._accepted[number] *= self._keep
            if draft < accepted:
                self._accepted[number] += 1

    def rate(self, number: int) -> float:
        """Return the rate of a class of lengths."""
        prior = self._prior[number]
        if self._parent is not None:
            prior = self._parent.rate(number)
        accepted = self._accepted[number] + prior * MATCH_PRIOR_DRAFTS
        return accepted / (self._tested[number] + MATCH_PRIOR_DRAFTS)

    def chain(self, length: int, drafts: int, *, least: float = 0.0) -> list[float]:
        """Return the probabilities that the first 1, 2, ... `drafts` are all accepted.

        length: ids of the match before the first one. least: probability below which they end.
        """
        probabilities: list[float] = []
        probability = 1.0
        number = _class_of(length)
        rate = self.rate(number)
        for match in range(length, length + drafts):
            if number + 1 < len(LENGTHS) and match >= LENGTHS[number + 1]:
                number += 1
                rate = self.rate(number)
            probability *= rate
            if probability < least:
                break
            probabilities.append(probability)
        return probabilities


def _class_of(length: int) -> int:
    """Return the number of the class of a length."""
    return bisect_right(LENGTHS, length) - 1
