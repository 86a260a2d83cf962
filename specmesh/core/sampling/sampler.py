"""Choosing the next token from logits: greedy, or coupled sampling with counter-based noise.

Coupled sampling (Daliri, Musco, Suresh 2408.07978): position p of a session with seed s has noise u(s, p, token); the
choice is argmax(log prob + Gumbel(u)) over the filtered support. It is an exact sample (the Gumbel-max trick), it
depends on (logits, parameters, seed, the ids before it) only, and a drafter with the same noise and similar logits
chooses the same token far more often than an independent sample would.

The filters and their meaning are llama.cpp's (src/llama-sampling.cpp), as is their order: top-k, top-p, min-p, all of
them before the temperature. A vocabulary has a hundred thousand entries and few candidates, so nothing
here orders it as a whole unless a filter needs that.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from specmesh.core.sampling import THRESHOLD, Strategy
from specmesh.core.sampling.noise import NoiseStream, derived, gumbel, reaching

Logits = NDArray[np.float32]  # one row: float32, shape (n_vocab,)
Ids = NDArray[np.int64]
Floats = NDArray[np.float64]

STRIPES = 64  # whose maxima bound the largest logits from below; numpy's `max` of so many rows costs least
# candidates that top-p of the whole vocabulary begins with, and how many times more it tries next
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
    count = BEGIN
    while True:
        found = largest(logits, count)
        reached = np.cumsum(np.exp(found.scores - most) / total)
        if reached[-1] >= top_p or count >= len(logits):
            return found.first(_needed(reached, top_p))
        count *= GROWTH


def top_p(found: Candidates, share: float) -> Candidates:
    """The fewest of the first candidates whose softmax reaches `share`; at least one."""
    return found.first(_needed(np.cumsum(softmax(found.scores)), share))


def min_p(found: Candidates, share: float) -> Candidates:
    """The candidates that are at least `share` times as likely as the first."""
    return found.first(int((found.scores >= found.scores[0] + np.log(share)).sum()))


def at_least(logits: Logits, share: float) -> Candidates:
    near = np.flatnonzero(
        logits >= np.nextafter(logits.max() + np.float32(np.log(share)), np.float32(-np.inf))
    )
    return min_p(_ordered(logits, near), share)


def softmax(scores: Floats) -> Floats:
    weights = np.exp(scores - scores[0])
    shares: Floats = weights / weights.sum()
    return shares


def _needed(reached: Floats, share: float) -> int:
    """How many it takes for their sum, `reached` with each, to come to `share`."""
    return min(int(np.searchsorted(reached, share)) + 1, len(reached))


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
FORBIDDEN = (
    -1e9
)  # bias of a token never chosen while another can be; finite, as JSON knows no infinity
WINDOW = 64  # latest ids that penalties look at by default; llama.cpp's `repeat_last_n`


@dataclass(frozen=True, slots=True)
class Penalties:
    """For tokens among the latest `window` ids, prompt included, as llama.cpp's `penalties` sampler has it."""

    repeat: float = 1.0  # divides a positive logit and multiplies another
    frequency: float = 0.0  # taken off once for each time it was said; OpenAI's
    presence: float = 0.0  # taken off once; OpenAI's
    window: int = WINDOW  # 0 none, -1 all

    def __bool__(self) -> bool:
        return self.window != 0 and (
            self.repeat != 1.0 or self.frequency != 0.0 or self.presence != 0.0
        )

    def latest(self, ids: Sequence[int]) -> Sequence[int]:
        return ids if self.window < 0 else ids[len(ids) - min(self.window, len(ids)) :]


NO_PENALTIES = Penalties()


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
    scores = np.where(
        scores <= 0, scores * np.float32(penalties.repeat), scores / np.float32(penalties.repeat)
    )
    changed[said] = scores - (times * penalties.frequency + penalties.presence).astype(np.float32)
    return changed


MOST = 100.0  # largest temperature, penalty and (of either sign) bias of a request
LEAST_TEMPERATURE = 1e-5  # below it a temperature counts as 0: logits divided by it overflow
HEAD = 64  # largest logits whose noise is looked at first, where nothing filters a row


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose: biases, penalties, top-k, top-p, min-p and temperature, in this order, llama.cpp's. The defaults
    filter nothing."""

    temperature: float = 0.0  # 0 is greedy, and so is any below LEAST_TEMPERATURE
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0  # 64-bit
    min_p: float = 0.0
    penalties: Penalties = NO_PENALTIES
    logit_bias: tuple[tuple[int, float], ...] = ()  # (id, what is added)
    strategy: str = Strategy.DETERMINISTIC
    threshold: float = THRESHOLD  # of that strategy

    def __post_init__(self) -> None:
        if self.temperature < LEAST_TEMPERATURE:
            object.__setattr__(self, "temperature", 0.0)

    @property
    def argmax(self) -> bool:
        """Whether the choice is the first of a row's largest logits, whatever came before."""
        return self.temperature <= 0 and not self.penalties and not self.logit_bias

    def named(self) -> dict[str, object]:
        """By the names that the wire and the API have for them, but for the biases, which they write differently."""
        own = (
            field.name for field in fields(self) if field.name not in ("penalties", "logit_bias")
        )
        penalties = self.penalties
        return dict[str, object]((name, getattr(self, name)) for name in own) | {
            "repeat_penalty": penalties.repeat,
            "repeat_last_n": penalties.window,
            "frequency_penalty": penalties.frequency,
            "presence_penalty": penalties.presence,
        }


