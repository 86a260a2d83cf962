"""`/metrics`: the snapshot of a daemon as Prometheus and OpenMetrics read it.

Names end like those of vLLM and llama.cpp.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass

from prometheus_client.core import (
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
    """The metrics of one daemon: the fields of its snapshot that name one, and a few more."""

    snapshot: Snapshot
    healthy: bool

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        snapshot = self.snapshot
        build = {"version": __version__, "role": snapshot.role}
        yield InfoMetricFamily(PREFIX + "build", "Version and role.", build)
        yield _gauge("engine_healthy", "Whether requests can be served now.", self.healthy)
        loaded = snapshot.loading if isinstance(snapshot, LoadingSnapshot) else 1.0
        yield _gauge("loading_ratio", "How much of the model is loaded.", loaded)
        yield from _families(snapshot)
        if isinstance(snapshot, DrafterSnapshot):
            connected = [one for one in snapshot.verifiers if one["name"] is not None]
            yield _gauge("num_verifiers", "Number of connected verifiers.", len(connected))
        elif isinstance(snapshot, VerifierSnapshot):
            yield _gauge("num_drafters", "Number of attached drafters.", len(snapshot.peers))


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def _families(snapshot: Snapshot) -> list[Metric]:
    """Return the metrics that the fields of a snapshot name; fields may share one."""
    families: dict[str, Metric] = {}
    for spec, value in _metrics(snapshot):
        name = PREFIX + spec.name
        if isinstance(value, Histogram):
            bounds = [*map(str, value.bounds), "+Inf"]
            buckets = list(zip(bounds, value.counts, strict=True))
            families[name] = HistogramMetricFamily(name, spec.help, buckets, value.sum)
            continue
        sample = f"{name}_total" if spec.kind == "counter" else name
        for key, number in _numbers(value).items():
            labels = dict(spec.labels)
            if spec.by:
                labels[spec.by] = str(key)
            family = families.setdefault(name, Metric(name, spec.help, spec.kind))
            family.add_sample(sample, labels, number * spec.scale)
    return list(families.values())


def _numbers(value: list[float] | dict[object, float] | float) -> dict[object, float]:
    """Return the numbers of a metric by the value of its label."""
    match value:
        case list():
            return dict(enumerate(value))
        case dict():
            return value
        case _:
            return {None: value}


def _metrics(part: object) -> Iterator[tuple[MetricSpec, Measured]]:
    """Yield the metrics of a snapshot's part and of the parts within."""
    if not is_dataclass(part):
        return
    for field in fields(part):
        value = getattr(part, field.name)
        spec = getattr(field.type, "__metadata__", None)
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
    if not ranges:
        return ""
    return ",".join(ranges[max(ranges)])
