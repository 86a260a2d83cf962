"""The largest of a large vocabulary, found without ordering it, and what filters leave of them."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from specmesh.core.sampling.sampler import STRIPES, at_least, largest, min_p, nucleus, top_p

PROFILE = settings(derandomize=True, deadline=None, max_examples=60)


def row(seed, size, kind):
    """A row of a large vocabulary: spread, with many ties, peaked, or partly impossible."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, size).astype(np.float32)
    match kind:
        case "ties":
            logits = np.round(logits)
        case "peaked":
            logits[rng.integers(0, size, 3)] += 30
        case "impossible":
            logits[rng.random(size) < 0.9] = -np.inf
            logits[0] = 0.0
        case "flat":
            logits[:] = 1.5
    return logits


def plain(logits, count):
    return np.argsort(-logits, kind="stable")[:count]


large = st.builds(
    row,
    st.integers(0, 2**32),
    st.sampled_from([1, 7, STRIPES, 1000, STRIPES * 41 + 13, 20_001]),
    st.sampled_from(["spread", "ties", "peaked", "impossible", "flat"]),
)


@PROFILE
@given(large, st.sampled_from([1, 2, 40, 300, 10**6]))
def test_largest_is_the_head_of_the_whole_order(logits, count):
    found = largest(logits, count)
    assert found.ids.tolist() == plain(logits, count).tolist()
    assert found.scores.tolist() == logits[found.ids].tolist()


@PROFILE
@given(large, st.floats(0.001, 0.999))
def test_nucleus_is_top_p_of_everything(logits, share):
    slow, fast = top_p(largest(logits, len(logits)), share), nucleus(logits, share)
    assert abs(len(slow.ids) - len(fast.ids)) <= 1
    shorter = min(len(slow.ids), len(fast.ids))
    assert slow.ids[:shorter].tolist() == fast.ids[:shorter].tolist()


@PROFILE
@given(large, st.floats(1e-6, 1.0))
def test_at_least_is_min_p_of_everything(logits, share):
    slow, fast = min_p(largest(logits, len(logits)), share), at_least(logits, share)
    assert slow.ids.tolist() == fast.ids.tolist()
