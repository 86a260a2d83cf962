"""`specmesh bench run --suite`: its prompts, its table, its picture."""

import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from specmesh.bench.run import ALONE, draw, outcomes, prompts, rows
from specmesh.client import GeneratedText, Json
from specmesh.errors import ConfigError


def text(rate: float, accepted: int = 0) -> GeneratedText:
    """A text of 40 tokens."""
    counts = {"tokens_per_second": rate, "rounds": 10, "drafted": 2 * accepted, "accepted": accepted}
    return GeneratedText(ids=[*range(40)], report=counts | {"bytes_sent": 300, "bytes_received": 500})


def found() -> list[Json]:
    runs = {ALONE: [[text(50.0)]], "drafter": [[text(75.0, accepted=20)]]}
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
    """The error says what to install."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match="pip install matplotlib"):
        draw(found(), "a model", tmp_path / "x.png")


def test_a_picture(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A bar for each category, of the speed-up against the verifier alone."""
    library = MagicMock()
    monkeypatch.setitem(sys.modules, "matplotlib", library)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", library.figure)
    draw(found(), "a model", tmp_path / "x.png")
    figure = library.figure.Figure.return_value
    assert figure.subplots.return_value.bar.call_args.args[:2] == ([0, 1], [1.5, 1.5])
    assert figure.savefig.call_args.args == (tmp_path / "x.png",)
