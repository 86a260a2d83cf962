"""The rows of a step as the core sees them: logits, or the choices that a target made itself.

A target of this project gives logits, and the core chooses. Another server's target chooses by
itself: it says which ids its text got, and shows no logits. Both are `TargetRows`. A greedy choice
asks a row for its `argmax` and for nothing else, so the core need not know which of them it has.
"""

from typing import Protocol, SupportsInt, cast

import numpy as np
from numpy.typing import NDArray

from specmesh.errors import LocalProtocolError

Logits = NDArray[np.float32]
"""The logits of a span, (rows, n_vocab). They are `TargetRows` as well."""


class TargetRow(Protocol):
    """What the target says of the id at one place, as far as a greedy text needs it."""

    def argmax(self) -> SupportsInt:
        """Return the id that is chosen there: that of the largest logit.

        Raise RequestError if the target has chosen none there: the round ends before it.
        """
        ...


class TargetRows(Protocol):
    """The rows of a span. Only greedy texts can be made of rows that are no `Logits`."""

    def __getitem__(self, index: int, /) -> TargetRow:
        """Return what follows the first `index` + 1 ids of the span."""
        ...


def logits_of(rows: TargetRows) -> Logits:
    """Return the logits of rows. Raise LocalProtocolError if they are choices only."""
    if not isinstance(rows, np.ndarray):
        raise LocalProtocolError("a target that names its choices only has greedy texts")
    return cast("Logits", rows)
