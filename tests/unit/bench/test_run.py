"""`specmesh bench`: sums and words from samples, prompts, order, the step table, and how the commands end."""

import json
from collections.abc import Generator
from pathlib import Path
from typing import ClassVar

import pytest
from click.testing import CliRunner
from samples import TOKENS, drafted, text

from specmesh import client as client_module
from specmesh.bench import steps
from specmesh.bench.run import BUILT_IN, VARIANTS, Spread, aggregate, read_prompts
from specmesh.bench.steps import as_json, read_costs, step_tables
from specmesh.cli import main
from specmesh.client import Json
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


def test_texts_are_compared_with_the_first_alone():
    """Each prompt's texts against what the verifier alone said of it."""
    other = tuple(range(1, TOKENS + 1))
    alone_texts = [text(), text(prompt=1, ids=other), text(iteration=1, ids=other)]
    alone, fixed = aggregate([*alone_texts, *(drafted(prompt=number) for number in range(3))])
    assert (alone.identical, alone.compared) == (2, 3)
    assert (fixed.identical, fixed.compared) == (1, 2)


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


def test_step_table():
    """A width that costs more than a wider one is marked; differences of a hair are not."""
    table = steps.step_table({1: 10.0, 2: 11.0, 4: 30.0, 5: 12.0, 8: 12.01, 9: 12.0})
    cheaper = {row.rows: (row.relative, row.cheaper) for row in table}
    none = dict.fromkeys((5, 9), (1.2, None))
    assert cheaper == {1: (1.0, None), 2: (1.1, None), 4: (3.0, 5), 8: (1.201, None)} | none
    marked = [line for line in steps.lines({0: table}) if "!" in line]
    assert [line.split() for line in marked] == [["4", "30.0000", "3.00", "!", "5", "rows", "cost", "less"]]


class FakeClient:
    """A verifier whose texts are two tokens each."""

    asked: ClassVar[list[Json]] = []

    def __init__(self, path: Path | None) -> None:
        pass

    def get(self, resource: str) -> Json:
        model = {"name": "big", "backend": "cpu"}
        return {"role": "verifier", "model": model, "peers": [{"drafter": "mac"}], "steps_ms": {"1": 10.0, "4": 12.0}}

    def complete(self, body: Json) -> Generator[Json, None, None]:
        self.asked.append(body)
        report = {"tokens_per_second": 100.0, "rounds": 2, "verify_ms": 20.0}
        yield {"specmesh": {"token_ids": [1]}}
        yield {"specmesh": {"token_ids": [2]}}
        yield {"specmesh": {"report": report | {"drafter": "mac" if body["draft_n"] else None}}}


def test_run_asks_each_variant(monkeypatch: pytest.MonkeyPatch):
    """Every prompt with every variant in every iteration, greedily, after a warm-up; the result is one JSON object."""
    monkeypatch.setattr(client_module, "Client", FakeClient)
    words = ("bench", "run", "--num-prompts", "2", "--iterations", "2", "--max-tokens", "5", "--json")
    done, verifier = CliRunner().invoke(main, words), FakeClient
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert [one["variant"] for one in told["variants"]] == [variant.name for variant in VARIANTS]
    assert [one["identical"] for one in told["variants"]] == [4] * 5
    assert len(told["samples"]) == 20
    assert told["samples"][0]["tokens"] == 2
    assert told["drafters"] == ["mac"]
    assert len(verifier.asked) == 22
    assert {body["prompt"] for body in verifier.asked} == set(BUILT_IN[:2])
    assert {(body["max_tokens"], body["temperature"]) for body in verifier.asked} == {(5, 0)}
    assert [body["draft_n"] for body in verifier.asked[:2]] == [0, "auto"]


def test_steps_of_a_running_verifier(tmp_path: Path):
    """What `bench steps --json` prints: widths between two measured ones are interpolated, beyond them the slope goes
    on."""
    file = tmp_path / "steps.json"
    tables = step_tables({"steps_ms": {"1": 10.0, "2": 12.0, "4": 20.0, "9": 30.0}})
    file.write_text(json.dumps(as_json({"model": {"name": "m"}}, tables)))
    assert milliseconds(file) == [10, 12, 16, 20, 22, 24, 26, 28, 30, 32, 34, 36, 38, 40, 42, 44, 46]
    file.write_text("[10, 40, 12]")
    assert milliseconds(file) == [10, 40, 12, *[12] * 14]


def milliseconds(file: Path) -> list[float]:
    """What steps of 1 to 17 rows would cost."""
    costs = read_costs(file)
    return [round(costs.seconds(rows) * 1e3, 6) for rows in range(1, 18)]


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
