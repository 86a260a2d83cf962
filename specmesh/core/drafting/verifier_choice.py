"""Which of several verifiers gets a text: the one where it is expected to be finished first.

Two sources: what each verifier tells of its work with every PING and PONG, and how fast texts lately went there, as
heard here, where the network and the drafts that stood are part of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from specmesh.core.draft_length.estimates import StepCosts

TYPICAL = 256  # most tokens that a text is expected to have: `max_tokens` is often just a bound
UNKNOWN_STEP = 0.05  # seconds of a step where the verifier does not tell
ROWS = 4  # rows that each other session is expected to add to a step, drafts included
NEAR = 0.1  # share below which better is not better: the turns of a chat should find their prefix cache again


@dataclass(frozen=True, slots=True)
class ReportedLoad:
    """What a verifier told of its work. places: sessions it holds at once, 0 where it does not tell; step_s: a step of
    one row; row_s: what each further row adds."""

    sessions: int = 0
    queued: int = 0
    places: int = 0
    step_s: float = 0.0
    row_s: float = 0.0

    def step(self, others: float) -> float:
        return (self.step_s or UNKNOWN_STEP) + self.row_s * ROWS * others


def step_and_row(costs: StepCosts) -> tuple[float, float]:
    """Seconds of a step, and of one more row, as a verifier tells them."""
    step_s = costs.seconds(1)
    return step_s, max(costs.seconds(1 + ROWS) - step_s, 0.0) / ROWS


@dataclass(frozen=True, slots=True)
class TokenPace:
    """Measured seconds from a token of a session to the next, with so many other sessions beside it."""

    token_s: float
    others: float


@dataclass(frozen=True, slots=True)
class VerifierLoad:
    """A verifier, as it matters for a new text."""

    load: ReportedLoad
    ours: int  # sessions of this drafter's clients that `load` lacks yet
    round_trip: float  # seconds
    pace: TokenPace | None
    length: float  # tokens that a round is expected to bring where no pace was measured

    def expected_seconds(self, max_tokens: int) -> float:
        """Seconds until a text of at most so many tokens would be finished there."""
        load, tokens = self.load, min(max_tokens, TYPICAL)
        there = max(load.sessions + load.queued + self.ours, 0)
        beside = min(there, load.places - 1) if load.places else there
        token_s = load.step(beside) / self.length
        if self.pace is not None:
            token_s = self.pace.token_s * load.step(beside) / load.step(self.pace.others)
        ahead = max(there + 1 - load.places, 0) if load.places else 0  # texts that must end before this one begins
        return self.round_trip + (ahead / max(load.places, 1) + 1) * tokens * token_s


def rank_verifiers(outlooks: Sequence[VerifierLoad], max_tokens: int) -> list[int]:
    """Return the verifiers by index, the one to ask first in front; of those NEAR the best, the first given."""
    expected = [outlook.expected_seconds(max_tokens) for outlook in outlooks]
    left, order = list(range(len(outlooks))), list[int]()
    while left:
        best = min(expected[index] for index in left)
        chosen = next(index for index in left if expected[index] * (1 - NEAR) <= best)
        left.remove(chosen)
        order.append(chosen)
    return order
