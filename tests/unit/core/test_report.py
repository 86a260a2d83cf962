"""The numbers a session reports."""

import numpy as np
import pytest

from specmesh.core import events as ev
from specmesh.core.draft_length.estimates import Arrivals, RollingAcceptance
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.report import session_report, with_drafting
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session import VerifierSession
from specmesh.core.session_params import SessionParams, TargetLimits


def rows(*tokens):
    """Logits whose greedy choices are `tokens`."""
    logits = np.zeros((len(tokens), 8), dtype=np.float32)
    logits[np.arange(len(tokens)), tokens] = 1.0
    return logits


def stepped():
    """A session opened at 10 s, decoding from 11 s: one round of 2 drafts, 1 accepted, then one without drafts."""
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
    session.handle(ev.Stepped((3, 4), rows(3, 5, 6), 0.7), 12.0)
    session.begin(12.0)
    session.handle(ev.Stepped((), rows(6), 0.5), 13.0)
    return session, costs


def test_counts_and_rates():
    """Three tokens in two rounds over two seconds of decoding, one of two drafts accepted."""
    session, costs = stepped()
    report = session_report(session, costs, 14.0)
    assert (report["prompt_tokens"], report["generated_tokens"], report["rounds"]) == (2, 3, 2)
    assert (report["drafted"], report["accepted"], report["accept_histogram"]) == (2, 1, [1, 1])
    assert (report["acceptance_rate"], report["mean_acceptance_length"]) == (0.5, 1.5)
    assert report["time_s"] == pytest.approx(4.0)
    assert report["time_to_first_token_s"] == pytest.approx(2.0)
    assert report["tokens_per_second"] == pytest.approx(1.5)
    assert report["verify_ms"] == pytest.approx(1200)
    assert (report["seed"], report["strategy"], report["exact"]) == (9, "deterministic", True)


def test_the_baseline_is_the_measured_one_token_step():
    session, costs = stepped()
    report = session_report(session, costs, 14.0)
    assert report["one_token_step_ms"] == pytest.approx(500)
    assert report["speedup_vs_one_token_step"] == pytest.approx(0.75)


def test_before_anything_happened():
    """A session that never stepped has no first token and no rate, and nothing divides by zero."""
    limits = TargetLimits(64, 8, frozenset())
    session = VerifierSession((1,), SessionParams(SamplingParams(), 5), limits, StepCosts(), RollingAcceptance(), 1.0)
    report = session_report(session, StepCosts(), 2.0)
    assert report["time_to_first_token_s"] is None
    assert report["tokens_per_second"] == 0
    assert with_drafting(report, 0, 0.0)["network_ms"] == 0


def test_network_is_the_restart_less_the_drafting():
    report = {"restart_ms": 30.0, "restarts": 2}
    assert with_drafting(report, 8, 0.040)["network_ms"] == pytest.approx(20.0)
    assert with_drafting(report, 8, 0.040)["draft_ms"] == pytest.approx(40.0)
    assert with_drafting(report, 1, 1.0)["network_ms"] == 0


def test_a_peers_report_is_not_trusted():
    assert with_drafting({"restart_ms": "x", "restarts": None}, 2, 0.01)["network_ms"] == 0
