"""Texts that a benchmark has timed."""

from collections import defaultdict

from specmesh.bench.run import ALONE, VARIANTS, Sample

TOKENS = 40
FIXED_4 = VARIANTS[2]


def text(variant: str = ALONE.name, iteration: int = 0, **change: object) -> Sample:
    """A text of 40 tokens: alone 40 rounds of 10 ms."""
    plain: dict[str, object] = {"prompt": 0, "ids": tuple(range(TOKENS)), "latency_s": 0.5, "drafter": None}
    told = {"tokens_per_second": 100.0, "rounds": 40.0, "verify_ms": 400.0} | {
        name: change.pop(name) for name in list(change) if name not in plain
    }
    return Sample(variant=variant, iteration=iteration, report=defaultdict(float, told), **(plain | change))  # type: ignore[arg-type]


def drafted(variant: str = FIXED_4.name, iteration: int = 0, **change: object) -> Sample:
    """The same text in 10 rounds of 4 drafts, 3 of which stand, in half the time."""
    told: dict[str, object] = {"tokens_per_second": 200.0, "rounds": 10.0, "drafted": 40.0, "accepted": 30.0}
    times: dict[str, object] = {"verify_ms": 120.0, "wait_ms": 70.0, "draft_ms": 100.0, "network_ms": 10.0}
    more: dict[str, object] = {"latency_s": 0.3, "restart_ms": 60.0, "bytes_sent": 800.0, "drafter": "mac"}
    return text(variant, iteration, **(told | times | more | change))
