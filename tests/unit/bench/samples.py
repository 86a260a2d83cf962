"""Texts that a benchmark has timed."""

from specmesh.bench.run import ALONE, VARIANTS, Outcome, Sample

TOKENS = 40
FIXED_4 = VARIANTS[2]


def text(variant: str = ALONE.name, iteration: int = 0, **change: object) -> Sample:
    """A text of 40 tokens: alone 40 rounds of 10 ms."""
    plain: dict[str, object] = {
        "prompt": 0,
        "ids": tuple(range(TOKENS)),
        "latency_s": 0.5,
        "decode_s": 0.4,
        "rounds": 40,
        "drafted": 0,
        "accepted": 0,
        "verify_ms": 400.0,
        "wait_ms": 0.0,
        "draft_ms": 0.0,
        "network_ms": 0.0,
        "restart_ms": 0.0,
        "wire_bytes": 0,
        "drafter": None,
    }
    return Sample(variant=variant, iteration=iteration, **(plain | change))  # type: ignore[arg-type]


def drafted(variant: str = FIXED_4.name, iteration: int = 0, **change: object) -> Sample:
    """The same text in 10 rounds of 4 drafts, 3 of which stand, in half the time."""
    drafts: dict[str, object] = {
        "latency_s": 0.3,
        "decode_s": 0.2,
        "rounds": 10,
        "drafted": 40,
        "accepted": 30,
        "verify_ms": 120.0,
        "wait_ms": 70.0,
        "draft_ms": 100.0,
        "network_ms": 10.0,
        "restart_ms": 60.0,
        "wire_bytes": 800,
        "drafter": "mac",
    }
    return text(variant, iteration, **(drafts | change))


def only(variant: str, outcomes: list[Outcome]) -> Outcome:
    [found] = [one for one in outcomes if one.variant == variant]
    return found
