"""`specmesh bench`: sums and words from samples, prompts, order, the step table, and how the commands end."""

import json
from collections.abc import Generator
from pathlib import Path
from typing import ClassVar

import pytest
from click.testing import CliRunner, Result
from samples import FIXED_4, TOKENS, drafted, text

from specmesh import client as client_module
from specmesh.bench import run, steps
from specmesh.bench.prompts import BUILT_IN, read_prompts
from specmesh.bench.report import assess
from specmesh.bench.run import VARIANTS, RunPlan, aggregate, sample
from specmesh.bench.sim import steps_of
from specmesh.bench.steps import as_json, step_tables
from specmesh.cli import main
from specmesh.client import Json
from specmesh.errors import ConfigError


def test_aggregate():
    """Rates are over an iteration's texts, speed-ups against the verifier alone in the same iteration."""
    samples = [
        *(text(iteration=n, decode_s=s) for n, s in enumerate((0.4, 0.8, 0.5))),
        *(drafted(iteration=n, decode_s=s) for n, s in enumerate((0.2, 0.2, 0.5))),
    ]
    alone, fixed = aggregate(samples)
    assert (alone.variant, fixed.variant) == ("alone", "draft_n 4")
    assert alone.tokens_per_second == (80, 50, 100)
    assert alone.speedup == (1, 1, 1)
    assert fixed.tokens_per_second == (200, 80, 200)
    assert fixed.speedup == (2, 1, 4)
    assert (fixed.texts, fixed.tokens, fixed.rounds) == (3, 120, 30)
    assert (fixed.acceptance_rate, fixed.mean_draft_n, fixed.mean_length) == (0.75, 4, 4)
    assert (fixed.latency_ms, fixed.verify_ms, fixed.wait_ms, fixed.other_ms) == (300, 120, 70, 110)
    assert fixed.bytes_per_token == 20
    assert (alone.acceptance_rate, alone.bytes_per_token) == (None, 0)


def test_texts_are_compared_with_the_first_alone():
    """Each prompt's texts against what the verifier alone said of it."""
    other = tuple(range(1, TOKENS + 1))
    samples = [
        text(),
        text(prompt=1, ids=other),
        drafted(),
        drafted(prompt=1),
        drafted(prompt=2),
        text(iteration=1, ids=other),
    ]
    alone, fixed = aggregate(samples)
    assert (alone.identical, alone.compared) == (2, 3)
    assert (fixed.identical, fixed.compared) == (1, 2)


def test_empty_texts_divide_nothing():
    """Texts that ended at once have no rate."""
    nothing = {"ids": (), "decode_s": 0.0, "rounds": 0, "drafted": 0, "accepted": 0}
    alone, fixed = aggregate([text(**nothing), drafted(**nothing)])
    assert (alone.tokens_per_second, alone.speedup, fixed.bytes_per_token) == ((0, 0, 0), None, 0)
    assert "No tokens" in assess([alone, fixed], {})[0]


def test_sample_of_a_report():
    """What a report says becomes a sample; what it lacks, or a peer wrote oddly, is 0."""
    report: Json = {
        "tokens_per_second": 100.0,
        "rounds": 2,
        "bytes_sent": 30,
        "bytes_received": 20,
        "drafter": "mac",
        "wait_ms": None,
    }
    made = sample(FIXED_4, 1, 2, [5, 6], 0.5, report)
    assert (made.variant, made.prompt, made.iteration, made.ids) == ("draft_n 4", 1, 2, (5, 6))
    assert (made.decode_s, made.rounds, made.wire_bytes, made.drafter) == (0.02, 2, 50, "mac")
    assert (made.wait_ms, made.draft_ms) == (0, 0)


def test_lines_are_aligned():
    """The table has a heading, a line per variant, and what the columns mean."""
    told = run.lines(aggregate([text(), drafted()]))
    assert [line.split()[0] for line in told] == ["tokens/s", "alone", "draft_n", "latency"]
    assert len({len(line) for line in told[:-1]}) == 1


def test_order_rotates():
    """In as many iterations as there are variants, each comes first once, and each text has all of them."""
    plan = RunPlan(("p",), 5, 8)
    assert {plan.order(n, 0)[0] for n in range(5)} == set(VARIANTS)
    assert all(set(plan.order(n, 3)) == set(VARIANTS) for n in range(5))
    assert plan.texts == 25


def test_prompts_of_a_file(tmp_path: Path):
    """Lines, or JSON lines where the first is an object; empty lines are left out."""
    path = tmp_path / "prompts"
    path.write_text("one\n\n[1] two\n")
    assert read_prompts(path) == ["one", "[1] two"]
    path.write_text('{"prompt": "a\\nb", "id": 3}\n\n{"prompt": "c"}\n')
    assert read_prompts(path) == ["a\nb", "c"]


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
    assert [(row.rows, row.relative, row.cheaper) for row in table] == [
        (1, 1.0, None),
        (2, 1.1, None),
        (4, 3.0, 5),
        (5, 1.2, None),
        (8, 1.201, None),
        (9, 1.2, None),
    ]
    marked = [line for line in steps.lines({0: table}) if "!" in line]
    assert [line.split() for line in marked] == [["4", "30.0000", "3.00", "!", "5", "rows", "cost", "less"]]


