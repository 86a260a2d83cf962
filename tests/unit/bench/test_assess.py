"""What is said of a benchmark: whether drafting pays, and what limits it."""

import pytest
from samples import drafted, text

from specmesh.bench.report import assess
from specmesh.bench.run import Sample, aggregate


def words(*samples: Sample, costs: dict[int, float] | None = None) -> str:
    return "\n".join(assess(aggregate(list(samples)), costs or {}))


def test_drafting_pays():
    """Faster in every iteration: it pays. Slower: it does not. In between, or only one: not clear."""
    alone = [text(iteration=0), text(iteration=1)]
    assert "Drafting pays: draft_n 4 is 2.00x" in words(*alone, drafted(), drafted(iteration=1))
    slow = {"decode_s": 0.8}
    assert "does not pay" in words(*alone, drafted(**slow), drafted(iteration=1, **slow))
    assert "not clear" in words(*alone, drafted(decode_s=0.42), drafted(iteration=1))
    assert "not clear: draft_n 4 is 2.00x the verifier alone (one iteration)" in words(text(), drafted())


@pytest.mark.parametrize(
    ("change", "limit"),
    [
        (
            {"accepted": 5, "rounds": 35, "drafted": 140, "decode_s": 0.36, "verify_ms": 350.0, "wait_ms": 0.0},
            "acceptance",
        ),
        ({"accepted": 38, "decode_s": 0.3, "verify_ms": 290.0, "wait_ms": 0.0}, "step costs"),
        ({"accepted": 38, "decode_s": 0.35, "verify_ms": 110.0, "wait_ms": 230.0}, "draft speed"),
        ({"accepted": 38, "decode_s": 0.35, "verify_ms": 110.0, "wait_ms": 230.0, "network_ms": 50.0}, "the network"),
        ({"accepted": 38, "decode_s": 0.35, "verify_ms": 110.0, "wait_ms": 10.0}, "handling"),
    ],
)
def test_what_limits(change: dict[str, object], limit: str):
    """The largest of the possible gains is named."""
    assert f"What limits draft_n 4 is {limit}" in words(text(), drafted(**change))
