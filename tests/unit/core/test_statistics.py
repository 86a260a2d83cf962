"""Counters, and the numbers that a session reports."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmesh.core import events as ev
from specmesh.core.draft_length.estimates import Arrivals, RollingAcceptance
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.report import session_report, with_drafting
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session import VerifierSession
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.core.statistics import Histogram, HistogramCounts, LastMinute, RoundCounts

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


def test_a_histogram_is_cumulative_and_its_bounds_belong_to_it():
    histogram = Histogram([0.5, 1.0])
    for value, times in ((0.5, 1), (0.7, 2), (3.0, 1), (-1.0, 1)):
        histogram.record(value, times)
    assert histogram.snapshot() == HistogramCounts([0.5, 1.0], [2, 4, 5], pytest.approx(4.9))


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
    assert minute.busy(102.0) == 0.0
    minute.record(103.2, busy=0.7)
    assert minute.busy(110.2) == pytest.approx(0.07)
    assert minute.busy(170.0) == 0.0


def test_the_report_of_a_session():
    """Opened at 10 s, decoding from 11 s: one round of 2 drafts, 1 accepted, then one without drafts."""
    costs = StepCosts()
    costs.record(1, 0.5)
    limits = TargetLimits(64, 8, frozenset())
    session = VerifierSession(
        (1, 2), SessionParams(SamplingParams(seed=9), 50), limits, costs, RollingAcceptance(), 10.0
    )
    session.handle(ev.Prefilled(1), 10.5)
    session.attach(Arrivals())
    session.handle(ev.Drafted(2, session.prefix.crc, (3, 4)), 10.8)
    session.begin(11.0)
    session.handle(ev.Stepped((3, 4), np.eye(8, dtype=np.float32)[[3, 5, 6]], 0.7), 12.0)
    session.begin(12.0)
    session.handle(ev.Stepped((), np.eye(8, dtype=np.float32)[[6]], 0.5), 13.0)
    report = session_report(session, costs, 14.0)
    assert (report["prompt_tokens"], report["generated_tokens"], report["rounds"]) == (2, 3, 2)
    assert (report["drafted"], report["accepted"], report["accept_histogram"]) == (2, 1, [1, 1])
    assert (report["acceptance_rate"], report["mean_acceptance_length"]) == (0.5, 1.5)
    assert report["time_s"] == pytest.approx(4.0)
    assert report["time_to_first_token_s"] == pytest.approx(2.0)
    assert report["tokens_per_second"] == pytest.approx(1.5)
    assert report["verify_ms"] == pytest.approx(1200)
    assert (report["seed"], report["strategy"], report["exact"]) == (9, "deterministic", True)
    assert report["one_token_step_ms"] == pytest.approx(500)
    assert report["speedup_vs_one_token_step"] == pytest.approx(0.75)


def test_network_is_the_restart_less_the_drafting():
    report = {"restart_ms": 30.0, "restarts": 2}
    assert with_drafting(report, 8, 0.040)["network_ms"] == pytest.approx(20.0)
    assert with_drafting(report, 8, 0.040)["draft_ms"] == pytest.approx(40.0)
    assert with_drafting(report, 1, 1.0)["network_ms"] == 0
    assert with_drafting({"restart_ms": "x", "restarts": None}, 2, 0.01)["network_ms"] == 0
