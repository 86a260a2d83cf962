"""Texts that a benchmark has timed."""

from specmesh.bench.run import ALONE, VARIANTS, Sample

TOKENS = 40
FIXED_4 = VARIANTS[2]


def text(variant: str = ALONE.name, iteration: int = 0, **change: object) -> Sample:
    """A text of 40 tokens: alone 40 rounds of 10 ms."""
    named = {"variant": variant, "prompt": 0, "iteration": iteration, "ids": [*range(TOKENS)], "tokens": TOKENS}
    times = {"latency_s": 0.5, "decode_s": 0.4, "verify_ms": 400.0, "wait_ms": 0.0, "draft_ms": 0.0}
    none = {"drafter": None, "drafted": 0.0, "accepted": 0.0, "wire_bytes": 0.0, "network_ms": 0.0, "restart_ms": 0.0}
    return named | times | none | {"rounds": 40.0} | change


def drafted(variant: str = FIXED_4.name, iteration: int = 0, **change: object) -> Sample:
    """The same text in 10 rounds of 4 drafts, 3 of which stand, in half the time."""
    told: dict[str, object] = {"decode_s": 0.2, "rounds": 10.0, "drafted": 40.0, "accepted": 30.0}
    times: dict[str, object] = {"verify_ms": 120.0, "wait_ms": 70.0, "draft_ms": 100.0, "network_ms": 10.0}
    more: dict[str, object] = {"latency_s": 0.3, "restart_ms": 60.0, "wire_bytes": 800.0, "drafter": "mac"}
    return text(variant, iteration, **(told | times | more | change))
