"""How many drafts the next step takes, and whether to wait for more: adaptive `draft_n`.

The verifier is idle and has `lead` drafts in hand. A step with k drafts commits E(k) tokens (acceptance) and costs
t_v(k+1) seconds (measured), after waiting w(k) for drafts not here yet (arrivals). The policy takes the k that
maximises E(k) / (w(k) + t_v(k+1)); k = 0 is the verifier alone, so by its own estimates it never chooses a slower way.
It is lock-step goodput control (SmartSpec 2406.14066) with waiting counted in, evaluated anew at each arrival.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from specmesh.core.acceptance import expected_tokens


@dataclass(frozen=True, slots=True)
class Choice:
    """The best number of drafts `k` for the next step, and how long until they can be here (0: they are)."""

    k: int
    wait: float


def choose_draft_n(rates: Sequence[float], steps: Sequence[float], waits: Sequence[float]) -> Choice:
    """The k with the highest expected tokens per second; the smaller one where two are equal.

    rates: conditional acceptance per position. steps[k]: seconds of a step with k drafts. waits[k]: seconds until k
    drafts are in hand; it is as long as there are k to choose from, and k = 0 always is.
    """
    best, best_rate = Choice(0, 0.0), 0.0
    for k, (tokens, step, wait) in enumerate(zip(expected_tokens(rates), steps, waits, strict=False)):
        rate = tokens / max(wait + step, 1e-9)
        if rate > best_rate * (1 + 1e-9):
            best, best_rate = Choice(k, wait), rate
    return best
