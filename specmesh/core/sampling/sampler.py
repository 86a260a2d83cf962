"""Choosing the next token from logits: greedy, or coupled sampling with counter-based noise.

Coupled sampling (Daliri, Musco, Suresh 2408.07978): position p of a session with seed s has the
noise u(s, p, token), and the choice is argmax(log prob + Gumbel(u)) over the filtered tokens. It is
an exact sample (the Gumbel-max trick). It depends on logits, parameters, seed and the ids before it
only. A drafter with the same noise and similar logits chooses the same token far more often than an
independent sample would.

The filters, their meaning and their order are llama.cpp's (src/llama-sampling.cpp): top-k, top-p,
min-p, all of them before the temperature. A vocabulary has a hundred thousand entries and few
candidates, so it is ordered as a whole only for a filter that needs it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specmesh.core.sampling.noise import Floats, Ids, NoiseStream, derived, gumbel, reaching
from specmesh.core.sampling.strategy import THRESHOLD, Strategy

Logits = NDArray[np.float32]
"""One row: float32, shape (n_vocab,)."""

STRIPES = 64
"""Rows into which logits are divided. The maxima of the columns bound the largest logits from
below, and numpy's `max` of so many rows costs least.
"""
NUCLEUS_BEGIN = 256  # candidates that top-p of a whole row begins with
NUCLEUS_GROWTH = 8  # times more that it tries next
HEAD = 64  # largest logits of an unfiltered row whose noise is looked at first

MAX_BIASES = 1024  # most biased tokens of a request
FORBIDDEN = -1e9
"""Bias of a token that is never chosen while another can be: finite, as JSON knows no infinity."""
WINDOW = 64  # latest ids that penalties look at by default; llama.cpp's `repeat_last_n`
MOST = 100.0  # largest temperature, penalty and (of either sign) bias of a request
LEAST_TEMPERATURE = 1e-5  # below it a temperature counts as 0: logits divided by it overflow


# --- candidates of a row


class Candidates(NamedTuple):
    """Tokens that may be chosen, with their logits.

    The largest logit comes first, and of equal logits the lower id.
    """

    ids: Ids
    scores: Floats

    def first(self, count: int) -> "Candidates":
        """Return the first `count` candidates."""
        return Candidates(self.ids[:count], self.scores[:count])


def largest(logits: Logits, count: int) -> Candidates:
    """Return the tokens of the `count` largest logits."""
    n_vocab = len(logits)
    if count >= n_vocab:
        return _ordered(logits, np.arange(n_vocab))
    # To sort the few that reach a floor is much less work than to sort the row.
    reaching_floor = np.flatnonzero(logits >= _floor(logits, count))
    return _ordered(logits, reaching_floor).first(count)


def nucleus(logits: Logits, share: float) -> Candidates:
    """Return the result of top-p on a whole row."""
    most = float(logits.max())
    # The sum needs no order. So only as many tokens are sorted as it takes to reach the share.
    total = float(np.exp(logits.astype(np.float64) - most).sum())
    count = NUCLEUS_BEGIN
    while True:
        found = largest(logits, count)
        reached = np.cumsum(np.exp(found.scores - most) / total)
        if reached[-1] >= share or count >= len(logits):
            return found.first(_needed(reached, share))
        count *= NUCLEUS_GROWTH


def top_p(found: Candidates, share: float) -> Candidates:
    """Return the fewest first candidates whose softmax reaches `share`; at least one."""
    reached = np.cumsum(softmax(found.scores))
    return found.first(_needed(reached, share))


def min_p(found: Candidates, share: float) -> Candidates:
    """Return the candidates that are at least `share` times as likely as the first."""
    least = found.scores[0] + np.log(share)
    count = int((found.scores >= least).sum())
    return found.first(count)


def at_least(logits: Logits, share: float) -> Candidates:
    """Return the result of min-p on a whole row."""
    least = logits.max() + np.float32(np.log(share))
    # The bound is rounded to 32 bits. A token at it must not be lost: `min_p` compares exactly.
    just_below = np.nextafter(least, np.float32(-np.inf))
    near = np.flatnonzero(logits >= just_below)
    return min_p(_ordered(logits, near), share)


def softmax(scores: Floats) -> Floats:
    """Return the probabilities of scores, the largest of which is the first."""
    weights = np.exp(scores - scores[0])
    shares: Floats = weights / weights.sum()
    return shares


def _needed(reached: Floats, share: float) -> int:
    """Return how many probabilities it takes to reach `share`; `reached` are their sums."""
    return min(int(np.searchsorted(reached, share)) + 1, len(reached))


def _ordered(logits: Logits, ids: Ids) -> Candidates:
    """Return tokens with their logits, the largest first; of equal ones the smallest id."""
    order = ids[np.argsort(-logits[ids], kind="stable")]
    return Candidates(order, logits[order].astype(np.float64))


def _floor(logits: Logits, count: int) -> np.float32:
    """Return a value that at least `count` logits reach, and few others.

    It is the least maximum of the `count` best columns.
    """
    width = len(logits) // STRIPES
    # Too few columns: their maxima would let nearly all through.
    if width < 4 * count:
        at = len(logits) - count
        return np.float32(np.partition(logits, at)[at])
    best = logits[: STRIPES * width].reshape(STRIPES, width).max(axis=0)
    return np.float32(np.partition(best, width - count)[width - count])


# --- changes of a row


@dataclass(frozen=True, slots=True)
class Penalties:
    """Penalties of tokens among the latest ids, prompt included: llama.cpp's `penalties` sampler.

    repeat: divides a positive logit and multiplies any other.
    frequency: is taken off once for each occurrence; OpenAI's.
    presence: is taken off once; OpenAI's.
    window: how many of the latest ids count; 0 none, -1 all.
    """

    repeat: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    window: int = WINDOW

    def __bool__(self) -> bool:
        if self.window == 0:
            return False
        return self.repeat != 1.0 or self.frequency != 0.0 or self.presence != 0.0

    def latest(self, ids: Sequence[int]) -> Sequence[int]:
        """Return the ids that they look at."""
        if self.window < 0:
            return ids
        return ids[len(ids) - min(self.window, len(ids)) :]


NO_PENALTIES = Penalties()


def biased(logits: Logits, biases: Sequence[tuple[int, float]]) -> Logits:
    """Return a copy of a row with (id, bias) added; minus infinity forbids a token.

    Ids beyond the row are left out.
    """
    changed = logits.copy()
    for token, bias in biases:
        if token < len(changed):
            changed[token] += np.float32(bias)
    return changed


def penalised(logits: Logits, ids: Sequence[int], penalties: Penalties) -> Logits:
    """Return a copy of a row after `ids`, all of which the penalties look at.

    Ids beyond the row are left out.
    """
    changed = logits.copy()
    tokens, times = np.unique(np.asarray(ids, dtype=np.int64), return_counts=True)
    inside = tokens < len(changed)
    tokens = tokens[inside]
    times = times[inside]
    scores = changed[tokens]
    repeat = np.float32(penalties.repeat)
    # A division would raise a negative logit, and so reward the token.
    scores = np.where(scores <= 0, scores * repeat, scores / repeat)
    taken_off = times * penalties.frequency + penalties.presence
    changed[tokens] = scores - taken_off.astype(np.float32)
    return changed


# --- the choice


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen. The defaults filter nothing.

    Biases, penalties, top-k, top-p, min-p and temperature apply in this order, llama.cpp's.

    temperature: 0 is greedy, and so is any below LEAST_TEMPERATURE. seed: 64 bits.
    logit_bias: pairs of an id and its bias.
    strategy: how drafts are accepted. threshold: of the strategy of this name.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    min_p: float = 0.0
    penalties: Penalties = NO_PENALTIES
    logit_bias: tuple[tuple[int, float], ...] = ()
    strategy: str = Strategy.DETERMINISTIC
    threshold: float = THRESHOLD

    def __post_init__(self) -> None:
        if self.temperature < LEAST_TEMPERATURE:
            object.__setattr__(self, "temperature", 0.0)

    @property
    def argmax(self) -> bool:
        """Return True if the first of a row's largest logits is chosen, whatever came before."""
        return self.temperature <= 0 and not self.penalties and not self.logit_bias

    def named(self) -> dict[str, object]:
        """Return the options by their names on the wire and in the API.

        The biases are left out: wire and API write them differently.
        """
        options: dict[str, object] = {}
        for field in fields(self):
            if field.name not in ("penalties", "logit_bias"):
                options[field.name] = getattr(self, field.name)
        options["repeat_penalty"] = self.penalties.repeat
        options["repeat_last_n"] = self.penalties.window
        options["frequency_penalty"] = self.penalties.frequency
        options["presence_penalty"] = self.penalties.presence
        return options


