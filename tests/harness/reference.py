"""Speculative decoding on one screen.

In each step a drafter proposes up to k ids. The target reads them after the text, all at once, and
has a row of logits for each place. A draft stands if the target chooses the same id there. The
first one that differs is replaced by the target's choice; if all stand, the last row gives one id
more (Leviathan et al., arXiv 2211.17192). The noise of a seeded choice depends on seed, position
and token only (Daliri et al., arXiv 2408.07978), so the text is the target's own for every drafter.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from specmesh.core.sampling.noise import gumbel

Row = Sequence[float] | NDArray[np.float32]
Target = Callable[[Sequence[int]], Row]
"""Returns the logits after some ids."""
Drafter = Callable[[Sequence[int], int], Sequence[int]]
"""Returns at most k ids that may follow some ids."""
Choose = Callable[[Row, Sequence[int]], int]
"""Chooses the id that follows some ids by its row."""


def greedy(row: Row, ids: Sequence[int]) -> int:
    return list(row).index(max(row))


def seeded(seed: int, temperature: float) -> Choose:
    def choose(row: Row, ids: Sequence[int]) -> int:
        tokens = np.arange(len(row))
        noise = gumbel(np.uint64(seed), len(ids), tokens)
        scores = [logit / temperature + luck for logit, luck in zip(row, noise, strict=True)]
        return scores.index(max(scores))

    return choose


def no_drafts(ids: Sequence[int], k: int) -> Sequence[int]:
    return ()


def decode(
    target: Target, drafter: Drafter, k: int, prompt: Sequence[int], choose: Choose = greedy
) -> Iterator[list[int]]:
    """Yield the ids that each step adds to a prompt; there is no last one."""
    ids = list(prompt)
    while True:
        drafts = drafter(ids, k)[:k]
        known = list(ids)
        rows = [target(known)]
        for draft in drafts:
            known.append(draft)
            rows.append(target(known))
        added = list[int]()
        for row, draft in zip_longest(rows, drafts):
            token = choose(row, [*ids, *added])
            added.append(token)
            if token != draft:
                break
        ids += added
        yield added
