"""`/metrics`: a daemon's snapshot as Prometheus and OpenMetrics read it.

Names end as those of vLLM and llama.cpp do. No label says anything of a request, a prompt or a peer.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from specmesh import __version__
from specmesh.api.requests import Backend
from specmesh.client import Fields

PREFIX = "specmesh_"


class _Number(NamedTuple):
    """A number of the snapshot as a metric, `times` from its unit to ours.

    With `label`, the numbers of an object or list; the label names them; `only`: those of these names.
    """

    help: str
    path: str
    label: str | None = None
    only: tuple[str, ...] = ()
    times: float = 1.0


_COUNTERS = {
    "drafter_reconnects": _Number("Connections of drafter and verifier after one was lost.", "reconnects"),
    "handshake_failures": _Number("Peers that were refused.", "handshake_failures", "reason"),
    "frames_rejected": _Number("Frames refused.", "wire.rejected", "reason"),
    "resumed_requests": _Number("Completions resumed after a connection or a daemon was lost.", "sessions.resumed"),
    "log_lines_dropped": _Number("Log lines that could not be written.", "log_lines_dropped"),
    "prefix_cache_hits": _Number("Tokens found in the prefix cache and not computed again.", "reuse.tokens_saved"),
    "prefix_cache_hit_requests": _Number("Sessions that found some there.", "reuse.hits"),
    "stray_frames": _Number("Frames for sessions that are over or another drafter's.", "wire.stray"),
}
_VERIFIER_COUNTERS = {
    "spec_decode_num_drafts": _Number("Steps with drafts.", "totals.rounds_with_drafts"),
    "spec_decode_num_draft_tokens": _Number("Drafts verified.", "totals.drafted"),
    "spec_decode_num_accepted_tokens": _Number("Drafts accepted.", "totals.accepted"),
    "spec_decode_num_accepted_tokens_per_pos": _Number(
        "Drafts accepted at this position of a step, from 0.", "totals.accepted_at", "position"
    ),
    "spec_decode_num_tested_tokens_per_pos": _Number(
        "Drafts compared at this position: all before them in the step were accepted.", "totals.tested_at", "position"
    ),
    "verification_rounds": _Number("Steps that committed tokens, counted per session.", "totals.rounds"),
    "generation_tokens": _Number("Tokens generated.", "totals.generated"),
    "prompt_tokens": _Number("Prompt tokens of all sessions opened.", "totals.prompt_tokens"),
    "stale_drafts": _Number("DRAFTs that came too late or did not fit the text.", "totals.stale_drafts"),
    "fallback_steps": _Number(
        "Steps without drafts of sessions that may draft: no drafter attached, or no drafts in hand or wanted.",
        "totals.fallback_steps",
        "reason",
    ),
    "drafter_changes": _Number("Changes of a session's drafter.", "drafter_changes", "reason"),
    "cancelled_requests": _Number("Requests whose client left.", "sessions.ended.cancelled"),
    "request_success": _Number("Requests completed.", "sessions.ended", "finished_reason", ("stop", "length")),
    "failed_requests": _Number("Requests that failed.", "sessions.ended", "reason", ("error", "shutdown")),
}
_DRAFTER_COUNTERS = {
    "drafter_drafted_tokens": _Number("Tokens this drafter has drafted.", "totals.drafted"),
    "drafter_accepted_tokens": _Number("Of these, those that were accepted.", "totals.accepted"),
    "drafter_committed_tokens": _Number("Tokens the verifier committed meanwhile.", "totals.committed"),
}
_GAUGES = {
    "uptime_seconds": _Number("Seconds since the start.", "uptime_s"),
    "num_requests_running": _Number("Sessions held now.", "sessions.live"),
    "num_requests_waiting": _Number("Requests that have no session yet.", "sessions.queued"),
    "num_sessions_kept": _Number("Sessions of a drafter that went away, kept for it.", "sessions.kept"),
    "num_requests_interrupted": _Number("Requests that wait for the verifier to return.", "sessions.interrupted"),
    "prefix_cache_kept_tokens": _Number("Tokens in the prefix cache.", "reuse.kept_tokens"),
    "draft_n": _Number("Drafts that the newest session's drafter is asked for.", "draft_n"),
    "one_token_step_seconds": _Number("Measured time of a step of one token.", "one_token_step_ms", times=1e-3),
}
_HISTOGRAMS = {
    "time_to_first_token_seconds": ("From the request to the first token.", "time_to_first_token_s"),
    "inter_token_latency_seconds": (
        "Seconds per token after the first round, a round's time shared by its tokens.",
        "inter_token_latency_s",
    ),
    "e2e_request_latency_seconds": ("From the request to its last token.", "request_latency_s"),
    "draft_rtt_seconds": ("From a PING to its PONG.", "round_trip_s"),
    "draft_seconds": ("Seconds per draft of the draft model.", "draft_s"),
}


class _SnapshotCollector(Collector):
    """The metrics of one daemon. What its snapshot does not have, such as a verifier's numbers while it loads, is left
    out."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def collect(self) -> Iterator[Metric]:
        stats, role = Fields(self._backend.stats()), self._backend.role
        yield InfoMetricFamily(PREFIX + "build", "Version and role.", {"version": __version__, "role": role})
        yield _gauge("engine_healthy", "Whether requests can be served now.", self._backend.not_ready() is None)
        loading = stats.number("loading")
        yield _gauge("loading_ratio", "How much of the model is loaded.", 1.0 if loading is None else loading)
        counters = _COUNTERS | (_DRAFTER_COUNTERS if role == "drafter" else _VERIFIER_COUNTERS)
        yield from _families(GaugeMetricFamily, _GAUGES, stats)
        yield from _families(CounterMetricFamily, counters, stats)
        for name, (text, key) in _HISTOGRAMS.items():
            made = stats.part("histograms", key)
            if counts := made.numbers("counts"):
                bounds = [*map(floatToGoString, made.numbers("bounds")), "+Inf"]
                buckets = list(zip(bounds, counts, strict=True))
                yield HistogramMetricFamily(PREFIX + name, text, buckets, made.number("sum"))
        if loading is None:
            yield _busy(stats)
            yield from _wire(stats)
            yield from _peers(stats, role)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def _families(
    kind: type[GaugeMetricFamily | CounterMetricFamily], numbers: Mapping[str, _Number], stats: Fields
) -> Iterator[Metric]:
    for name, one in numbers.items():
        path = one.path.split(".")
        family = kind(PREFIX + name, one.help, labels=[one.label] if one.label else [])
        if one.label:
            for key, part in stats.by_name(*path).items():
                if not one.only or key in one.only:
                    family.add_metric([key], part * one.times)
        elif (value := stats.number(*path)) is not None:
            family.add_metric([], value * one.times)
        if family.samples:
            yield family


