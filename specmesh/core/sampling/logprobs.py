"""Log-probabilities of a text's tokens: natural logarithms of the target's own softmax.

They are those of OpenAI's API and of llama-server: of the logits as the model gives them, before
biases, penalties, a grammar, filters and the temperature. Drafts change nothing about them: each id
comes with the row that chose it.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specmesh.core.sampling.sampler import Logits, largest

MAX_ALTERNATIVES = 20  # most alternatives that are shown of a token: OpenAI's
LEAST = -9999.0  # stands for anything less: OpenAI's, as JSON knows no infinity
_HUGE = 1e30  # stands for logits that are no finite numbers


class Logprob(NamedTuple):
    """Log-probabilities at one position of a text.

    chosen: of the token itself. ids, top: the likeliest tokens and their log-probabilities, the
    likeliest first.
    """

    chosen: float
    ids: tuple[int, ...] = ()
    top: tuple[float, ...] = ()


FlatLogprobs = tuple[list[float], list[int], list[float]]
"""Those of several positions: of the tokens themselves; the likeliest tokens of all positions, as
many for each; the log-probabilities of these.
"""


def flattened(logprobs: Sequence[Logprob | None], most: int) -> Iterator[tuple[int, FlatLogprobs]]:
    """Yield parts of at most `most` positions in the form of the wire, each with its offset."""
    for begin in range(0, len(logprobs), most):
        chosen: list[float] = []
        ids: list[int] = []
        top: list[float] = []
        for logprob in logprobs[begin : begin + most]:
            if logprob is not None:
                chosen.append(logprob.chosen)
                ids += logprob.ids
                top += logprob.top
        yield begin, (chosen, ids, top)


def unflattened(flat: FlatLogprobs) -> list[Logprob]:
    """Return a peer's log-probabilities in order; none if its lists do not fit each other."""
    chosen, ids, top = flat
    if not chosen:
        return []
    each, rest = divmod(len(ids), len(chosen))
    if rest or len(top) != len(ids):
        return []
    logprobs: list[Logprob] = []
    for number, own in enumerate(chosen):
        part = slice(number * each, (number + 1) * each)
        logprobs.append(Logprob(own, tuple(ids[part]), tuple(top[part])))
    return logprobs


def logprobs_of(logits: Logits, token: int, top: int) -> Logprob:
    """Return the log-probabilities of a token chosen from a row, and of the `top` likeliest.

    They are rounded to six decimals, so that they are the same in every answer.
    """
    logits = np.nan_to_num(logits, nan=-_HUGE, posinf=_HUGE, neginf=-_HUGE)
    scores = logits.astype(np.float64)
    scores -= scores.max()
    scores -= log(float(np.exp(scores).sum()))
    likeliest: list[int] = []
    if top:
        likeliest = largest(logits, top).ids.tolist()
    shown = np.maximum(scores[[token, *likeliest]], LEAST).round(6)
    shown += 0.0  # -0.0 becomes 0.0
    chosen, *others = shown.tolist()
    return Logprob(chosen, tuple(likeliest), tuple(others))


class LogprobRecorder:
    """The log-probabilities of a text, by absolute position from `begin` on.

    top: likeliest tokens that each position shows.
    """

    __slots__ = ("_recorded", "_top", "begin")

    def __init__(self, top: int, begin: int) -> None:
        self.begin = begin
        self._top = top
        self._recorded: list[Logprob] = []

    def take(self, rows: Iterable[NDArray[np.float32]], chosen: Sequence[int]) -> None:
        """Record the next tokens, with the rows that they were chosen from."""
        for row, token in zip(rows, chosen, strict=False):
            self._recorded.append(logprobs_of(row, token, self._top))

    def between(self, begin: int, end: int) -> tuple[Logprob | None, ...]:
        """Return those of the positions [begin, end), None before the first recorded one."""
        missing = min(max(self.begin - begin, 0), end - begin)
        first = begin + missing - self.begin
        recorded = self._recorded[first : end - self.begin]
        return (None,) * missing + tuple(recorded)
