"""The numbers that a session reports."""

import numpy as np
import pytest
from harness.sessions import session as session_of

from specmesh.core import events as ev
from specmesh.core.draft_length.estimates import StepCosts
from specmesh.core.report import session_report
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams, TargetLimits


def test_the_report_of_a_session():
    """Opened at 0 s, decoding from 11 s: one round of 2 drafts, 1 accepted, then one without drafts."""
    costs = StepCosts()
    costs.record(1, 0.5)
    limits = TargetLimits(64, 8, frozenset())
    session = session_of((1, 2), SessionParams(SamplingParams(seed=9), 50), limits, costs=costs)
    session.prefilled(1)
    session.heard(ev.Drafted(2, session.prefix.crc, (3, 4)), 10.8)
    session.begin(11.0)
    session.stepped((3, 4), np.eye(8, dtype=np.float32)[[3, 5, 6]], 12.0, 0.7)
    session.begin(12.0)
    session.stepped((), np.eye(8, dtype=np.float32)[[6]], 13.0, 0.5)
    report = session_report(session, costs, 14.0)
    assert (report["prompt_tokens"], report["generated_tokens"], report["rounds"]) == (2, 3, 2)
    assert (report["drafted"], report["accepted"], report["accept_histogram"]) == (2, 1, [1, 1])
    assert (report["acceptance_rate"], report["mean_acceptance_length"]) == (0.5, 1.5)
    assert report["time_s"] == pytest.approx(14.0)
    assert report["time_to_first_token_s"] == pytest.approx(12.0)
    assert report["tokens_per_second"] == pytest.approx(1.5)
    assert report["verify_ms"] == pytest.approx(1200)
    assert (report["seed"], report["strategy"], report["exact"]) == (9, "deterministic", True)
    assert report["one_token_step_ms"] == pytest.approx(500)
    assert report["speedup_vs_one_token_step"] == pytest.approx(0.75)