def _busy(stats: Fields) -> Metric:
    """How busy the two sides are; of several drafters the busiest."""
    family = GaugeMetricFamily(
        PREFIX + "busy_ratio", "Share of the last minute that this side's engine worked.", labels=["side"]
    )
    shares, drafters = stats.by_name("busy"), stats.by_name("busy", "drafters")
    if drafters:
        shares["drafter"] = max(drafters.values())
    for side, share in shares.items():
        family.add_metric([side], min(max(share, 0.0), 1.0))  # one of them is the peer's own word
    return family


def _wire(stats: Fields) -> Iterator[Metric]:
    for unit in ("frames", "bytes"):
        family = CounterMetricFamily(f"{PREFIX}wire_{unit}", f"{unit.capitalize()} of the wire.", labels=["direction"])
        for direction in ("sent", "received"):
            family.add_metric([direction], stats.number("wire", f"{unit}_{direction}") or 0.0)
        yield family


def _peers(stats: Fields, role: str) -> Iterator[Metric]:
    if role == "drafter":
        connected = sum(bool(one.text("name")) for one in stats.parts("verifiers"))
        yield _gauge("verifier_up", "Whether a verifier is connected.", bool(stats.part("verifier").raw))
        yield _gauge("num_verifiers", "Number of connected verifiers.", connected)
    else:
        drafters = len(stats.parts("peers"))
        yield _gauge("drafter_up", "Whether a drafter is attached.", drafters > 0)
        yield _gauge("num_drafters", "Number of attached drafters.", drafters)


class Exposition:
    def __init__(self, backend: Backend) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_SnapshotCollector(backend))

    def answer(self, accept: str) -> tuple[bytes, str]:
        """Return (body, content type) by the request's Accept header; Prometheus' text format where it names none."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type
