"""`specmesh bench`: sums and words from samples, prompts, the step table; a suite's prompts, table and picture."""

import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from specmesh.bench import read_prompts
from specmesh.bench.load import level
from specmesh.bench.run import ALONE, draw, outcomes, prompts, rows
from specmesh.bench.steps import read_costs
from specmesh.client import GeneratedText
from specmesh.core.fields import Json
from specmesh.errors import ConfigError

SIZES = {"bytes_sent": 300, "bytes_received": 500}


def text(rate: float, rounds: int = 40, drafted: int = 0, accepted: int = 0) -> GeneratedText:
    """A text of 40 tokens in 0.3 s."""
    counts = {"tokens_per_second": rate, "rounds": rounds, "drafted": drafted, "accepted": accepted}
    return GeneratedText(begun=1.0, arrivals=[1.3], ids=[*range(40)], report=SIZES | counts)


def test_outcomes():
    """Rates are medians over iterations, speed-ups against the verifier alone."""
    drafted = [[text(rate, 10, 40, 30)] for rate in (160.0, 200.0, 80.0)]
    alone, fixed = outcomes({ALONE: [[text(rate)] for rate in (100.0, 50.0, 80.0)], "draft_n 4": drafted})
    assert alone["tokens_per_second"] == {"median": 80, "low": 50, "high": 100}
    assert fixed["tokens_per_second"] == {"median": 160, "low": 80, "high": 200}
    told = {"variant": "draft_n 4", "texts": 3, "tokens": 120, "acceptance_rate": 0.75, "mean_draft_n": 4}
    assert fixed | told | {"bytes_per_token": 20, "identical": 3} == fixed
    assert (alone["speedup"], fixed["speedup"], alone["acceptance_rate"]) == (1, 2, None)


def test_one_text_of_a_client():
    """The rate is over the whole time, the first wait included; latencies are between arrivals."""
    none = {"drafted": 0, "accepted": 0}
    text = GeneratedText(begun=10.0, arrivals=[10.1, 10.2, 10.5], ids=[1, 2, 3, 4], report=none)
    counts = none | {"sessions": 1, "texts": 1, "tokens": 4, "acceptance_rate": None}
    rates = {"tokens_per_second": 8.0, "mean": 8.0, "slowest": 8.0, "fairness": 1.0}
    assert level([[text]]) == counts | rates | {
        "first_token_ms": {"p50": 100.0, "p99": 100.0},
        "inter_token_latency_ms": {"p50": 100.0, "p99": 300.0},
    }


NO_PROMPTS = {b"": "no prompts", b"\n \n": "no prompts", b"\xff": "not UTF-8"}
NO_PROMPTS |= dict.fromkeys((b'{"text": "a"}\n', b'{"prompt": "a"}\nplain\n'), 'with "prompt"')


@pytest.mark.parametrize(("content", "why"), NO_PROMPTS.items())
def test_bad_prompts(tmp_path: Path, content: bytes, why: str):
    path = tmp_path / "prompts"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"{path}.*{why}"):
        read_prompts(path)
    with pytest.raises(ConfigError, match="No such file"):
        read_prompts(tmp_path / "none")


@pytest.mark.parametrize(
    "text",
    ["", "[1]", '{"a": 1}', *(f'{{"steps_ms": {steps}}}' for steps in (
        "[]", "{}", '{"1": 1}', '{"0": {"1": 0}}', '{"0": {"1": NaN}}', '{"0": {"1": null}}', '{"0": {"one": 1}}'))],
)  # fmt: skip
def test_no_steps(text: str, tmp_path: Path):
    file = tmp_path / "steps.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"steps\.json"):
        read_costs(file)


# --- --suite


def found() -> list[Json]:
    runs = {ALONE: [[text(50.0)]], "drafter": [[text(75.0, 10, 40, 20)]]}
    return [{"category": name, "sources": outcomes(runs)} for name in ("coding", "all")]


def test_prompts():
    """Eight of each category, of a length that a small context takes, all different; each time after another number."""
    suite, again = prompts(None), prompts(None)
    told = ["coding", "maths", "summarising", "retrieval", "roleplay", "multilingual", "tool_calls"]
    assert [*suite] == told == [*again]
    every = [one for texts in suite.values() for one in texts]
    assert len({one.partition("\n")[2] for one in every}) == len({one.partition("\n")[0] for one in every}) == 8 * 7
    assert all(100 < len(one) < 900 for one in every)
    assert not {*every} & {one for texts in again.values() for one in texts}
    assert [len(texts) for texts in prompts(2).values()] == [2] * 7


def test_rows():
    """One for each category and source of drafts; the verifier alone is what they are held against."""
    shown = {"source": "drafter", "alone tok/s": "50.0", "tok/s": "75.0", "speed-up": "1.50", "acceptance": "0.50"}
    assert rows(found()) == [{"category": name} | shown | {"same text": "1/1"} for name in ("coding", "all")]


def test_a_picture_without_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError) as told:
        draw(found(), "a model", tmp_path / "x.png")
    assert told.value.remedy == "pip install matplotlib"


def test_a_picture(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A bar for each category, of the speed-up against the verifier alone."""
    library = MagicMock()
    monkeypatch.setitem(sys.modules, "matplotlib", library)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", library.figure)
    draw(found(), "a model", tmp_path / "x.png")
    figure = library.figure.Figure.return_value
    assert figure.subplots.return_value.bar.call_args.args[:2] == ([0, 1], [1.5, 1.5])
    assert figure.savefig.call_args.args == (tmp_path / "x.png",)
