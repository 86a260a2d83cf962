"""`specmesh recommend`: families, what is reckoned with, and that each number says where it is from."""

import json

import pairs
import pytest
from click.testing import CliRunner, Result

from specmesh.bench import recommend
from specmesh.bench.recommend import alphas, draft_time, family_of, given, known, pairs_for, report, size_of
from specmesh.cli import main
from specmesh.machines import DRAFT_MS, STEPS_MS

KINDS = {"measured", "given", "table", "published", "estimated", "unknown"}


def run(*args: object) -> Result:
    return CliRunner().invoke(main, ["recommend", *map(str, args)])


@pytest.mark.parametrize(
    ("target", "family"),
    [
        ("Qwen/Qwen3-32B-GGUF", "Qwen3"),
        ("bartowski/Qwen2.5-Coder-32B-Instruct-GGUF", "Qwen2.5"),
        ("meta-llama/Llama-3.3-70B-Instruct", "Llama 3"),
        ("Mistral-Small-3.1-24B-Instruct-2503", "Mistral Small 3"),
        ("google/gemma-3-27b-it", "Gemma 3"),
        ("Qwen3.6-27B", "Qwen3.5 and later"),
        ("zai-org/GLM-4.5-Air", "GLM"),
        ("openai/gpt-oss-120b", "gpt-oss"),
        ("Qwen3-Next-80B-A3B", None),
    ],
)
def test_families_by_name(target: str, family: str | None):
    found, _ = family_of(target, {})
    assert (found and found["name"]) == family


def test_a_file_knows_better_than_its_name():
    """The architecture first, then the name that the file has, then its tokenizer."""
    named = {"general.name": "Llama 3.1 8B"}
    cases = [({"general.architecture": "gemma3"} | named, "Gemma 3"), (named, "Llama 3")]
    for metadata, family in [*cases, ({"general.architecture": "llama", "tokenizer.ggml.pre": "llama-bpe"}, "Llama 3")]:
        found, _ = family_of("qwen-of-mine" if family == "Llama 3" else "Qwen3-8B", metadata)
        assert found is not None
        assert found["name"] == family


def test_pairs_of_the_same_size_come_alone():
    family, _ = family_of("Qwen2.5-32B", {})
    assert family is not None
    assert {pair["target"] for pair in pairs_for(family, 32)} == {"Qwen2.5-32B"}
    assert {pair["drafter"] for pair in pairs_for(family, 3)} == {"Qwen2.5-0.5B"}
    assert pairs_for(family, None) == family["pairs"]
    assert [size_of(name) for name in ("Qwen2.5-0.5B", "Qwen3-30B-A3B-Q4_K_M", "GLM-4.5-Air")] == [0.5, 30, None]


def test_acceptance_that_is_reckoned_with():
    """A rate over chains of known length is turned into one per draft; one of sure drafts is an upper end; unknown is a
    wide range."""
    assert alphas({}) == (0.5, 0.8)
    assert alphas({"acceptance": 0.7}) == (0.5, 0.7)
    rate = sum(0.8**place for place in range(1, 9)) / 8
    assert alphas({"acceptance": rate, "draft_n": 8}) == (0.7, 0.9)


def test_draft_times_say_how_they_are_known():
    """Published where a model of such a size was timed on the chip; by weights, or without a chip, estimated."""
    fact = known()["chips"]["m4"]
    assert (fact["ms"], "published") == tuple(draft_time("m4", 1.0)[key] for key in ("ms", "kind"))
    assert draft_time("m4", 8.0)["kind"] == draft_time(None, 0.6)["kind"] == "estimated"
    assert draft_time(None, 0.6)["ms"] == DRAFT_MS


def test_step_times_that_were_given():
    """The shape is the nearest machine's, and that is said."""
    step = given(52)
    assert step.ms == pytest.approx(52)
    wide = STEPS_MS["spark-7b"]
    assert step.costs.seconds(8) == pytest.approx(0.052 * wide[8] / wide[1])
    assert "estimated" in step.source


def test_drafts_that_cannot_pay():
    """A target as fast as its drafter is better alone, and the answer says so."""
    found = report("Qwen3-4B", {}, given(3), "m4", 5)
    assert max(one["high"] for one in found["pairs"][0]["speedup"]) < 1.02
    assert any("without a drafter" in line for line in found["advice"])


@pytest.mark.parametrize(
    "target", ["Qwen3-4B", "Qwen2.5-72B", "Llama-3.3-70B", "Mistral-Small-3.2-24B", "gemma-3-27b-it", "GLM-4.6"]
)
def test_answers_name_their_sources(target: str, monkeypatch: pytest.MonkeyPatch):
    """Nothing is without a kind; what was published has an address; what is not known has no number."""
    monkeypatch.setattr(recommend, "speedup", lambda *_: 1.5)  # whose simulations take seconds
    done = run("--target", target, "--step-ms", 40, "--chip", "m3-ultra", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    told = [*found["steps"], *(pair["draft"] for pair in found["pairs"])]
    assert {one["kind"] for one in told} <= KINDS
    assert all(one["source"] for one in told)
    for pair in found["pairs"]:
        rate = pair["acceptance"]
        assert (rate["rate"] is None) == (rate["kind"] == "unknown") == (rate["source"] is None)
        assert rate["source"] is None or "https://" in rate["source"]
    assert found["pairs"] or any("https://" in line for line in found["advice"])


@pytest.mark.models
def test_a_file_is_measured():
    """The bundled target, whose family nobody has published pairs for."""
    pytest.importorskip("llama_cpp")
    found = json.loads(run("--target", "bundled", "--json").stdout)
    assert (found["steps"][0]["kind"], found["tokenizer"], found["pairs"]) == ("measured", "gpt-2", [])
    assert found["steps"][0]["ms"] > 0


def test_every_number_has_a_source_and_a_date():
    data = known()
    numbers = [pair for family in data["families"] for pair in family.get("pairs", []) if "acceptance" in pair]
    numbers += [family["instead"] for family in data["families"] if "instead" in family]
    for fact in [*numbers, *data["chips"].values(), data["suffix"], data["experts"]]:
        assert fact["source"].startswith("https://"), fact
        assert fact["date"], fact
    assert data["machines"].keys() == STEPS_MS.keys()
    assert json.loads(run("--json").stdout)["families"] == data["families"]
    for fact in [*data["chips"].values(), *data["machines"].values()]:
        assert fact["kind"] == ("published" if "source" in fact else "measured")


def test_the_readme_has_the_table():
    readme = pairs.PATH.read_text(encoding="utf-8")
    assert pairs.HEAD in readme
    assert pairs.filled(readme) == readme, "run `make docs`"
