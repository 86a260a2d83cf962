"""`specmesh bench`: sums and words from samples, prompts, the step table, a suite's table and picture; `specmesh audit`
of noisy kernels, and of a daemon that errs; `specmesh recommend`: each number says where it is from."""

import json
import sys
from collections.abc import Generator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast
from unittest.mock import MagicMock

import numpy as np
import pairs
import pytest
from click.testing import CliRunner, Result
from numpy.typing import NDArray

from specmesh.bench import read_prompts, recommend
from specmesh.bench.audit import audit, judged, lines
from specmesh.bench.load import level
from specmesh.bench.recommend import (
    alphas,
    draft_time,
    family_of,
    given,
    known,
    pairs_for,
    report,
    size_of,
)
from specmesh.bench.run import ALONE, draw, outcomes, prompts, rows
from specmesh.bench.steps import read_costs
from specmesh.cli import main
from specmesh.client import Client, GeneratedText
from specmesh.core.fields import Json
from specmesh.core.sampling.logprobs import logprobs_of
from specmesh.core.sampling.sampler import Sampler, SamplingParams, biased
from specmesh.errors import ConfigError
from specmesh.machines import DRAFT_MS, STEPS_MS

SIZES = {"bytes_sent": 300, "bytes_received": 500}


def text(rate: float, rounds: int = 40, drafted: int = 0, accepted: int = 0) -> GeneratedText:
    """A text of 40 tokens in 0.3 s."""
    counts = {"tokens_per_second": rate, "rounds": rounds, "drafted": drafted, "accepted": accepted}
    return GeneratedText(begun=1.0, arrivals=[1.3], ids=[*range(40)], report=SIZES | counts)


def test_outcomes():
    """Rates are medians over iterations, speed-ups against the verifier alone."""
    drafted = [[text(rate, 10, 40, 30)] for rate in (160.0, 200.0, 80.0)]
    alone, fixed = outcomes(
        {ALONE: [[text(rate)] for rate in (100.0, 50.0, 80.0)], "draft_n 4": drafted}
    )
    assert alone["tokens_per_second"] == {"median": 80, "low": 50, "high": 100}
    assert fixed["tokens_per_second"] == {"median": 160, "low": 80, "high": 200}
    told = {
        "variant": "draft_n 4",
        "texts": 3,
        "tokens": 120,
        "acceptance_rate": 0.75,
        "mean_draft_n": 4,
    }
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
    assert (
        len({one.partition("\n")[2] for one in every})
        == len({one.partition("\n")[0] for one in every})
        == 8 * 7
    )
    assert all(100 < len(one) < 900 for one in every)
    assert not {*every} & {one for texts in again.values() for one in texts}
    assert [len(texts) for texts in prompts(2).values()] == [2] * 7


def test_rows():
    """One for each category and source of drafts; the verifier alone is what they are held against."""
    shown = {
        "source": "drafter",
        "alone tok/s": "50.0",
        "tok/s": "75.0",
        "speed-up": "1.50",
        "acceptance": "0.50",
    }
    assert rows(found()) == [
        {"category": name} | shown | {"same text": "1/1"} for name in ("coding", "all")
    ]


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


# --- specmesh audit

N_VOCAB, END = 24, 0
PROMPTS = ("a", "b", "c")


