"""The arithmetic of the comparison: what is timed, what a ratio is of."""

import importlib
import sys
from pathlib import Path

import pytest

pytest.importorskip("gguf")

BENCH = Path(__file__).parents[3] / "bench"


@pytest.fixture(scope="module")
def bench():
    """bench/padded.py with the modules beside it, which it imports by their bare names."""
    sys.path.insert(0, str(BENCH))
    try:
        yield importlib.import_module("padded")
    finally:
        sys.path.remove(str(BENCH))


def run(bench, rate, ids=(1, 2, 3), drafted=0, accepted=0):
    return bench.Run(tuple(ids), 10, 10 / rate, drafted, accepted)


def test_time_begins_with_the_first_tokens(bench, monkeypatch):
    """What came with the first event is not counted, nor the time before it or after the last token."""
    contenders = sys.modules["contenders"]
    now = iter([100.0, 104.0])
    monkeypatch.setattr(contenders.time, "perf_counter", lambda: next(now))
    events = [([], {}), ([5, 6], {}), ([7, 8, 9, 10], {}), ([], {"d": 4, "a": 3})]
    found = contenders.timed(events, lambda rest: (rest["d"], rest["a"]))
    assert (found.ids, found.timed, found.rate) == ((5, 6, 7, 8, 9, 10), 4, 1.0)
    assert (found.drafted, found.accepted) == (4, 3)


def test_summary_compares_turn_by_turn_with_the_best_of_the_sweep(bench):
    runs = {
        "specmesh alone": [run(bench, 10), run(bench, 20), run(bench, 40)],
        "specmesh auto": [run(bench, 15, drafted=8, accepted=4), run(bench, 40, ids=(1, 2, 4)), run(bench, 60)],
        "llama-server alone": [run(bench, 10)] * 3,
        "llama-server default": [run(bench, 20)] * 3,
        "llama-server n=1": [run(bench, 25), run(bench, 5), run(bench, 5)],
        "llama-server n=2": [run(bench, 10), run(bench, 20), run(bench, 80)],
    }
    found = bench.summary(runs)
    assert found["ratios"] == {
        "auto / alone": 1.5,
        "auto / llama-server default": 2.0,
        "auto / llama-server best": 1.5,
        "best": "n=2",
    }
    assert found["rows"]["specmesh auto"]["same_text"] == 2
    assert found["rows"]["specmesh auto"]["acceptance"] == 0.5
    assert found["rows"]["specmesh alone"]["acceptance"] is None


def test_without_llama_server_the_table_says_so(bench, capsys):
    runs = {"specmesh alone": [run(bench, 10)], "specmesh auto": [run(bench, 15)]}
    bench.show("F16", bench.summary(runs) | {"foreign_cores": 0.0})
    assert "--llama-server was not given" in capsys.readouterr().out


def test_every_contender_has_its_turn_and_a_warm_up(bench):
    """The warm-up is not counted, and who begins changes."""
    asked = []

    def contender(name):
        def generate(prompt, tokens):
            asked.append((name, prompt[0], tokens))
            return run(bench, 1)

        return generate

    runs = bench.measure({"a": contender("a"), "b": contender("b")}, [[1], [2]], 7, repeats=1)
    assert [name + str(first) for name, first, _ in asked] == ["a1", "b1", "a1", "b1", "b2", "a2"]
    assert {name: len(found) for name, found in runs.items()} == {"a": 2, "b": 2}


def test_options_of_llama_server(bench):
    """Two threads at most, and a draft model only where drafts are wanted."""
    contenders = sys.modules["contenders"]
    place = contenders.Place(Path(), "t.gguf", "d.gguf", 0, 1)
    alone, default, three = (contenders.server_options(place, n) for n in (None, "default", 3))
    assert "d.gguf" not in alone
    assert default[: len(alone)] == alone
    assert three == [*default, "--spec-draft-n-max", "3"]
    assert default[default.index("--spec-type") + 1] == "draft-simple"