class Sampler:
    """Chooses tokens for one session; holds no state that advances. `before`: the latest ids, for penalties."""

    __slots__ = ("_as_is", "_seed", "argmax", "before", "params")

    def __init__(self, params: SamplingParams, before: Sequence[int] = ()) -> None:
        self.params = params
        self.before = before
        self.argmax = params.argmax  # an engine may look for the choice itself
        self._seed = np.uint64(params.seed & 0xFFFFFFFFFFFFFFFF)
        self._as_is = not params.logit_bias and not (
            params.penalties and len(before)
        )  # rows are not adjusted

    def after(self, ids: Sequence[int], drafts: Sequence[int] = ()) -> "Sampler":
        """The sampler for the position after these ids and then these drafts."""
        penalties = self.params.penalties
        return (
            Sampler(self.params, penalties.latest((*penalties.latest(ids), *drafts)))
            if penalties
            else self
        )

    def keyed(self, crc: int) -> "Sampler":
        """The sampler for the position after a prefix with this CRC, with noise that belongs to that prefix alone."""
        return Sampler(
            replace(self.params, seed=derived(self.params.seed, NoiseStream.CHOICES, crc)),
            self.before,
        )

    @property
    def looks_back(self) -> int:
        """How many ids before a position its choice depends on; -1: all."""
        return self.params.penalties.window if self.params.penalties else 0

    def choose(self, logits: Logits, position: int) -> int:
        if not self._as_is:
            logits = self._adjusted(logits)
        if self.params.temperature <= 0:
            return int(logits.argmax())
        found = self.candidates(logits) if self.filters else self._contenders(logits, position)
        return int(found.ids[self._noisy(found, position).argmax()])

    def distribution(self, logits: Logits) -> Floats:
        """What `choose` samples from: the probability of each token, float64 (n_vocab,)."""
        logits = self._adjusted(logits)
        shares = np.zeros(len(logits))
        if self.params.temperature <= 0:
            shares[logits.argmax()] = 1.0
            return shares
        found = self.candidates(logits)
        weights = np.exp((found.scores - found.scores.max()) / self.params.temperature)
        shares[found.ids] = weights / weights.sum()
        return shares

    def likeliest(self, logits: Logits, count: int) -> tuple[Ids, Floats]:
        """At most `count` tokens, the likeliest first, with their probabilities; temperature above 0."""
        logits = self._adjusted(logits)
        found = self.candidates(logits)
        first = largest(logits, count) if len(found.ids) == len(logits) else found.first(count)
        weights = np.exp((first.scores - first.scores[0]) / self.params.temperature)
        total = np.exp((found.scores - first.scores[0]) / self.params.temperature).sum()
        return first.ids, weights / total

    def _noisy(self, found: Candidates, position: int) -> NDArray[np.float64]:
        return found.scores / self.params.temperature + gumbel(self._seed, position, found.ids)

    @property
    def filters(self) -> bool:
        """Whether what may be chosen depends on the whole row. Else the best of all ids is chosen, each by itself."""
        params = self.params
        return params.top_k > 0 or params.top_p < 1 or params.min_p > 0

    def _contenders(self, logits: Logits, position: int) -> Candidates:
        """Of a row that nothing filters, the tokens that the noise may let win: the largest logits, and those whose
        noise is large enough to beat the best of these."""
        head = largest(logits, HEAD)
        least = float(self._noisy(head, position).max() - head.scores[-1] / self.params.temperature)
        ids = np.union1d(head.ids, reaching(self._seed, position, len(logits), least))
        return Candidates(ids, logits[ids].astype(np.float64))

    def _adjusted(self, logits: Logits) -> Logits:
        if self.params.logit_bias:
            logits = biased(logits, self.params.logit_bias)
        if self.params.penalties and len(self.before):
            logits = penalised(logits, self.before, self.params.penalties)
        return logits

    def candidates(self, logits: Logits) -> Candidates:
        """What the filters leave of an adjusted row; all of it, in the vocabulary's order, where none filters."""
        params, mass = self.params, self.params.top_p
        if 0 < params.top_k < len(logits):
            found = largest(logits, params.top_k)
        elif mass < 1:
            found, mass = nucleus(logits, mass), 1.0
        elif params.min_p > 0:
            return at_least(logits, params.min_p)
        else:
            return Candidates(np.arange(len(logits)), logits.astype(np.float64))
        if mass < 1:
            found = top_p(found, mass)
        return min_p(found, params.min_p) if params.min_p > 0 else found