class Sampler:
    """Chooses the tokens of one session. It has no state that advances.

    before: the latest ids, for penalties.
    argmax: the choice is the row's largest logit, so an engine may look for it itself.
    looks_back: how many ids before a position its choice depends on; -1 for all.
    filters: the tokens that may be chosen depend on the whole row. Otherwise each token is weighed
        by itself.
    """

    __slots__ = ("_seed", "_unchanged", "argmax", "before", "filters", "looks_back", "params")

    def __init__(self, params: SamplingParams, before: Sequence[int] = ()) -> None:
        self.params = params
        self.before = before
        self.argmax = params.argmax
        self.looks_back = params.penalties.window if params.penalties else 0
        self.filters = params.top_k > 0 or params.top_p < 1 or params.min_p > 0
        self._seed = np.uint64(params.seed & 0xFFFFFFFFFFFFFFFF)
        penalised_ids = len(before) if self.looks_back else 0
        # Rows are taken as they are: neither biases nor penalties change them.
        self._unchanged = not params.logit_bias and not penalised_ids

    def after(self, ids: Sequence[int], drafts: Sequence[int] = ()) -> "Sampler":
        """Return the sampler of the position after these ids and then these drafts."""
        if not self.looks_back:
            return self
        penalties = self.params.penalties
        before = (*penalties.latest(ids), *drafts)
        return Sampler(self.params, penalties.latest(before))

    def keyed(self, crc: int) -> "Sampler":
        """Return a sampler whose noise belongs to the prefix with this CRC, and to no other."""
        # The same noise for another prefix would make the choices of two texts depend on each
        # other.
        seed = derived(self.params.seed, NoiseStream.CHOICES, crc)
        return Sampler(replace(self.params, seed=seed), self.before)

    def choose(self, logits: Logits, position: int) -> int:
        """Return the token for a position from its row."""
        if not self._unchanged:
            logits = self._adjusted(logits)
        if self.params.temperature <= 0:
            return int(logits.argmax())
        # Without filters few tokens have a chance against the noise, and only these are looked at.
        found = self.candidates(logits) if self.filters else self._contenders(logits, position)
        return int(found.ids[self._noisy(found, position).argmax()])

    def distribution(self, logits: Logits) -> Floats:
        """Return the probabilities that `choose` samples from, float64 (n_vocab,)."""
        logits = self._adjusted(logits)
        shares = np.zeros(len(logits))
        if self.params.temperature <= 0:
            shares[logits.argmax()] = 1.0
            return shares
        found = self.candidates(logits)
        weights = self._weights(found, found.scores.max())
        shares[found.ids] = weights / weights.sum()
        return shares

    def likeliest(self, logits: Logits, count: int) -> tuple[Ids, Floats]:
        """Return at most `count` tokens, the likeliest first, with their probabilities.

        The temperature must be above 0.
        """
        logits = self._adjusted(logits)
        found = self.candidates(logits)
        if len(found.ids) == len(logits):  # then they are not ordered
            first = largest(logits, count)
        else:
            first = found.first(count)
        most = first.scores[0]
        total = self._weights(found, most).sum()
        return first.ids, self._weights(first, most) / total

    def candidates(self, logits: Logits) -> Candidates:
        """Return the tokens of an adjusted row that pass the filters.

        Without filters these are all of them, in the vocabulary's order.
        """
        params = self.params
        share = params.top_p
        if 0 < params.top_k < len(logits):
            found = largest(logits, params.top_k)
        elif share < 1:
            found = nucleus(logits, share)
            share = 1.0
        elif params.min_p > 0:
            return at_least(logits, params.min_p)
        else:
            return Candidates(np.arange(len(logits)), logits.astype(np.float64))
        if share < 1:
            found = top_p(found, share)
        return min_p(found, params.min_p) if params.min_p > 0 else found

    def _adjusted(self, logits: Logits) -> Logits:
        """Return the logits with biases and penalties, which any filter sees."""
        if self._unchanged:
            return logits
        if self.params.logit_bias:
            logits = biased(logits, self.params.logit_bias)
        if len(self.before) and self.looks_back:
            logits = penalised(logits, self.before, self.params.penalties)
        return logits

    def _weights(self, found: Candidates, most: np.float64) -> Floats:
        """Return the probabilities of candidates, but for a factor; `most` is the largest logit."""
        weights: Floats = np.exp((found.scores - most) / self.params.temperature)
        return weights

    def _noisy(self, found: Candidates, position: int) -> Floats:
        """Return the scores of tokens, of which the largest is the choice."""
        noise = gumbel(self._seed, position, found.ids)
        return found.scores / self.params.temperature + noise

    def _contenders(self, logits: Logits, position: int) -> Candidates:
        """Return the tokens of an unfiltered row that the noise may let win.

        These are the largest logits, and the tokens whose noise is large enough to beat the best of
        these.
        """
        head = largest(logits, HEAD)
        best = self._noisy(head, position).max()
        # No token outside has a larger logit than the last one inside. So it can win only by noise
        # beyond this.
        least = float(best - head.scores[-1] / self.params.temperature)
        lucky = reaching(self._seed, position, len(logits), least)
        ids = np.union1d(head.ids, lucky)
        return Candidates(ids, logits[ids].astype(np.float64))
