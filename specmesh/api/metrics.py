"""`/metrics`: a daemon's snapshot as Prometheus and OpenMetrics read it. Names end as those of vLLM and llama.cpp."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from specmesh import __version__
from specmesh.core.statistics.counters import Histogram, MetricSpec
from specmesh.core.statistics.snapshot import (
    DrafterSnapshot,
    LoadingSnapshot,
    Snapshot,
    VerifierSnapshot,
)

Measured = Histogram | list[float] | dict[object, float] | float
PREFIX = "specmesh_"


@dataclass(frozen=True)
class _SnapshotCollector(Collector):
    """The metrics of one daemon: the fields of its snapshot that name one, and some that follow from it."""

    snapshot: Snapshot
    healthy: bool

    def collect(self) -> Iterator[Metric]:
        snapshot, role = self.snapshot, self.snapshot.role
        yield InfoMetricFamily(
            PREFIX + "build", "Version and role.", {"version": __version__, "role": role}
        )
        yield _gauge("engine_healthy", "Whether requests can be served now.", self.healthy)
        loaded = snapshot.loading if isinstance(snapshot, LoadingSnapshot) else 1.0
        yield _gauge("loading_ratio", "How much of the model is loaded.", loaded)
        yield from _families(snapshot)
        if isinstance(snapshot, DrafterSnapshot):
            connected = sum(one["name"] is not None for one in snapshot.verifiers)
            yield _gauge("num_verifiers", "Number of connected verifiers.", connected)
        elif isinstance(snapshot, VerifierSnapshot):
            yield _gauge("num_drafters", "Number of attached drafters.", len(snapshot.peers))


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def _families(snapshot: Snapshot) -> list[Metric]:
    families = dict[str, Metric]()
    numbers: dict[object, float]
    for spec, value in _metrics(snapshot):
        name, labels = PREFIX + spec.name, [*spec.labels, *([spec.by] if spec.by else [])]
        match value:
            case Histogram():
                buckets = list(zip([*map(str, value.bounds), "+Inf"], value.counts, strict=True))
                families[name] = HistogramMetricFamily(name, spec.help, buckets, value.sum)
                continue
            case list():
                numbers = dict(enumerate(value))
            case dict():
                numbers = value
            case _:
                numbers = {None: value}
        kind = CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily
        for key, number in numbers.items():
            family = families.setdefault(name, kind(name, spec.help, labels=labels))
            assert isinstance(family, CounterMetricFamily | GaugeMetricFamily), (
                "a histogram's name is its own"
            )
            family.add_metric(
                [*spec.labels.values(), *([str(key)] if spec.by else [])], number * spec.scale
            )
    return list(families.values())


def _metrics(part: object) -> Iterator[tuple[MetricSpec, Measured]]:
    for one in fields(part) if is_dataclass(part) else ():
        value, spec = getattr(part, one.name), getattr(one.type, "__metadata__", None)
        if spec is not None and value is not None:
            yield spec[0], value
        else:
            yield from _metrics(value)


def exposition(snapshot: Snapshot, accept: str, *, healthy: bool) -> tuple[bytes, str]:
    """Return the body and its content type by a request's Accept header.

    It is Prometheus' text format unless the header prefers OpenMetrics. healthy: requests can be
    served now.
    """
    encode, content_type = choose_encoder(preferred(accept))
    return encode(_SnapshotCollector(snapshot, healthy)), content_type


def preferred(accept: str) -> str:
    """Return the media ranges of the highest quality, as RFC 9110 (12.4.2) weighs them.

    The library reads no qualities: it takes OpenMetrics wherever that is named.
    """
    ranges: dict[float, list[str]] = {}
    for part in accept.split(","):
        media, _, weight = part.partition(";q=")
        try:
            quality = float(weight or 1)
        except ValueError:
            quality = 1.0
        if quality > 0:
            ranges.setdefault(quality, []).append(media.strip())
    return ",".join(ranges[max(ranges)]) if ranges else ""
