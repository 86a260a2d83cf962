"""The target of simulated worlds, the text that it says alone, and what a model holds.

Its logits are a hash of what its memory holds, so a wrong position or a missed trim changes the text.
"""

from hashlib import blake2b

import numpy as np

from specmesh.core import events as ev
from specmesh.core.prefix import Prefix
from specmesh.core.sampling import Sampler

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
    """The ids a model holds. Asserts that every plan continues exactly there."""

    def __init__(self, n_ctx, end_bias):
        self.held = Prefix()
        self.n_ctx, self.end_bias = n_ctx, end_bias
        self.begun = 0  # where the last step over drafts began
        self.aside = None  # what the sequence of its side chain holds

    def logits(self):
        return target_logits(self.held.crc, self.end_bias)

    def append(self, ids):
        self.held.extend(ids)
        assert len(self.held) <= self.n_ctx, "the model's memory is full"

    def trim(self, length):
        assert 0 <= length <= len(self.held), "a trim cannot add ids"
        self.held.truncate(length)

    def run(self, part):
        """Carry out a plan of a verifier session; one row of logits per verified id."""
        assert part.position == len(self.held), "the plan is not where the memory ends"
        if isinstance(part, ev.Prefill):
            assert part.ids, "an empty prefill"
            self.append(part.ids)
            return None
        rows = []
        self.begun = part.position
        for token in (part.last, *part.drafts):
            self.append([token])
            rows.append(self.logits())
        return np.stack(rows)
