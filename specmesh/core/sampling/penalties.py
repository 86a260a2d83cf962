"""What changes logits before any filter: biases of single tokens, and penalties for tokens that were said lately."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from specmesh.core.sampling.filters import Logits

MAX_BIASES = 1024
"""Most biased tokens of a request."""

FORBIDDEN = -1e9
"""A bias with which a token is never chosen while another can be; a finite number, as JSON knows no other."""

WINDOW = 64
"""Latest ids that penalties look at, unless told otherwise; llama.cpp's `repeat_last_n`."""


@dataclass(frozen=True, slots=True)
class Penalties:
    """For tokens among the latest `window` ids, prompt included, as llama.cpp's `penalties` sampler has it.

    repeat:    divides a positive logit and multiplies another; 1 changes nothing.
    frequency: taken off once for each time it was said; OpenAI's.
    presence:  taken off once; OpenAI's.
    window:    how many ids are looked at; 0 none, -1 all.
    """

    repeat: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    window: int = WINDOW

    def __bool__(self) -> bool:
        return self.window != 0 and (self.repeat != 1.0 or self.frequency != 0.0 or self.presence != 0.0)

    def latest(self, ids: Sequence[int]) -> Sequence[int]:
        """Those of `ids` that they look at."""
        return ids if self.window < 0 else ids[len(ids) - min(self.window, len(ids)) :]


NONE = Penalties()


def biased(logits: Logits, biases: Sequence[tuple[int, float]]) -> Logits:
    """A copy of a row with (id, bias) added; minus infinity forbids a token. Ids beyond the row are left out."""
    changed = logits.copy()
    for token, bias in biases:
        if token < len(changed):
            changed[token] += np.float32(bias)
    return changed


def forbidding(biases: Sequence[tuple[int, float]], ids: Collection[int]) -> tuple[tuple[int, float], ...]:
    """The biases with one more for each of `ids`, with which it is never chosen; what else was asked for it is void."""
    return (*(bias for bias in biases if bias[0] not in ids), *((token, FORBIDDEN) for token in sorted(ids)))


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
