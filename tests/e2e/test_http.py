"""The local API as `curl --unix-socket` sees it, on running daemons."""

from processes import Daemon, body, complete, drafted, until
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from served import Served

PROMPT = "GET / HTTP/1.1"

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
"""The other format is what tests/contract/test_golden.py reads."""


def scraped(daemon: Daemon) -> dict[tuple[object, ...], float]:
    """/metrics: {(sample, its labels): value}."""
    answer = Served(daemon).ask("GET", "/metrics", Accept=OPENMETRICS)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith(OPENMETRICS)
    samples = [sample for family in read_openmetrics(answer.raw.decode()) for sample in family.samples]
    return {(sample.name, *sorted(sample.labels.items())): sample.value for sample in samples}


def test_metrics_agree_with_stats(pair: dict[str, Daemon]):
    """/metrics of both daemons is what Prometheus reads: the counters are those of /stats, and they only rise."""
    drafted(pair["drafter"], body(PROMPT, 60, draft_n=4))  # no counter is 0 from here on
    before = {role: scraped(daemon) for role, daemon in pair.items()}
    report = complete(pair["drafter"], body(PROMPT, 60, draft_n=4)).result["report"]
    after = until(lambda: agreed(pair, before), "the counters are those of /stats")
    for role in pair:
        for series, value in before[role].items():
            if str(series[0]).endswith(("_total", "_bucket", "_count", "_sum")):
                assert after[role][series] >= value, series
    told, other = after["verifier"], after["drafter"]
    success = ("specmesh_request_success_total", ("finished_reason", "length"))
    assert told[success] == before["verifier"][success] + 1
    for name in ("drafted", "accepted"):
        series = (f"specmesh_spec_decode_num_{'draft' if name == 'drafted' else name}_tokens_total",)
        assert told[series] == before["verifier"][series] + report[name]
    assert told["specmesh_engine_healthy",] == other["specmesh_engine_healthy",] == 1
    assert told["specmesh_num_drafters",] == other["specmesh_num_verifiers",] == 1
    assert told["specmesh_round_trip_seconds_count",] > 0


SAME = {
    "verifier": (
        *(("generation_tokens", "generated_tokens"), ("prompt_tokens", "prompt_tokens")),
        *(("spec_decode_num_drafts", "rounds_with_drafts"), ("spec_decode_num_draft_tokens", "drafted")),
        ("spec_decode_num_accepted_tokens", "accepted"),
    ),
    "drafter": (
        ("drafter_drafted_tokens", "draft_tokens"),
        *((f"drafter_{key}_tokens", key) for key in ("accepted", "committed")),
    ),
}
"""Counters of /metrics, and what they are called in the totals of /stats."""

Scraped = dict[str, dict[tuple[object, ...], float]]


def agreed(pair: dict[str, Daemon], before: Scraped) -> Scraped | None:
    """/metrics of both, once they say what /stats says, and that 60 tokens have come."""
    after = {role: scraped(daemon) for role, daemon in pair.items()}
    totals = {role: daemon.stats()["totals"] for role, daemon in pair.items()}
    generated = ("specmesh_generation_tokens_total",)
    same = [
        after[role][f"specmesh_{name}_total",] == totals[role][key] > 0 for role in SAME for name, key in SAME[role]
    ]
    same.append(after["drafter"]["specmesh_draft_seconds_count",] == totals["drafter"]["draft_tokens"])
    same.append(after["verifier"][generated] == before["verifier"][generated] + 60)
    return after if all(same) else None
