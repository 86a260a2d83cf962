"""What a model holds in simulated worlds; the target's logits are a hash of it, see fuzz/oracle.py."""

import numpy as np

from fuzz.oracle import row
from specmesh.core.prefix import Prefix


class Memory:
    def __init__(self, n_ctx, end_bias):
        self.held = Prefix()
        self.n_ctx, self.end_bias = n_ctx, end_bias
        self.begun = 0  # where the last step over drafts began

    def logits(self):
        return row(self.held.crc, end_bias=self.end_bias)

    def take(self, position, ids):
        assert 0 <= position <= len(self.held), "a cut cannot add ids"
        self.held.truncate(position)
        self.held.extend(ids)
        assert len(self.held) <= self.n_ctx, "the model's memory is full"

    def run(self, span):
        """Carry out a span of a target's step; one row of logits per id where they are wanted."""
        if span.position < len(self.held):
            assert span.position > self.begun, "engines can be asked back into the last step only"
        if not span.logits:
            self.take(span.position, span.ids)
            return None
        self.begun, rows = span.position, []
        for position, token in enumerate(span.ids, span.position):
            self.take(position, [token])
            rows.append(self.logits())
        return np.stack(rows)
