"""`/metrics`: a daemon's newest snapshot as Prometheus and OpenMetrics read it.

Names end as those of vLLM and llama.cpp do. No label says anything of a request, a prompt or a peer.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from specmesh import __version__
from specmesh.requests import Backend
from specmesh.snapshot import Fields

PREFIX = "specmesh_"


@dataclass(frozen=True, slots=True)
class _Told:
    """A number of the snapshot as a metric: `name` without prefix and suffix, `times` from its unit to ours.

    With `label`, the numbers of an object or list, and that label names them.
    """

    name: str
    help: str
    path: tuple[str, ...]
    label: str | None = None
    times: float = 1.0

    def samples(self, stats: Fields) -> list[tuple[list[str], float]]:
        """(label values, value); none where the snapshot has no such number."""
        if self.label is not None:
            return [([name], value * self.times) for name, value in stats.by_name(*self.path).items()]
        value = stats.number(*self.path)
        return [] if value is None else [([], value * self.times)]

    @property
    def labels(self) -> list[str]:
        """The label names."""
        return [] if self.label is None else [self.label]


COUNTERS = (
    _Told("drafter_reconnects", "Connections of drafter and verifier after one was lost.", ("reconnects",)),
    _Told(
        "handshake_failures", "Peers that did not get in, or were not introduced.", ("handshake_failures",), "reason"
    ),
    _Told("frames_rejected", "Frames refused.", ("wire", "rejected"), "reason"),
    _Told("resumed_requests", "Texts that went on after a connection or a daemon was lost.", ("sessions", "resumed")),
    _Told("log_lines_dropped", "Log lines that could not be written.", ("log_lines_dropped",)),
    _Told("prefix_cache_hits", "Tokens found in memory and not computed again.", ("reuse", "tokens_saved")),
    _Told("prefix_cache_hit_requests", "Sessions that found some.", ("reuse", "hits")),
    _Told("stray_frames", "Frames for sessions that are over or another drafter's.", ("wire", "stray")),
)
VERIFIER = (
    _Told("spec_decode_num_drafts", "Steps with drafts.", ("totals", "rounds_with_drafts")),
    _Told("spec_decode_num_draft_tokens", "Drafts verified.", ("totals", "drafted")),
    _Told("spec_decode_num_accepted_tokens", "Drafts accepted.", ("totals", "accepted")),
    _Told(
        "spec_decode_num_accepted_tokens_per_pos",
        "Drafts accepted at this position of a step, from 0.",
        ("totals", "accepted_at"),
        "position",
    ),
    _Told(
        "spec_decode_num_tested_tokens_per_pos",
        "Drafts compared at this position: all before them in the step were accepted.",
        ("totals", "tested_at"),
        "position",
    ),
    _Told("verification_rounds", "Steps that committed something, per session of theirs.", ("totals", "rounds")),
    _Told("generation_tokens", "Tokens generated.", ("totals", "generated")),
    _Told("prompt_tokens", "Tokens of the prompts of all sessions opened.", ("totals", "prompt_tokens")),
    _Told("stale_drafts", "DRAFTs that came too late or did not fit the text.", ("totals", "stale_drafts")),
    _Told(
        "fallback_steps",
        "Steps without drafts of sessions that may draft: no drafter attached, or no drafts in hand or wanted.",
        ("totals", "fallback_steps"),
        "reason",
    ),
    _Told("drafter_changes", "Times that a session got a drafter, by the reason.", ("drafter_changes",), "reason"),
    _Told("cancelled_requests", "Requests whose client left.", ("sessions", "ended", "cancelled")),
)
DRAFTER = (
    _Told("drafter_drafted_tokens", "Tokens this drafter has guessed.", ("totals", "drafted")),
    _Told("drafter_accepted_tokens", "Of these, those that stood.", ("totals", "accepted")),
    _Told("drafter_committed_tokens", "Tokens the verifier committed meanwhile.", ("totals", "committed")),
)
GAUGES = (
    _Told("uptime_seconds", "Seconds since the start.", ("uptime_s",)),
    _Told("num_requests_running", "Sessions held now.", ("sessions", "live")),
    _Told("num_requests_waiting", "Requests that have no session yet.", ("sessions", "queued")),
    _Told("num_sessions_kept", "Sessions of a drafter that went away, kept for it.", ("sessions", "kept")),
    _Told("num_requests_interrupted", "Texts that wait for the verifier to come back.", ("sessions", "interrupted")),
    _Told("prefix_cache_kept_tokens", "Tokens in memory for sessions to come.", ("reuse", "kept_tokens")),
    _Told("draft_n", "Drafts that the newest session's drafter is asked for.", ("draft_n",)),
    _Told("one_token_step_seconds", "Measured cost of a step of one token.", ("one_token_step_ms",), times=1e-3),
)
HISTOGRAMS = (
    _Told("time_to_first_token_seconds", "From the request to the first token.", ("time_to_first_token_s",)),
    _Told(
        "inter_token_latency_seconds",
        "Seconds per token after the first round, a round's time shared by its tokens.",
        ("inter_token_latency_s",),
    ),
    _Told("e2e_request_latency_seconds", "From the request to its last token.", ("request_latency_s",)),
    _Told("draft_rtt_seconds", "From a PING to its PONG.", ("round_trip_s",)),
    _Told("draft_seconds", "Seconds per draft of the draft model.", ("draft_s",)),
)


class SnapshotCollector(Collector):
    """The metrics of one daemon. What its snapshot does not have, such as a verifier's numbers while it loads, is left
    out."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def collect(self) -> Iterator[Metric]:
        """The metrics now."""
        stats, role = Fields(self._backend.stats()), self._backend.role
        yield InfoMetricFamily(PREFIX + "build", "Version and role.", {"version": __version__, "role": role})
        healthy = self._backend.not_ready() is None
        yield _gauge("engine_healthy", "Whether requests can be served now.", healthy)
        loading = stats.number("loading")
        yield _gauge("loading_ratio", "How much of the model is loaded.", 1.0 if loading is None else loading)
        for told in GAUGES:
            yield from _family(GaugeMetricFamily(PREFIX + told.name, told.help, labels=told.labels), told, stats)
        for told in COUNTERS + (DRAFTER if role == "drafter" else VERIFIER):
            yield from _family(CounterMetricFamily(PREFIX + told.name, told.help, labels=told.labels), told, stats)
        for told in HISTOGRAMS:
            yield from _histogram(told, stats.part("histograms", *told.path))
        if loading is None:
            yield from _requests(stats)
            yield _sides(stats)
            yield from _wire(stats)
            yield from _peers(stats, role)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def _family(family: GaugeMetricFamily | CounterMetricFamily, told: _Told, stats: Fields) -> Iterator[Metric]:
    """The family with its samples, if there are any."""
    for labels, value in told.samples(stats):
        family.add_metric(labels, value)
    if family.samples:
        yield family


