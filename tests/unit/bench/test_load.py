"""Many clients at once: sums."""

from specmesh.bench.load import LoadText, levels


def text(client: int = 0, prompt: int = 0, **change: object) -> LoadText:
    """A text of 4 tokens, asked for at 10 s, that came at 10.1, 10.2 and 10.5 s."""
    plain: dict[str, object] = {"begun": 10.0, "arrivals": (10.1, 10.2, 10.5), "tokens": 4, "text": "said"}
    return LoadText(client, prompt, **(plain | change))  # type: ignore[arg-type]


def test_one_text():
    """The rate is over the whole time, the first wait included; gaps are between arrivals."""
    [level] = levels([(1, [text()])])
    counts = {"sessions": 1, "texts": 1, "tokens": 4, "seconds": 0.5, "identical": 0, "compared": 0, "refused": 0}
    rates = {"tokens_per_second": 8.0, "mean": 8.0, "slowest": 8.0, "fairness": 1.0, "acceptance_rate": None}
    assert level == counts | rates | {
        "first_token_ms": {"p50": 100.0, "p99": 100.0},
        "gap_ms": {"p50": 100.0, "p99": 300.0},
    }
