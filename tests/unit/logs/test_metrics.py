"""A snapshot as Prometheus reads it, with the reader that prometheus_client has itself."""

import re
from pathlib import Path

import pytest
from harness.snapshots import backend
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from specmesh.api.metrics import Exposition
from specmesh.core.events import Shadowed
from specmesh.daemons.verifier.statistics import VerifierStats

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def scraped(snapshot, reason=None):
    """{(sample, its labels): value} as both formats say it."""
    exposition = Exposition(backend(snapshot, reason))
    text, content_type = exposition.answer("")
    assert content_type.startswith("text/plain; version=0.0.4")
    open_text, content_type = exposition.answer(OPENMETRICS)
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert open_text.endswith(b"# EOF\n")
    values = _values(read_text(text.decode()))
    assert values == _values(read_openmetrics(open_text.decode()))
    return values


def _values(families):
    samples = [sample for family in families for sample in family.samples]
    values = {(sample.name, *sorted(sample.labels.items())): sample.value for sample in samples}
    assert len(values) == len(samples), "each series is there once"
    assert all(name.startswith("specmesh_") for name, *_ in values)
    return values


def test_operations_names_them(snapshots):
    """The table of docs/operations.md has each metric, and none besides."""
    text = (Path(__file__).parents[3] / "docs" / "operations.md").read_text(encoding="utf-8")
    table = text.partition("\n### Metrics\n")[2].partition("\n### ")[0]
    cells = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    told = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    series = scraped(snapshots.verifier()) | scraped(snapshots.drafter())
    there = {re.sub(r"^specmesh_|_(bucket|count|sum)$", "", name) for name, *_ in series}
    assert sorted(told) == sorted(there)


EXPECTED = """
engine_healthy 1   loading_ratio 1   num_requests_running 1   num_requests_waiting 3   num_sessions_kept 2
resumed_requests_total 0   prefix_cache_hits_total 70   prefix_cache_hit_requests_total 2
prefix_cache_kept_tokens 40   drafter_up 1   num_drafters 1   one_token_step_seconds 0.034
verification_rounds_total 6   spec_decode_num_drafts_total 4   spec_decode_num_draft_tokens_total 8
spec_decode_num_accepted_tokens_total 6   spec_decode_num_accepted_tokens_per_pos_total{position=0} 4
spec_decode_num_accepted_tokens_per_pos_total{position=1} 2
spec_decode_num_tested_tokens_per_pos_total{position=1} 4   generation_tokens_total 12   prompt_tokens_total 10
request_success_total{finished_reason=length} 1   request_success_total{finished_reason=stop} 0
failed_requests_total{reason=error} 0   cancelled_requests_total 0   fallback_steps_total{reason=no_drafts} 2
fallback_steps_total{reason=no_drafter} 0   stale_drafts_total 0   drafter_changes_total{reason=better} 0
frames_rejected_total{reason=magic} 1   handshake_failures_total{reason=version} 0   drafter_reconnects_total 0
log_lines_dropped_total 0   wire_bytes_total{direction=sent} 100   wire_frames_total{direction=received} 1
busy_ratio{side=drafter} 0.25   time_to_first_token_seconds_count 2   time_to_first_token_seconds_sum 1
inter_token_latency_seconds_count 6   inter_token_latency_seconds_sum 2
inter_token_latency_seconds_bucket{le=0.25} 4   e2e_request_latency_seconds_count 1
e2e_request_latency_seconds_sum 2   draft_rtt_seconds_bucket{le=0.005} 1   draft_rtt_seconds_bucket{le=0.0025} 0
"""


def test_verifier(snapshots):
    """A verifier's metrics are the numbers of its snapshot; it has had two sessions of these three steps."""
    told = scraped(snapshots.verifier())
    values = {
        name.removeprefix("specmesh_") + "".join(f"{{{label}={of}}}" for label, of in labels): value
        for (name, *labels), value in told.items()
    }
    words = EXPECTED.split()
    expected = dict(zip(words[::2], map(float, words[1::2]), strict=True))
    assert {series: values.get(series) for series in expected} == pytest.approx(expected)
    assert any(name == "specmesh_build_info" and ("role", "verifier") in labels for name, *labels in told)


def test_no_label_names_a_peer_or_a_session(snapshots):
    """Nothing that a peer says of itself, and no session, is in the metrics; its busy share is brought into range."""
    peer = snapshots.peer()
    for told, busy in ((1e9, 1.0), (-5.0, 0.0), (float("nan"), 0.0)):
        peer.link.told(1, told, 2.0)
        assert peer.link.busy == busy
    text = Exposition(backend(snapshots.verifier())).answer("")[0].decode()
    assert not any(word in text for word in ("mac:", "5088330", "big.gguf"))


def test_what_is_not_there_is_left_out(snapshots):
    """A daemon that loads its model has no more than that."""
    told = scraped(snapshots.LOADING, "loading")
    assert (told.pop(("specmesh_engine_healthy",)), told.pop(("specmesh_loading_ratio",))) == (0, 0.43)
    assert {name for name, *_ in told} == {"specmesh_build_info", "specmesh_uptime_seconds"}


def test_a_session_that_ends_keeps_its_counts(snapshots):
    stats, costs = VerifierStats(0.0), snapshots.StepCosts()
    live = snapshots.opened(stats, 1)
    live.machine.handle(Shadowed(0, 1, (1,)), snapshots.OPENED)  # of another text
    for lives in ([live], []):
        snapshot = stats.snapshot(snapshots.INFO, lives, [], costs, snapshots.traffic(), 151.0, **snapshots.TOLD)
        assert scraped(snapshot)["specmesh_stale_drafts_total",] == 1
        stats.ended(live.machine, "cancelled", 151.0)