def _histogram(told: _Told, pictured: Fields) -> Iterator[Metric]:
    counts = pictured.numbers("counts")
    if counts:
        bounds = [*map(floatToGoString, pictured.numbers("bounds")), "+Inf"]
        buckets = list(zip(bounds, counts, strict=True))
        yield HistogramMetricFamily(PREFIX + told.name, told.help, buckets, pictured.number("sum"))


def _requests(stats: Fields) -> Iterator[Metric]:
    """How a verifier's requests have ended."""
    ended = stats.by_name("sessions", "ended")
    for name, text, label, reasons in (
        ("request_success", "Requests that got their text.", "finished_reason", ("stop", "length")),
        ("failed_requests", "Requests that broke.", "reason", ("error", "shutdown")),
    ):
        family = CounterMetricFamily(PREFIX + name, text, labels=[label])
        for reason in reasons:
            if reason in ended:
                family.add_metric([reason], ended[reason])
        if family.samples:
            yield family


def _sides(stats: Fields) -> Metric:
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
    """Traffic by its direction."""
    for unit in ("frames", "bytes"):
        family = CounterMetricFamily(f"{PREFIX}wire_{unit}", f"{unit.capitalize()} of the wire.", labels=["direction"])
        for direction in ("sent", "received"):
            family.add_metric([direction], stats.number("wire", f"{unit}_{direction}") or 0.0)
        yield family


def _peers(stats: Fields, role: str) -> Iterator[Metric]:
    """Whether the other end is there."""
    if role == "drafter":
        yield _gauge("verifier_up", "Whether a verifier is connected.", bool(stats.part("verifier").raw))
        connected = sum(bool(one.text("name")) for one in stats.parts("verifiers"))
        yield _gauge("num_verifiers", "How many verifiers are connected.", connected)
        return
    drafters = len(stats.parts("peers"))
    yield _gauge("drafter_up", "Whether a drafter is attached.", drafters > 0)
    yield _gauge("num_drafters", "How many drafters are attached.", drafters)


class Exposition:
    """A daemon's metrics in the format that a client asks for."""

    def __init__(self, backend: Backend) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(SnapshotCollector(backend))

    def answer(self, accept: str) -> tuple[bytes, str]:
        """(body, content type), by the request's Accept header; Prometheus' text format where it names none."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type
