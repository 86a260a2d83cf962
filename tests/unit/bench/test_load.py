"""Many clients at once: sums."""

from specmesh.bench import BenchText
from specmesh.bench.load import level


def test_one_text():
    """The rate is over the whole time, the first wait included; gaps are between arrivals."""
    text = BenchText(10.0, [10.1, 10.2, 10.5], ids=[1, 2, 3, 4], report={"drafted": 0, "accepted": 0})
    counts = {"sessions": 1, "texts": 1, "tokens": 4, "acceptance_rate": None}
    rates = {"tokens_per_second": 8.0, "mean": 8.0, "slowest": 8.0, "fairness": 1.0}
    assert level([[text]]) == counts | rates | {
        "first_token_ms": {"p50": 100.0, "p99": 100.0},
        "gap_ms": {"p50": 100.0, "p99": 300.0},
    }
