"""Counters, rates and rolling windows."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmesh.core.statistics import Histogram, LastMinute, RecentSamples, RoundCounts

PROFILE = settings(derandomize=True, deadline=None)

rounds = st.lists(
    st.integers(0, 6).flatmap(
        lambda drafted: st.integers(0, drafted).flatmap(
            lambda tested: st.tuples(st.just(drafted), st.just(tested), st.integers(0, tested))
        )
    ),
    max_size=30,
)


@PROFILE
@given(rounds)
def test_counts_and_rates_follow_from_the_rounds(history):
    counts = RoundCounts()
    for drafted, tested, accepted in history:
        counts.record(drafted, tested, accepted, accepted + 1)
    n_drafted, n_accepted = sum(r[0] for r in history), sum(r[2] for r in history)
    assert (counts.rounds, counts.drafted, counts.accepted) == (len(history), n_drafted, n_accepted)
    assert counts.generated == n_accepted + len(history)
    assert counts.rounds_with_drafts == sum(r[1] > 0 for r in history)
    assert counts.acceptance_rate == (n_accepted / n_drafted if n_drafted else 0.0)
    assert counts.mean_acceptance_length == pytest.approx(counts.generated / len(history) if history else 0.0)
    assert sum(counts.accept_histogram) == len(history)
    assert all(n == sum(r[2] == i for r in history) for i, n in enumerate(counts.accept_histogram))
    per_position = [
        sum(r[2] > i for r in history) / sum(r[1] > i for r in history)
        for i in range(max((r[1] for r in history), default=0))
    ]
    assert counts.acceptance_per_position() == per_position


@PROFILE
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), st.floats(0, 1))
def test_percentile_is_a_sample_with_that_share_below(samples, share):
    rolling = RecentSamples(window=16)
    for sample in samples:
        rolling.record(sample)
    window = samples[-16:]
    value = rolling.percentile(share)
    assert value in window
    assert sum(sample <= value for sample in window) >= share * len(window)
    assert rolling.percentile(0.0) == min(window)
    assert rolling.percentile(1.0) == max(window)


@PROFILE
@given(st.lists(st.tuples(st.floats(-1, 20), st.integers(1, 3)), max_size=30))
def test_histogram_counts_up_to_each_bound(samples):
    histogram = Histogram([0.5, 1.0, 10.0])
    values = []
    for value, times in samples:
        histogram.record(value, times)
        values += [max(value, 0.0)] * times
    snapshot = histogram.snapshot()
    assert snapshot["bounds"] == [0.5, 1.0, 10.0]
    assert snapshot["counts"] == [*(sum(value <= bound for value in values) for bound in (0.5, 1.0, 10.0)), len(values)]
    assert snapshot["sum"] == pytest.approx(sum(values), abs=1e-6)


def test_last_minute_has_the_whole_seconds_before_the_running_one():
    minute = LastMinute()
    assert minute.snapshot(5.0) == {kind: [0] * 60 for kind in ("drafted", "accepted", "generated")}
    minute.record(100.2, drafted=4, accepted=3, generated=4)
    minute.record(100.9, drafted=1)
    minute.record(101.0, generated=1)
    assert sum(map(sum, minute.snapshot(100.99).values())) == 0
    snapshot = minute.snapshot(102.5)
    assert {kind: bins[-2:] for kind, bins in snapshot.items()} == {
        "drafted": [5, 0],
        "accepted": [3, 0],
        "generated": [4, 1],
    }
    assert minute.snapshot(160.0)["drafted"][0] == 5
    assert minute.snapshot(161.0)["drafted"] == [0] * 60
    assert minute.snapshot(161.0)["generated"][0] == 1