class Daemon:
    """Answers as a pair would whose target has random logits; with drafts they differ by up to `noise`. quiet: prompts
    after which they do not. wrong: positions at which its texts with drafts have another token than the best, whatever
    the logits; `second`: the next best."""

    def __init__(
        self,
        noise: float = 0.0,
        wrong: frozenset[int] = frozenset(),
        quiet: str = "",
        *,
        second: bool = False,
    ) -> None:
        self._noise, self._wrong = noise, wrong
        self._quiet, self._rank = quiet.encode(), -2 if second else 0

    def complete(self, body: Json) -> Generator[Json, None, None]:
        drafts = body["draft_n"] != 0
        given = body["prompt"]
        prompt = [*given.encode()] if isinstance(given, str) else list(cast("list[int]", given))
        seed, temperature = cast("int", body["seed"]), cast("float", body.get("temperature", 0.0))
        biases = tuple(cast("Sequence[tuple[int, float]]", body.get("logit_bias", ())))
        top_k = cast("int", body.get("top_k", 0))
        sampler = Sampler(
            SamplingParams(temperature=temperature, top_k=top_k, seed=seed, logit_bias=biases)
        )
        ids, told = list[int](), list[Json]()
        while len(ids) < cast("int", body["max_tokens"]):
            row = self._row([*prompt, *ids], drafts=drafts)
            token = sampler.choose(row, len(prompt) + len(ids))
            if drafts and len(prompt) + len(ids) in self._wrong:
                token = int(biased(row, biases).argsort()[self._rank])
            if token == END:
                break
            ids.append(token)
            found = logprobs_of(row, token, cast("int", body["logprobs"]))
            top = [
                {"id": one, "logprob": value}
                for one, value in zip(found.ids, found.top, strict=True)
            ]
            told.append({"id": token, "logprob": found.chosen, "top_logprobs": top})
        yield {"choices": [{"text": ""}], "specmesh": {"session": 1}}
        yield {
            "choices": [{"text": "x"}],
            "specmesh": {"token_ids": ids, "accepted": 0, "logprobs": told},
        }
        report = {"drafted": 3 * drafts, "accepted": 2 * drafts}
        yield {
            "choices": [{"text": ""}],
            "specmesh": {"prompt_token_ids": prompt, "report": report},
        }

    def _row(self, ids: list[int], *, drafts: bool) -> NDArray[np.float32]:
        digest = blake2b(bytes(ids), digest_size=2 * N_VOCAB).digest()
        row = np.frombuffer(digest, np.uint16).astype(np.float32) / 16384
        row[END] -= 1.0
        if drafts and ids[0] not in self._quiet:
            luck = np.random.default_rng(list(bytes(ids)))
            row += luck.uniform(-self._noise, self._noise, N_VOCAB).astype(np.float32)
        return row


def audited(daemon: Daemon, *, reproducible: bool = False, **sampling: object) -> dict[str, Any]:
    bodies: list[Json] = [
        {"prompt": one, "seed": at, "max_tokens": 40} | sampling for at, one in enumerate(PROMPTS)
    ]
    told: Json = {"model": {"name": "m", "backend": "CPU", "reproducible": reproducible}}
    return audit(cast("Client", daemon), bodies, ("auto", 4), told, lambda: None)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8}, {"temperature": 3.0, "top_k": 6}])
def test_audits_of_noisy_kernels(sampling: dict[str, object]):
    """Texts part, also at their ends, and each parting is within what the logits were seen to differ by."""
    result = audited(Daemon(noise=0.05), **sampling)
    assert not result["failed"]
    assert len(result["divergences"]) >= 2
    assert {one["verdict"] for one in result["divergences"]} == {"near tie"}
    assert 0.02 < result["noise"] < 0.1
    assert all(0.04 < one["near_tie_up_to"] < 0.4 for one in result["divergences"])
    assert sum(int(way["near_ties"]) for way in result["ways"]) == len(result["divergences"])


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_audits_find_errors(noise: float):
    """A token that the target would not say is an error, however noisy the kernels; the report names the place."""
    result = audited(Daemon(noise, wrong=frozenset({3})))
    errors = [one for one in result["divergences"] if one["verdict"] == "error"]
    assert result["failed"]
    assert {one["position"] for one in errors} == {2}
    assert len(errors) == 6
    assert any(
        line.startswith("error: prompt 0, draft_n auto, token 2: ") for line in lines(result)
    )


def test_the_noise_of_one_text_excuses_no_other():
    """A wrong token by a margin within the noise of other texts is an error where its own text is quiet."""
    excused = audited(Daemon(noise=0.2, wrong=frozenset({39}), second=True))
    quiet = audited(Daemon(noise=0.2, wrong=frozenset({39}), second=True, quiet="a"))
    assert not excused["failed"]
    errors = [one for one in quiet["divergences"] if one["verdict"] == "error"]
    assert {(one["prompt"], one["position"], one["near_tie_up_to"]) for one in errors} == {
        (0, 38, 0.0)
    }
    assert quiet["failed"]