class FakeClient:
    """A verifier whose texts are two tokens each."""

    snapshot: ClassVar[Json] = {}
    asked: ClassVar[list[Json]] = []

    def __init__(self, path: Path | None) -> None:
        pass

    def get(self, resource: str) -> Json:
        assert resource == "/stats"
        return self.snapshot

    def complete(self, body: Json) -> Generator[Json, None, None]:
        self.asked.append(body)
        report = {
            "tokens_per_second": 100.0,
            "rounds": 2,
            "verify_ms": 20.0,
            "drafter": "mac" if body["draft_n"] else None,
        }
        yield {"specmesh": {"token_ids": [1]}}
        yield {"specmesh": {"token_ids": [2]}}
        yield {"specmesh": {"report": report}}


@pytest.fixture
def verifier(monkeypatch: pytest.MonkeyPatch) -> type[FakeClient]:
    """The client that the commands use."""
    FakeClient.asked = []
    FakeClient.snapshot = {
        "role": "verifier",
        "model": {"name": "big", "backend": "cpu"},
        "peers": [{"drafter": "mac"}],
        "steps_ms": {"1": 10.0, "4": 12.0},
    }
    monkeypatch.setattr(client_module, "Client", FakeClient)
    return FakeClient


def bench(*args: object) -> Result:
    return CliRunner().invoke(main, ["bench", *map(str, args)])


def test_run_asks_each_variant(verifier: type[FakeClient]):
    """Every prompt with every variant in every iteration, greedily, after a warm-up; the result is one JSON object."""
    done = bench("run", "--num-prompts", 2, "--iterations", 2, "--max-tokens", 5, "--json")
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


def test_run_in_words(verifier: type[FakeClient], tmp_path: Path):
    """The table and the assessment, of the prompts in the file; nothing on stderr."""
    prompts = tmp_path / "prompts"
    prompts.write_text("a\nb\nc\n")
    done = bench("run", "--prompts", prompts, "--iterations", 1)
    assert done.exit_code == 0
    assert done.stdout.startswith("big on cpu, drafter mac\nprompts 3, iterations 1, at most 64 tokens\n")
    assert "Step costs are flat" in done.stdout
    assert done.stderr == ""
    assert len(verifier.asked) == 3 * 5 + 2


def test_run_without_a_drafter(verifier: type[FakeClient]):
    """Only the verifier alone is run, and that is said before and after."""
    verifier.snapshot = verifier.snapshot | {"peers": []}
    done = bench("run", "--iterations", 1, "--num-prompts", 1)
    assert done.exit_code == 0
    assert "no drafter is attached" in done.stderr
    assert "Only the verifier alone was run" in done.stdout
    assert {body["draft_n"] for body in verifier.asked} == {0}


def test_at_a_drafter(verifier: type[FakeClient]):
    """A drafter's socket serves runs, and has no step table."""
    verifier.snapshot = {"role": "drafter", "model": {"name": "small", "backend": "cpu"}, "verifier": {"name": "box"}}
    assert bench("run", "--iterations", 1, "--num-prompts", 1).exit_code == 0
    assert len(verifier.asked) == 7
    done = bench("steps")
    assert (done.exit_code, done.stdout) == (78, "")
    assert "a drafter answers" in done.stderr


def test_steps(verifier: type[FakeClient]):
    """The table in words and as JSON."""
    assert bench("steps").stdout.split() == [
        "rows",
        "ms",
        "of",
        "one",
        "row",
        "1",
        "10.0000",
        "1.00",
        "4",
        "12.0000",
        "1.20",
    ]
    told = json.loads(bench("steps", "--json").stdout)
    assert told["model"]["name"] == "big"
    assert told["steps"][1] == {"rows": 4, "ms": 12.0, "relative": 1.2, "cheaper": None}
    verifier.snapshot |= {"steps_ms_by_context": {"0": {"1": 10.0, "4": 12.0}, "4096": {"1": 15.0}}}
    told = json.loads(bench("steps", "--json").stdout)
    assert told["steps_by_context"]["4096"] == [{"rows": 1, "ms": 15.0, "relative": 1.0, "cheaper": None}]
    shown = bench("steps").stdout.splitlines()
    assert [line for line in shown if "context" in line] == [
        "context of 0 ids and more:",
        "context of 4096 ids and more:",
    ]


def test_while_loading(verifier: type[FakeClient]):
    """Busy, as elsewhere."""
    verifier.snapshot = {"role": "verifier", "loading": 0.5}
    assert (bench("steps").exit_code, bench("run").exit_code) == (75, 75)


def test_no_daemon():
    """Without a daemon: 69 and one line."""
    for command in ("steps", "run"):
        done = bench(command, "--socket", "none.sock")
        assert (done.exit_code, done.stdout) == (69, "")
        assert done.stderr.startswith("specmesh: no daemon answers at none.sock")


@pytest.mark.parametrize("args", ["run --iterations 0", "run --num-prompts 0", "run --max-tokens 0", "walk"])
def test_wrong_usage(args: str):
    """Exit 2 from click."""
    assert bench(*args.split()).exit_code == 2


def test_steps_of_a_running_verifier(tmp_path: Path):
    """What `bench steps --json` prints: widths between two measured ones are interpolated, beyond them the slope goes
    on."""
    file = tmp_path / "steps.json"
    tables = step_tables({"steps_ms": {"1": 10.0, "2": 12.0, "4": 20.0, "9": 30.0}})
    file.write_text(json.dumps(as_json({"model": {"name": "m"}}, tables)))
    found = [round(seconds * 1e3, 6) for seconds in steps_of(1, 1, file)]
    assert found == [10, 12, 16, 20, 22, 24, 26, 28, 30, 32, 34, 36, 38, 40, 42, 44, 46]
    file.write_text("[10, 40, 12]")
    assert [round(seconds * 1e3, 6) for seconds in steps_of(1, 1, file)] == [10, 40, 12, *[12] * 14]


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
        steps_of(1, 1, file)
