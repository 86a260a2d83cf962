"""Choosing the next token from logits: greedy, or coupled sampling with counter-based noise.

Coupled sampling (Daliri, Musco, Suresh 2408.07978): position p of a session with seed s has noise u(s, p, token); the
choice is argmax(log prob + Gumbel(u)) over the filtered support. It is an exact sample (the Gumbel-max trick), it
depends on (logits, parameters, seed, the ids before it) only, and a drafter with the same noise and similar logits
chooses the same token far more often than an independent sample would.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specmesh.core.sampling import THRESHOLD, Strategy, filters
from specmesh.core.sampling.filters import MAX_BIASES, NONE, Candidates, Floats, Ids, Logits, Penalties, largest
from specmesh.core.sampling.noise import NoiseStream, derived, gumbel, reaching
from specmesh.errors import RequestError

MOST = 100.0  # largest temperature, penalty and (of either sign) bias of a request
HEAD = 64  # largest logits whose noise is looked at first, where nothing filters a row


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose: biases, penalties, top-k, typical-p, top-p, min-p and temperature, in this order, llama.cpp's. The
    defaults filter nothing."""

    temperature: float = 0.0  # 0 is greedy
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0  # 64-bit
    min_p: float = 0.0
    typical_p: float = 1.0
    penalties: Penalties = NONE
    logit_bias: tuple[tuple[int, float], ...] = ()  # (id, what is added)
    strategy: str = Strategy.DETERMINISTIC
    threshold: float = THRESHOLD  # of that strategy

    @property
    def greedy(self) -> bool:
        """Whether the choice is the first of a row's largest logits, whatever came before."""
        return self.temperature <= 0 and not self.penalties and not self.logit_bias

    def named(self) -> dict[str, Any]:
        """By the names that the wire and the API have for them, but for the biases, which they write differently."""
        own = (field.name for field in fields(self) if field.name not in ("penalties", "logit_bias"))
        penalties = self.penalties
        return {name: getattr(self, name) for name in own} | {
            "repeat_penalty": penalties.repeat,
            "repeat_last_n": penalties.window,
            "frequency_penalty": penalties.frequency,
            "presence_penalty": penalties.presence,
        }


def check_sampling(params: SamplingParams) -> SamplingParams:
    """The same parameters; raises RequestError for those that mean nothing."""
    penalties = params.penalties
    if not 0 <= params.temperature <= MOST:
        raise RequestError(f"temperature must be a number from 0 to {MOST:g}", "temperature")
    shares = {"typical_p": params.typical_p, "top_p": params.top_p, "min_p": params.min_p}
    for name, share in shares.items():
        if not 0 <= share <= 1:
            raise RequestError(f"{name} must be a number from 0 to 1", name)
    if not 0 < penalties.repeat <= MOST:
        raise RequestError(f"repeat_penalty must be a number above 0, {MOST:g} at most", "repeat_penalty")
    for name, value in (("frequency_penalty", penalties.frequency), ("presence_penalty", penalties.presence)):
        if not abs(value) <= MOST:
            raise RequestError(f"{name} must be a number from {-MOST:g} to {MOST:g}", name)
    if params.strategy not in tuple(Strategy):
        raise RequestError(f"strategy must be one of {', '.join(Strategy)}", "strategy")
    if not 0 < params.threshold <= 1:
        raise RequestError("threshold must be a number above 0, 1 at most", "threshold")
    if len(params.logit_bias) > MAX_BIASES:
        raise RequestError(f"logit_bias can name {MAX_BIASES} tokens at most", "logit_bias")
    return params


class Sampler:
    """Chooses tokens for one session; holds no state that advances. `before`: the latest ids, for penalties."""

    __slots__ = ("_seed", "before", "params")

    def __init__(self, params: SamplingParams, before: Sequence[int] = ()) -> None:
        self.params = params
        self.before = before
        self._seed = np.uint64(params.seed & 0xFFFFFFFFFFFFFFFF)

    def after(self, ids: Sequence[int]) -> "Sampler":
        penalties = self.params.penalties
        return Sampler(self.params, penalties.latest(ids)) if penalties else self

    def keyed(self, crc: int) -> "Sampler":
        """The sampler for the position after a prefix with this CRC, with noise that belongs to that prefix alone."""
        return Sampler(replace(self.params, seed=derived(self.params.seed, NoiseStream.CHOICES, crc)), self.before)

    @property
    def looks_back(self) -> int:
        """How many ids before a position its choice depends on; -1: all."""
        return self.params.penalties.window if self.params.penalties else 0

    @property
    def greedy(self) -> bool:
        """Whether an engine may look for the choice itself."""
        return self.params.greedy

    def choose(self, logits: Logits, position: int) -> int:
        logits = self._adjusted(logits)
        if self.params.temperature <= 0:
            return int(logits.argmax())
        found = self.candidates(logits) if self.filters else self._contenders(logits, position)
        return int(found.ids[self._noisy(found, position).argmax()])

    def law(self, logits: Logits) -> Floats:
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
        """At most `count` tokens of the law, the likeliest first, and their probabilities; temperature above 0."""
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
        return params.top_k > 0 or params.typical_p < 1 or params.top_p < 1 or params.min_p > 0

    def _contenders(self, logits: Logits, position: int) -> Candidates:
        """Of a row that nothing filters, the tokens that the noise may let win: the largest logits, and those whose
        noise is large enough to beat the best of these."""
        head = largest(logits, HEAD)
        least = float(self._noisy(head, position).max() - head.scores[-1] / self.params.temperature)
        ids = np.union1d(head.ids, reaching(self._seed, position, len(logits), least))
        return Candidates(ids, logits[ids].astype(np.float64))

    def _adjusted(self, logits: Logits) -> Logits:
        if self.params.logit_bias:
            logits = filters.biased(logits, self.params.logit_bias)
        if self.params.penalties and len(self.before):
            logits = filters.penalised(logits, self.before, self.params.penalties)
        return logits

    def candidates(self, logits: Logits) -> Candidates:
        """What the filters leave of an adjusted row; all of it, in the vocabulary's order, where none filters."""
        params, top_p = self.params, self.params.top_p
        if 0 < params.top_k < len(logits):
            found = largest(logits, params.top_k)
            if params.typical_p < 1:
                found = filters.typical(found, params.typical_p)
        elif params.typical_p < 1:
            found = filters.typical_of_row(logits, params.typical_p)
        elif top_p < 1:
            found, top_p = filters.nucleus(logits, top_p), 1.0
        elif params.min_p > 0:
            return filters.at_least(logits, params.min_p)
        else:
            return Candidates(np.arange(len(logits)), logits.astype(np.float64))
        if top_p < 1:
            found = filters.top_p(found, top_p)
        return filters.min_p(found, params.min_p) if params.min_p > 0 else found
