"""How likely the target held what it said: natural logarithms of its own softmax, before anything that sampling does.

They are those of OpenAI's API and of llama-server: of the logits as the model gives them, before biases, penalties, a
grammar, filters and the temperature. Drafts change nothing about them: each id comes with the row that chose it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

from specmesh.core.sampling.sampler import Logits, largest

MAX_ALTERNATIVES = 20  # most alternatives that are shown of a token: OpenAI's
LEAST = -9999.0  # what stands for anything less: OpenAI's, as JSON knows no infinity
_HUGE = 1e30  # stands for logits that are no finite numbers


@dataclass(frozen=True, slots=True)
class Logprob:
    """Of one token of a text: its own logarithm, and those of the likeliest ids there, the likeliest first."""

    chosen: float
    ids: tuple[int, ...] = ()
    top: tuple[float, ...] = ()


FlatLogprobs = tuple[list[float], list[int], list[float]]
"""Of each token its own logarithm; the likeliest ids of all, as many for each; and those of these."""


def flattened(logprobs: Sequence[Logprob | None], most: int) -> Iterator[tuple[int, FlatLogprobs]]:
    """Yield them in parts of at most `most` tokens, each with its offset."""
    for at in range(0, len(logprobs), most):
        found = [one for one in logprobs[at : at + most] if one is not None]
        ids = [token for one in found for token in one.ids]
        yield (
            at,
            ([one.chosen for one in found], ids, [score for one in found for score in one.top]),
        )


def unflattened(flat: FlatLogprobs) -> list[Logprob]:
    """Return those of a peer in order; none where its parts do not fit each other."""
    chosen, ids, top = flat
    each, odd = divmod(len(ids), len(chosen)) if chosen else (0, 0)
    if odd or len(top) != len(ids):
        return []
    parts = [slice(at * each, (at + 1) * each) for at in range(len(chosen))]
    return [
        Logprob(one, tuple(ids[part]), tuple(top[part]))
        for one, part in zip(chosen, parts, strict=True)
    ]


def logprobs_of(logits: Logits, token: int, top: int) -> Logprob:
    """Of a token chosen from this row, with the `top` likeliest; to six decimals, the same wherever they are shown."""
    logits = np.nan_to_num(logits, nan=-_HUGE, posinf=_HUGE, neginf=-_HUGE)
    scores = logits.astype(np.float64)
    scores -= scores.max()
    scores -= log(float(np.exp(scores).sum()))
    likeliest = largest(logits, top).ids if top else np.empty(0, np.int64)
    chosen, *others = (
        np.maximum(scores[np.append(token, likeliest)], LEAST).round(6) + 0.0
    ).tolist()  # no -0.0
    return Logprob(chosen, tuple(likeliest.tolist()), tuple(others))


class LogprobRecorder:
    """Those of a text, by absolute position from `begin` on, each with the `top` likeliest."""

    __slots__ = ("_found", "_top", "begin")

    def __init__(self, top: int, begin: int) -> None:
        self.begin = begin
        self._top = top
        self._found: list[Logprob] = []

    def take(self, rows: Iterable[NDArray[np.float32]], chosen: Sequence[int]) -> None:
        self._found += [
            logprobs_of(row, token, self._top) for row, token in zip(rows, chosen, strict=False)
        ]

    def between(self, begin: int, end: int) -> tuple[Logprob | None, ...]:
        """Return those of the positions [begin, end), None before the first known one."""
        before = min(max(self.begin - begin, 0), end - begin)
        return (None,) * before + tuple(self._found[begin + before - self.begin : end - self.begin])
