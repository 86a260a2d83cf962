"""Candidates for the next token, and what each filter leaves of them.

The filters and their meaning are llama.cpp's (src/llama-sampling.cpp), as is their order: top-k, typical-p, top-p,
min-p, all of them before the temperature. A vocabulary has a hundred thousand entries and few candidates, so nothing
here orders it as a whole unless a filter needs that.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]
"""One row: float32, shape (n_vocab,)."""

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]

STRIPES = 64  # whose maxima bound the largest logits from below; numpy's `max` of so many rows costs least
# candidates that a filter of the whole vocabulary begins with, and how many times more it tries next
BEGIN, GROWTH = 256, 8


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens that may be chosen, with their logits, the largest first; of equal logits the lower id."""

    ids: Ids
    scores: Floats

    def first(self, count: int) -> "Candidates":
        return Candidates(self.ids[:count], self.scores[:count])


def largest(logits: Logits, count: int) -> Candidates:
    n_vocab = len(logits)
    if count < n_vocab:
        return _ordered(logits, np.flatnonzero(logits >= _floor(logits, count))).first(count)
    return _ordered(logits, np.arange(n_vocab))


def nucleus(logits: Logits, top_p: float) -> Candidates:
    """`top_p` of a whole row."""
    most = float(logits.max())
    total = float(np.exp(logits.astype(np.float64) - most).sum())
    for count in _growing(len(logits)):
        found = largest(logits, count)
        reached = np.cumsum(np.exp(found.scores - most) / total)
        if reached[-1] >= top_p:
            break
    return found.first(_needed(reached, top_p))


def typical_of_row(logits: Logits, share: float) -> Candidates:
    shares = np.exp(logits.astype(np.float64) - float(logits.max()))
    shares /= shares.sum()
    distance = _distance(shares)
    for count in _growing(len(logits)):
        nearest = largest((-distance).astype(np.float32), count).ids
        reached = np.cumsum(shares[nearest])
        if reached[-1] > share:
            break
    return _ordered(logits, np.sort(nearest[: _needed(reached, share, more=True)]))


def top_p(found: Candidates, share: float) -> Candidates:
    """The fewest of the first candidates whose softmax reaches `share`; at least one."""
    return found.first(_needed(np.cumsum(softmax(found.scores)), share))


def typical(found: Candidates, share: float) -> Candidates:
    """The candidates whose information is nearest to the entropy, as few as have more than `share` of the softmax:
    locally typical sampling (Meister et al. 2202.00666)."""
    shares = softmax(found.scores)
    nearest = np.argsort(_distance(shares), kind="stable")
    kept = np.sort(nearest[: _needed(np.cumsum(shares[nearest]), share, more=True)])
    return Candidates(found.ids[kept], found.scores[kept])


def min_p(found: Candidates, share: float) -> Candidates:
    """The candidates that are at least `share` times as likely as the first."""
    return found.first(int((found.scores >= found.scores[0] + np.log(share)).sum()))


def at_least(logits: Logits, share: float) -> Candidates:
    near = np.flatnonzero(logits >= np.nextafter(logits.max() + np.float32(np.log(share)), np.float32(-np.inf)))
    return min_p(_ordered(logits, near), share)


def softmax(scores: Floats) -> Floats:
    weights = np.exp(scores - scores[0])
    shares: Floats = weights / weights.sum()
    return shares


def _needed(reached: Floats, share: float, *, more: bool = False) -> int:
    """How many it takes for their sum, `reached` with each, to come to `share`, or to `more` than that."""
    return min(int(np.searchsorted(reached, share, "right" if more else "left")) + 1, len(reached))


def _distance(shares: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        information = -np.log(shares)
    possible = shares > 0
    distance: Floats = np.abs(information - float((shares[possible] * information[possible]).sum()))
    return distance


def _growing(n_vocab: int) -> Iterator[int]:
    count = BEGIN
    while count < n_vocab:
        yield count
        count *= GROWTH
    yield n_vocab


def _ordered(logits: Logits, ids: Ids) -> Candidates:
    order = ids[np.argsort(-logits[ids], kind="stable")]
    return Candidates(order, logits[order].astype(np.float64))


def _floor(logits: Logits, count: int) -> np.float32:
    """A value that at least `count` logits reach, and few others: the least maximum of the `count` best columns."""
    width = len(logits) // STRIPES
    if width < 4 * count:
        return np.float32(np.partition(logits, len(logits) - count)[len(logits) - count])
    best = logits[: STRIPES * width].reshape(STRIPES, width).max(axis=0)
    return np.float32(np.partition(best, width - count)[width - count])


MAX_BIASES = 1024  # most biased tokens of a request
FORBIDDEN = -1e9  # bias of a token never chosen while another can be; finite, as JSON knows no infinity
WINDOW = 64  # latest ids that penalties look at by default; llama.cpp's `repeat_last_n`


@dataclass(frozen=True, slots=True)
class Penalties:
    """For tokens among the latest `window` ids, prompt included, as llama.cpp's `penalties` sampler has it."""

    repeat: float = 1.0  # divides a positive logit and multiplies another
    frequency: float = 0.0  # taken off once for each time it was said; OpenAI's
    presence: float = 0.0  # taken off once; OpenAI's
    window: int = WINDOW  # 0 none, -1 all

    def __bool__(self) -> bool:
        return self.window != 0 and (self.repeat != 1.0 or self.frequency != 0.0 or self.presence != 0.0)

    def latest(self, ids: Sequence[int]) -> Sequence[int]:
        return ids if self.window < 0 else ids[len(ids) - min(self.window, len(ids)) :]


NONE = Penalties()


def biased(logits: Logits, biases: Sequence[tuple[int, float]]) -> Logits:
    """A copy of a row with (id, bias) added; minus infinity forbids a token. Ids beyond the row are left out."""
    changed = logits.copy()
    for token, bias in biases:
        if token < len(changed):
            changed[token] += np.float32(bias)
    return changed


def penalised(logits: Logits, ids: Sequence[int], penalties: Penalties) -> Logits:
    """A copy of a row after `ids`, which are those the penalties look at. Ids beyond the row are left out."""
    changed = logits.copy()
    said, times = np.unique(np.asarray(ids, dtype=np.int64), return_counts=True)
    inside = said < len(changed)
    said, times = said[inside], times[inside]
    scores = changed[said]
    scores = np.where(scores <= 0, scores * np.float32(penalties.repeat), scores / np.float32(penalties.repeat))
    changed[said] = scores - (times * penalties.frequency + penalties.presence).astype(np.float32)
    return changed
