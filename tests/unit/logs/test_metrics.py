"""A snapshot as Prometheus reads it, with the reader that prometheus_client has itself."""

import re
from dataclasses import asdict
from pathlib import Path

from harness import snapshots
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from specmesh.api.metrics import exposition
from specmesh.wire.messages import FinishReason

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def scraped(snapshot, reason=None):
    """{(sample, its labels): value} as both formats say it."""
    text, content_type = exposition(snapshot, "", healthy=reason is None)
    assert content_type.startswith("text/plain; version=0.0.4")
    open_text, content_type = exposition(snapshot, OPENMETRICS, healthy=reason is None)
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


def test_operations_names_them():
    """The table of docs/operations.md has each metric, and none besides."""
    text = (Path(__file__).parents[3] / "docs" / "operations.md").read_text(encoding="utf-8")
    table = text.partition("\n### Metrics\n")[2].partition("\n### ")[0]
    cells = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    told = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    series = scraped(snapshots.verifier()) | scraped(snapshots.drafter())
    there = {re.sub(r"^specmesh_|_(bucket|count|sum)$", "", name) for name, *_ in series}
    assert sorted(told) == sorted(there)


def test_no_label_names_a_peer_or_a_session():
    """Nothing that a peer says of itself, and no session, is in the metrics; its busy share is brought into range."""
    peer = snapshots.peer()
    for told, busy in ((1e9, 1.0), (-5.0, 0.0), (float("nan"), 0.0)):
        peer.link.heard_busy(told)
        assert peer.link.busy == busy
    text = exposition(snapshots.verifier(), "", healthy=True)[0].decode()
    assert not any(word in text for word in ("mac:", "5088330", "big.gguf"))


def test_each_end_is_counted():
    """By its reason, but for a session that another drafter has now."""
    sessions = snapshots.verifier(ended=FinishReason).sessions
    assert asdict(sessions.ended) == {reason: 1 for reason in FinishReason if reason is not FinishReason.MOVED}


def test_what_is_not_there_is_left_out():
    """A daemon that loads its model has no more than that."""
    told = scraped(snapshots.LOADING, "loading")
    assert (told.pop(("specmesh_engine_healthy",)), told.pop(("specmesh_loading_ratio",))) == (0, 0.43)
    assert {name for name, *_ in told} == {"specmesh_build_info", "specmesh_uptime_seconds"}
