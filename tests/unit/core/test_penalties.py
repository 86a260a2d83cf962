"""Penalties and biases, against their definition written plainly."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from specmesh.core.sampling.filters import Penalties, penalised

PROFILE = settings(derandomize=True, deadline=None, max_examples=200)
rows = st.lists(st.integers(-40, 40), min_size=1, max_size=24).map(lambda values: np.array(values, np.float32) / 4)
ids = st.lists(st.integers(0, 30), max_size=30)


@PROFILE
@given(rows, ids, st.sampled_from([1.0, 1.1, 2.0, 0.5]), st.sampled_from([0.0, 0.5, -1.0]), st.sampled_from([0.0, 1.5]))
def test_each_token_said_pays(logits, said, repeat, frequency, presence):
    row = penalised(logits, said, Penalties(repeat, frequency, presence))
    for token, score in enumerate(logits.tolist()):
        times = said.count(token)
        expected = score
        if times:
            expected = (score * repeat if score <= 0 else score / repeat) - times * frequency - presence
        assert row[token] == np.float32(expected) or abs(row[token] - expected) < 1e-5


def test_the_window_is_the_latest_ids():
    assert list(Penalties(2.0, window=2).latest([1, 2, 3])) == [2, 3]
    assert list(Penalties(2.0, window=9).latest([1, 2, 3])) == [1, 2, 3]
    assert list(Penalties(2.0, window=-1).latest([1, 2, 3])) == [1, 2, 3]
    assert not Penalties(2.0, window=0)
    assert not Penalties()
    assert Penalties(frequency=-1.0)
