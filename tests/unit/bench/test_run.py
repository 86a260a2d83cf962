"""`specmesh bench`: sums and words from samples, prompts, order, the step table, and how the commands end."""

from pathlib import Path

import pytest
from samples import drafted, text

from specmesh.bench import read_prompts
from specmesh.bench.run import Spread, aggregate
from specmesh.bench.steps import read_costs
from specmesh.errors import ConfigError


def test_aggregate():
    """Rates are over an iteration's texts, speed-ups against the verifier alone in the same iteration."""
    samples = [
        *(text(iteration=n, tokens_per_second=s) for n, s in enumerate((100.0, 50.0, 80.0))),
        *(drafted(iteration=n, tokens_per_second=s) for n, s in enumerate((200.0, 200.0, 80.0))),
    ]
    alone, fixed = aggregate(samples)
    assert (alone.variant, fixed.variant) == ("alone", "draft_n 4")
    assert alone.tokens_per_second == Spread(80, 50, 100)
    assert alone.speedup == Spread(1, 1, 1)
    assert fixed.tokens_per_second == Spread(200, 80, 200)
    assert fixed.speedup == Spread(2, 1, 4)
    assert (fixed.texts, fixed.tokens, fixed.rounds) == (3, 120, 30)
    assert (fixed.acceptance_rate, fixed.mean_draft_n, fixed.mean_length) == (0.75, 4, 4)
    assert (fixed.latency_ms, fixed.verify_ms, fixed.wait_ms, fixed.other_ms) == (300, 120, 70, 110)
    assert fixed.bytes_per_token == 20
    assert (alone.acceptance_rate, alone.bytes_per_token) == (None, 0)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "no prompts"),
        (b"\n \n", "no prompts"),
        (b"\xff", "not UTF-8"),
        (b'{"text": "a"}\n', "line 1"),
        (b'{"prompt": "a"}\n\n{"prompt": 3}\n', "line 3"),
        (b'{"prompt": "a"}\nplain\n', "line 2"),
    ],
)
def test_bad_prompts(tmp_path: Path, content: bytes, why: str):
    """A file without prompts, or with a bad line, is named."""
    path = tmp_path / "prompts"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=why) as told:
        read_prompts(path)
    assert str(path) in str(told.value)
    with pytest.raises(ConfigError, match="No such file"):
        read_prompts(tmp_path / "none")


@pytest.mark.parametrize(
    "text",
    ["", "5", "[]", "[0]", "[1, -1]", '["a"]', "[NaN]", '{"a": 1}', '{"steps": []}', '{"steps": [1]}',
     '{"steps": [{"rows": 2, "ms": 1}]}', '{"steps": [{"rows": 1}]}', '{"steps": [{"rows": 1, "ms": null}]}'],
)  # fmt: skip
def test_no_steps(text: str, tmp_path: Path):
    """Anything else is refused by the file's name."""
    file = tmp_path / "steps.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"steps\.json"):
        read_costs(file)