def test_what_is_promised_to_the_last_bit():
    """Of a reproducible verifier no divergence is a near tie, and logits that differ are an error without one."""
    result = audited(Daemon(noise=0.05), reproducible=True)
    assert {one["verdict"] for one in result["divergences"]} == {"error"}
    assert judged(result | {"divergences": []})["failed"]
    noisy = judged(audited(Daemon()) | {"noise": 0.6})  # more than kernels explain
    assert noisy["failed"]
    assert lines(noisy)[0].startswith("ERROR: log-probabilities")


@pytest.mark.parametrize(
    ("undrafted", "failed"), [(("auto",), []), ((4,), [4]), (("auto", 4), ["auto", 4])]
)
def test_nothing_was_drafted(undrafted: tuple[object, ...], failed: list[object]):
    """What no drafter took part in is no audit; a draft_n that adapts may find that nothing pays."""
    found = audited(Daemon())
    ways = [way | {"drafted": 0} if way["draft_n"] in undrafted else way for way in found["ways"]]
    result = judged(found | {"ways": ways})
    assert (result["undrafted"], result["failed"]) == (failed, bool(failed))
    assert sum("nothing was drafted" in line for line in lines(result)) == len(failed)


# --- specmesh recommend

KINDS = {"measured", "given", "table", "published", "estimated", "unknown"}


def run(*args: object) -> Result:
    return CliRunner().invoke(main, ["recommend", *map(str, args)])


NAMED = {"general.name": "Llama 3.1 8B"}


@pytest.mark.parametrize(
    ("target", "metadata", "family"),
    [
        ("Qwen/Qwen3-32B-GGUF", {}, "Qwen3"),
        ("bartowski/Qwen2.5-Coder-32B-Instruct-GGUF", {}, "Qwen2.5"),
        ("meta-llama/Llama-3.3-70B-Instruct", {}, "Llama 3"),
        ("Mistral-Small-3.1-24B-Instruct-2503", {}, "Mistral Small 3"),
        ("google/gemma-3-27b-it", {}, "Gemma 3"),
        ("Qwen3.6-27B", {}, "Qwen3.5 and later"),
        ("zai-org/GLM-4.5-Air", {}, "GLM"),
        ("openai/gpt-oss-120b", {}, "gpt-oss"),
        ("Qwen3-Next-80B-A3B", {}, None),
        ("Qwen3-8B", {"general.architecture": "gemma3"} | NAMED, "Gemma 3"),
        ("qwen-of-mine", NAMED, "Llama 3"),
        (
            "qwen-of-mine",
            {"general.architecture": "llama", "tokenizer.ggml.pre": "llama-bpe"},
            "Llama 3",
        ),
    ],
)
def test_families(target: str, metadata: dict[str, object], family: str | None):
    """A file knows better than its name: by its architecture, then the name that it has, then its tokenizer."""
    found, _ = family_of(target, metadata)
    assert (found and found["name"]) == family


def test_pairs_of_the_same_size_come_alone():
    family, _ = family_of("Qwen2.5-32B", {})
    assert family is not None
    assert {pair["target"] for pair in pairs_for(family, 32)} == {"Qwen2.5-32B"}
    assert {pair["drafter"] for pair in pairs_for(family, 3)} == {"Qwen2.5-0.5B"}
    assert pairs_for(family, None) == family["pairs"]
    assert [size_of(name) for name in ("Qwen2.5-0.5B", "Qwen3-30B-A3B-Q4_K_M", "GLM-4.5-Air")] == [
        0.5,
        30,
        None,
    ]


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
    "target",
    [
        "Qwen3-4B",
        "Qwen2.5-72B",
        "Llama-3.3-70B",
        "Mistral-Small-3.2-24B",
        "gemma-3-27b-it",
        "GLM-4.6",
    ],
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
    assert (found["steps"][0]["kind"], found["tokenizer"], found["pairs"]) == (
        "measured",
        "gpt-2",
        [],
    )
    assert found["steps"][0]["ms"] > 0


def test_every_number_has_a_source_and_a_date():
    data = known()
    numbers = [
        pair
        for family in data["families"]
        for pair in family.get("pairs", [])
        if "acceptance" in pair
    ]
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
