"""Two texts of one request, the verifier alone and with drafts: where they part, and how far their logits did before.

**What a near tie is.** Up to where two texts part, the same ids went before each of their tokens: so their
log-probabilities differ there by what kernels do, and by nothing else. A choice is a near tie where its margin is one
that such differences can turn.

How large they are depends on the text: on the length of its context, on its logits. So a divergence is held against
what was measured on its own text, in all ways of drafting it: they compute the same rows with others beside them. The
largest of all texts would let one noisy text excuse the errors of quiet ones.

What is measured are the likeliest tokens of each row, not only those that were said. One that has nearly all of the
probability keeps it whatever its logit does; and where a temperature lets less likely tokens be said, it is they whose
logits matter, and these differ by more. With what was said alone some near ties of a quantised model looked wrong.

Of n such differences drawn alike one more is the largest with a chance of 1 in n + 1. So a text that parts after a few
places says too little of itself; there the largest of all texts is taken.

What is left: a memory that holds wrong ids some time before its text parts makes that text noisy, and could excuse what
it leads to. TOO_NOISY is the bound for that.

Pure: texts come in, verdicts go out.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile

BOTH = 2.0
"""Two tokens change places where each has moved by half of their margin: so it may be twice the noise."""

LEAST, MOST = 1e-6, 100.0
"""Margins that are told apart; the largest bias that a request may have bounds them."""

LIKELIEST = 10
"""Tokens of a row that are compared."""

ENOUGH = 16
"""Places of a prompt's texts that tell how noisy they are."""

TOO_NOISY = 0.5
"""Log-probabilities of one token after the same ids do not differ by so much where only kernels differ; they would with
a memory that holds other ids than it should."""


class Verdict(StrEnum):
    """What a divergence is."""

    TIE = "near tie"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and what followed: ids, without one that ends it, the log-probability of each, and by id those of the
    likeliest in its place; drafts verified."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    likeliest: tuple[Mapping[int, float], ...]
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


def noise_of(pairs: Sequence[tuple[Text, Text]], others: float) -> float:
    """By how much, at most, log-probabilities of the likeliest tokens differ between texts of one prompt that agree up
    to them; `others`, what it is in all texts, where that is more and they agree in too few places."""
    rows = [both for pair in pairs for both in _rows(*pair)]
    own = max(
        (abs(one[token] - other[token]) for one, other in rows for token in one.keys() & other.keys()), default=0.0
    )
    return own if len(rows) >= ENOUGH else max(own, others)


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


def _rows(one: Text, other: Text) -> list[tuple[Mapping[int, float], Mapping[int, float]]]:
    """Of the ids that both have said. Not of the place where they part, or each would excuse itself."""
    return list(zip(one.likeliest, other.likeliest, strict=False))[: _shared(one, other)]
