"""`specmesh bench`: sums and words from samples, prompts, order, the step table, and how the commands end."""

from pathlib import Path

import pytest

from specmesh.bench import read_prompts
from specmesh.bench.run import ALONE, VARIANTS, Sample, aggregate
from specmesh.bench.steps import read_costs
from specmesh.errors import ConfigError

TOKENS = 40
FIXED_4 = VARIANTS[2]


def text(variant: str = ALONE.name, iteration: int = 0, **change: object) -> Sample:
    """A text of 40 tokens: alone 40 rounds of 10 ms."""
    named = {"variant": variant, "prompt": 0, "iteration": iteration, "ids": [*range(TOKENS)], "tokens": TOKENS}
    times = {"latency_s": 0.5, "decode_s": 0.4, "verify_ms": 400.0, "wait_ms": 0.0, "draft_ms": 0.0}
    none = {"drafter": None, "drafted": 0.0, "accepted": 0.0, "wire_bytes": 0.0, "network_ms": 0.0}
    return named | times | none | {"rounds": 40.0} | change


def drafted(variant: str = FIXED_4.name, iteration: int = 0, **change: object) -> Sample:
    """The same text in 10 rounds of 4 drafts, 3 of which stand, in half the time."""
    told: dict[str, object] = {"decode_s": 0.2, "rounds": 10.0, "drafted": 40.0, "accepted": 30.0}
    times: dict[str, object] = {"verify_ms": 120.0, "wait_ms": 70.0, "draft_ms": 100.0, "network_ms": 10.0}
    more: dict[str, object] = {"latency_s": 0.3, "wire_bytes": 800.0, "drafter": "mac"}
    return text(variant, iteration, **(told | times | more | change))


def test_aggregate():
    """Rates are over an iteration's texts, speed-ups against the verifier alone in the same iteration."""
    samples = [
        *(text(iteration=n, decode_s=40 / rate) for n, rate in enumerate((100.0, 50.0, 80.0))),
        *(drafted(iteration=n, decode_s=40 / rate) for n, rate in enumerate((200.0, 200.0, 80.0))),
    ]
    alone, fixed = aggregate(samples)
    assert (alone["variant"], fixed["variant"]) == ("alone", "draft_n 4")
    assert alone["tokens_per_second"] == {"median": 80, "low": 50, "high": 100}
    assert alone["speedup"] == {"median": 1, "low": 1, "high": 1}
    assert fixed["tokens_per_second"] == {"median": 200, "low": 80, "high": 200}
    assert fixed["speedup"] == {"median": 2, "low": 1, "high": 4}
    told = {"texts": 3, "tokens": 120, "rounds": 30, "acceptance_rate": 0.75, "mean_draft_n": 4, "mean_length": 4}
    times = {"latency_ms": 300, "verify_ms": 120, "wait_ms": 70, "other_ms": 110, "bytes_per_token": 20}
    assert fixed | told | times == fixed
    assert (alone["acceptance_rate"], alone["bytes_per_token"]) == (None, 0)


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
