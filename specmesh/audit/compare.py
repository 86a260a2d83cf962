"""Two texts of one request, the verifier alone and with drafts: where they part, and how far their logits did before.

Pure: texts come in, verdicts go out.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile

BOTH = 2.0
"""Two tokens change places where each has moved by half of their margin: so it may be twice the noise."""

LEAST, MOST = 1e-6, 100.0
"""Margins that are told apart; the largest bias that a request may have bounds them."""

TOO_NOISY = 0.5
"""Log-probabilities of one token after the same ids do not differ by so much where only kernels differ; they would with
a memory that holds other ids than it should."""


class Verdict(StrEnum):
    """What a divergence is."""

    TIE = "near tie"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and what followed: ids, without one that ends it, and the log-probability of each; drafts verified."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class Parting:
    """Where two texts part: how many ids they share, and what follows in each; None where it ends there."""

    position: int
    alone: int | None
    drafted: int | None


def parting(alone: Text, drafted: Text) -> Parting | None:
    """Where they part; None where they are the same."""
    at = _shared(alone, drafted)
    ids = [text.ids[at] if at < len(text.ids) else None for text in (alone, drafted)]
    return None if ids == [None, None] else Parting(at, ids[0], ids[1])


def noise(pairs: Iterable[tuple[Text, Text]]) -> float:
    """By how much, at most, the log-probability of one token differs between two texts that agree up to it."""
    return max((abs(a - b) for alone, drafted in pairs for a, b in _agreeing(alone, drafted)), default=0.0)


def margin(flips: Callable[[float], bool], start: float) -> float | None:
    """The smallest push that makes the target say what it said with drafts, within a factor of two; None where none
    does. flips: asks with one. start: about what is expected."""
    push = max(start / 16, LEAST)
    while push < MOST:
        if flips(push):
            return push
        push *= 2
    return None


def verdict(found: float | None, measured: float) -> Verdict:
    """A near tie where the margin is within what kernels were seen to do."""
    return Verdict.TIE if found is not None and found <= BOTH * measured else Verdict.ERROR


def _shared(one: Text, other: Text) -> int:
    return sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(one.ids, other.ids, strict=False)))


def _agreeing(one: Text, other: Text) -> list[tuple[float, float]]:
    return list(zip(one.logprobs, other.logprobs, strict=False))[: _shared(one, other)]
