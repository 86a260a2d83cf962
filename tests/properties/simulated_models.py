"""The target of simulated worlds, the text that it says alone, and what a model holds.

Its logits are a hash of what its memory holds, so a wrong position or a missed trim changes the text.
"""

from hashlib import blake2b

import numpy as np

from specmesh.core.prefix import Prefix
from specmesh.core.sampling.sampler import Sampler

N_VOCAB = 16
END = 0


def target_logits(crc, end_bias=-3.5):
    """The target's row after the prefix with this CRC: a hash, with an end id that is possible but rare."""
    row = np.frombuffer(blake2b(b"%d" % crc, digest_size=N_VOCAB).digest(), np.uint8).astype(np.float32) / 32
    row[END] += end_bias
    return row


def alone(prompt, params, n_ctx, end_bias=-3.5):
    """What the target says without any drafter, one row per step: (ids shown, finish reason)."""
    prefix, sampler, shown = Prefix(prompt), Sampler(params.sampling), []
    while True:
        token = sampler.after(prefix[0 : len(prefix)]).choose(target_logits(prefix.crc, end_bias), len(prefix))
        prefix.extend([token])
        if token == END:
            return shown, "stop"
        shown.append(token)
        if len(shown) == params.max_tokens or len(prefix) == n_ctx:
            return shown, "length"


class Memory:
    """The ids a model holds."""

    def __init__(self, n_ctx, end_bias):
        self.held = Prefix()
        self.n_ctx, self.end_bias = n_ctx, end_bias
        self.begun = 0  # where the last step over drafts began

    def logits(self):
        return target_logits(self.held.crc, self.end_bias)

    def take(self, position, ids):
        """Cut it to `position`, then append ids."""
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
