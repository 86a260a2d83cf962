"""`specmesh bench`, `audit` and `recommend`, on texts and logits that are made here."""

import json
import sys
from hashlib import blake2b
from itertools import chain
from queue import SimpleQueue
from unittest.mock import MagicMock

import numpy as np
import pairs
import pytest
from click.testing import CliRunner
from harness.tables import cases
from harness.tables import lines as lines_of
from harness.tables import rows as values

from specmesh.bench import recommend
from specmesh.bench.audit import audit, judged, lines
from specmesh.bench.load import level, run_clients
from specmesh.bench.run import ALONE, draw, outcomes, prompts, rows, ways_of
from specmesh.bench.step_times import read_costs
from specmesh.bench.texts import read_prompts
from specmesh.cli import main
from specmesh.client import GeneratedText
from specmesh.core.sampling.logprobs import logprobs_of
from specmesh.core.sampling.sampler import Sampler, SamplingParams, biased
from specmesh.errors import ConfigError
from specmesh.machines import STEPS_MS


def text(rate, rounds=40, drafted=0, accepted=0):
    """Return a text of 40 tokens in 0.3 s."""
    report = {
        "tokens_per_second": rate,
        "rounds": rounds,
        "drafted": drafted,
        "accepted": accepted,
        "bytes_sent": 300,
        "bytes_received": 500,
    }
    return GeneratedText(begun=1.0, arrivals=[1.3], ids=[*range(40)], report=report)


def test_outcomes():
    """Rates are medians over iterations; speed-ups compare with undrafted texts."""
    undrafted = [[text(rate)] for rate in (100.0, 50.0, 80.0)]
    drafted = [[text(rate, 10, 40, 30)] for rate in (160.0, 200.0, 80.0)]
    expected_alone, expected_fixed = values("""
        {"tokens_per_second": {"median": 80, "low": 50, "high": 100},
         "speedup": 1, "acceptance_rate": null}
        {"tokens_per_second": {"median": 160, "low": 80, "high": 200},
         "speedup": 2, "acceptance_rate": 0.75, "texts": 3, "tokens": 120, "identical": 3,
         "mean_draft_n": 4, "bytes_per_token": 20}
        """)
    alone, fixed = outcomes({ALONE: undrafted, "draft_n 4": drafted})
    assert expected_alone.items() <= alone.items()
    assert expected_fixed.items() <= fixed.items()


def test_outcomes_by_source():
    """Each source that drafted for any variant has its drafts and its acceptance in all."""
    drafted = text(160.0, 10, 40, 30)
    drafted.report["by_source"] = {
        "remote": {"drafted": 30, "accepted": 24},
        "suffix": {"drafted": 10, "accepted": 6},
    }
    alone, adaptive = outcomes({ALONE: [[text(50.0)]], "adaptive": [[drafted]]})
    assert (alone["by_source"], adaptive["by_source"]) == (
        {
            "remote": {"drafted": 0, "acceptance_rate": None},
            "suffix": {"drafted": 0, "acceptance_rate": None},
        },
        {
            "remote": {"drafted": 30, "acceptance_rate": 0.8},
            "suffix": {"drafted": 10, "acceptance_rate": 0.6},
        },
    )


ALONE_AND_ALL = {"alone": {"draft_n": 0}, "all sources": {}}


@pytest.mark.parametrize(
    ("sources", "draft_ns", "added"),
    [
        (["suffix"], (), {}),
        (["remote", "mtp"], (), {name: {"draft_sources": [name]} for name in ("remote", "mtp")}),
        (["suffix"], (2, 8), {"draft_n 2": {"draft_n": 2}, "draft_n 8": {"draft_n": 8}}),
    ],
)
def test_variants_of_a_run(sources, draft_ns, added):
    """A single source is all there is, and is not compared twice."""
    ways = ways_of(sources, draft_ns)
    assert ways == ALONE_AND_ALL | added
    assert next(iter(ways)) == ALONE


def test_one_text_of_a_client():
    """The rate includes the first wait; latencies are between arrivals."""
    report = {"drafted": 0, "accepted": 0}
    arrivals = [10.1, 10.2, 10.5]
    text = GeneratedText(begun=10.0, arrivals=arrivals, ids=[1, 2, 3, 4], report=report)
    [expected] = values("""
        {"sessions": 1, "tokens": 4, "acceptance_rate": null,
         "tokens_per_second": 8.0, "slowest": 8.0, "fairness": 1.0,
         "first_token_ms": {"p50": 100.0, "p99": 100.0},
         "inter_token_latency_ms": {"p50": 100.0, "p99": 300.0}}
        """)
    assert expected.items() <= level([[text]]).items()


def test_texts_of_clients_differ():
    """No body comes twice while there are others: its prompt would be in the cache."""
    bodies = [{"prompt": str(number)} for number in range(12)]
    asked = SimpleQueue()

    class Daemon:
        def complete(self, body):
            asked.put(body["prompt"])
            yield chunk("", report={"tokens": 0})

    run_clients(Daemon(), bodies, iterations=4, count=3, advance=lambda: None)
    assert sorted(asked.get() for _ in bodies) == sorted(body["prompt"] for body in bodies)


@cases(
    "content, reason",
    r"""
    ["", "no prompts"]
    ["\n \n", "no prompts"]
    ["ÿ", "not UTF-8"]
    ["{\"text\": \"a\"}\n", "with \"prompt\""]
    ["{\"prompt\": \"a\"}\nplain\n", "with \"prompt\""]
    """,
)
def test_bad_prompts(tmp_path, content, reason):
    path = tmp_path / "prompts"
    path.write_text(content, "latin-1")
    with pytest.raises(ConfigError, match=f"{path}.*{reason}"):
        read_prompts(path)


def test_prompts_that_are_not_there(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        read_prompts(tmp_path / "prompts")


NO_STEPS = """
[1]
{"a": 1}
{"steps_ms": []}
{"steps_ms": {}}
{"steps_ms": {"1": 1}}
{"steps_ms": {"0": {"1": 0}}}
{"steps_ms": {"0": {"1": NaN}}}
{"steps_ms": {"0": {"1": null}}}
{"steps_ms": {"0": {"one": 1}}}
"""


@pytest.mark.parametrize("content", ["", *lines_of(NO_STEPS)])
def test_no_steps(content, tmp_path):
    file = tmp_path / "steps.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"steps\.json"):
        read_costs(file)


# --- --suite


@pytest.fixture
def suite():
    """The outcomes of a suite: drafts are 1.5 times as fast."""
    drafted = text(75.0, 10, 40, 20)
    sources = outcomes({ALONE: [[text(50.0)]], "drafter": [[drafted]]})
    return [{"category": "coding", "sources": sources}, {"category": "all", "sources": sources}]


def test_prompts_differ():
    """They fit into a small context, and no two are alike, not even in their first lines."""
    every = [*chain(*prompts(None).values(), *prompts(None).values())]
    numbers, questions = set(), set()
    for prompt in every:
        assert 100 < len(prompt) < 900
        number, _, question = prompt.partition("\n")
        numbers.add(number)
        questions.add(question)
    assert len(numbers) == len(every) == 2 * len(questions) == 2 * 8 * 7


def test_rows(suite):
    """A category has a row for each source of drafts, and compares it with undrafted texts."""
    row = {
        "category": "coding",
        "source": "drafter",
        "alone tok/s": "50.0",
        "tok/s": "75.0",
        "speed-up": "1.50",
        "acceptance": "0.50",
        "same text": "1/1",
    }
    assert rows(suite) == [row, row | {"category": "all"}]


def test_a_picture_without_matplotlib(monkeypatch, tmp_path, suite):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match="pip install matplotlib"):
        draw(suite, "a model", tmp_path / "x.png")


def test_a_picture(monkeypatch, tmp_path, suite):
    """Each category's bar is as high as its speed-up."""
    library = MagicMock()
    monkeypatch.setitem(sys.modules, "matplotlib", library)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", library.figure)
    draw(suite, "a model", tmp_path / "x.png")
    figure = library.figure.Figure.return_value
    assert figure.subplots.return_value.bar.call_args.args[:2] == ([0, 1], [1.5, 1.5])
    assert figure.savefig.call_args.args == (tmp_path / "x.png",)


# --- specmesh audit

N_VOCAB = 24
END = 0


class NoisyDaemon:
    """Answers as a pair would whose target has random logits.

    noise: the most by which logits differ when there are drafts.
    quiet: prompts whose logits do not differ.
    wrong: positions at which a text with drafts has another token than the best.
    second: that token is the second best, not the worst.
    """

    def __init__(self, noise=0.0, wrong=frozenset(), quiet="", *, second=False):
        self._noise = noise
        self._wrong = wrong
        self._quiet = quiet.encode()
        self._rank = -2 if second else 0

    def complete(self, body):
        drafts = body["draft_n"] != 0
        prompt = prompt_ids(body)
        ids = prompt.copy()
        logprobs = []
        for _ in range(body["max_tokens"]):
            row = self._row(ids, drafts)
            token = self._token(row, body, len(ids))
            if token == END:
                break
            ids.append(token)
            logprobs.append(entry(row, token, body["logprobs"]))
        report = {"drafted": 3 * int(drafts), "accepted": 2 * int(drafts)}
        yield chunk("", session=1)
        yield chunk("x", token_ids=ids[len(prompt) :], accepted=0, logprobs=logprobs)
        yield chunk("", prompt_token_ids=prompt, report=report)

    def _token(self, row, body, position):
        biases = body.get("logit_bias", ())
        if body["draft_n"] != 0 and position in self._wrong:
            return int(biased(row, biases).argsort()[self._rank])
        params = SamplingParams(
            temperature=body.get("temperature", 0.0),
            top_k=body.get("top_k", 0),
            seed=body["seed"],
            logit_bias=tuple(biases),
        )
        return Sampler(params).choose(row, position)

    def _row(self, ids, drafts):
        digest = blake2b(bytes(ids), digest_size=2 * N_VOCAB).digest()
        row = np.frombuffer(digest, np.uint16).astype(np.float32) / 16384
        row[END] -= 1.0
        if drafts and ids[0] not in self._quiet:
            luck = np.random.default_rng(ids)
            row += luck.uniform(-self._noise, self._noise, N_VOCAB).astype(np.float32)
        return row


def prompt_ids(body):
    """Return the ids of a prompt, which the audit sends as a text, or as ids."""
    prompt = body["prompt"]
    return [*prompt.encode()] if isinstance(prompt, str) else prompt


def chunk(text, **extension):
    return {"choices": [{"text": text}], "specmesh": extension}


def entry(row, token, count):
    """Return a token's log-probabilities as the API shows them."""
    found = logprobs_of(row, token, count)
    likely = zip(found.ids, found.top, strict=True)
    top = [{"id": other, "logprob": logprob} for other, logprob in likely]
    return {"id": token, "logprob": found.chosen, "top_logprobs": top}


def audited(daemon, *, reproducible=False, **sampling):
    bodies = []
    for seed, prompt in enumerate("abc"):
        bodies.append({"prompt": prompt, "seed": seed, "max_tokens": 40, **sampling})
    model = {"name": "m", "backend": "CPU", "reproducible": reproducible}
    return audit(daemon, bodies, ("auto", 4), {"model": model}, lambda: None)


def errors_of(result):
    return [found for found in result["divergences"] if found["verdict"] == "error"]


def errors_at(result):
    return [found["position"] for found in errors_of(result)]


@cases(
    "sampling",
    """
    {}
    {"temperature": 0.8}
    {"temperature": 3.0, "top_k": 6}
    """,
)
def test_audits_of_noisy_kernels(sampling):
    """Texts part, also at their ends, by no more than the noise of the logits."""
    result = audited(NoisyDaemon(noise=0.05), **sampling)
    divergences = result["divergences"]
    assert not result["failed"]
    assert len(divergences) >= 2
    assert errors_of(result) == []
    assert 0.02 < result["noise"] < 0.1
    for found in divergences:
        assert 0.04 < found["near_tie_up_to"] < 0.4
    assert sum(way["near_ties"] for way in result["ways"]) == len(divergences)


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_audits_find_errors(noise):
    """A wrong token is an error however noisy the kernels; the report names its place."""
    result = audited(NoisyDaemon(noise, wrong=frozenset({3})))
    assert result["failed"]
    assert errors_at(result) == [2] * 6
    assert "error: prompt 0, draft_n auto, token 2: " in "\n".join(lines(result))


@cases(
    "quiet, errors",
    """
    ["", []]
    ["a", [38, 38]]
    """,
)
def test_the_noise_of_one_text_excuses_no_other(quiet, errors):
    """A wrong token within the noise of other texts is an error if its own text is quiet."""
    daemon = NoisyDaemon(noise=0.2, wrong=frozenset({39}), second=True, quiet=quiet)
    result = audited(daemon)
    assert errors_at(result) == errors
    assert result["failed"] == bool(errors)


def test_a_reproducible_verifier_has_no_near_ties_and_no_noise():
    """Logits that differ are an error although the texts are the same."""
    result = audited(NoisyDaemon(noise=0.05), reproducible=True)
    assert errors_of(result) == result["divergences"] != []
    assert judged(result | {"divergences": []})["failed"]


def test_more_noise_than_kernels_explain_is_an_error():
    noisy = judged(audited(NoisyDaemon()) | {"noise": 0.6})
    assert noisy["failed"]
    assert lines(noisy)[0].startswith("ERROR: log-probabilities")


@cases(
    "undrafted, failed",
    """
    [["auto"], []]
    [[4], [4]]
    [["auto", 4], ["auto", 4]]
    """,
)
def test_nothing_was_drafted(undrafted, failed):
    """Without drafts there was no audit, but an adaptive draft_n may find that nothing pays."""
    found = audited(NoisyDaemon())
    for way in found["ways"]:
        if way["draft_n"] in undrafted:
            way["drafted"] = 0
    result = judged(found)
    assert (result["undrafted"], result["failed"]) == (failed, bool(failed))
    assert "\n".join(lines(result)).count("nothing was drafted") == len(failed)


# --- specmesh recommend

KINDS = {"measured", "given", "table", "published", "estimated", "unknown"}


def run(args):
    return CliRunner().invoke(main, ["recommend", *args.split()], catch_exceptions=False)


def family_of(target, metadata):
    family, _ = recommend.family_of(target, metadata)
    return family and family["name"]


@cases(
    "target, family",
    """
    ["Qwen/Qwen3-32B-GGUF", "Qwen3"]
    ["bartowski/Qwen2.5-Coder-32B-Instruct-GGUF", "Qwen2.5"]
    ["meta-llama/Llama-3.3-70B-Instruct", "Llama 3"]
    ["Mistral-Small-3.1-24B-Instruct-2503", "Mistral Small 3"]
    ["google/gemma-3-27b-it", "Gemma 3"]
    ["Qwen3.6-27B", "Qwen3.5 and later"]
    ["zai-org/GLM-4.5-Air", "GLM"]
    ["openai/gpt-oss-120b", "gpt-oss"]
    ["Qwen3-Next-80B-A3B", null]
    """,
)
def test_families_of_names(target, family):
    assert family_of(target, {}) == family


@cases(
    "target, metadata, family",
    """
    ["Qwen3-8B", {"general.architecture": "gemma3", "general.name": "Llama 3.1 8B"}, "Gemma 3"]
    ["Qwen3-8B", {"general.name": "Llama 3.1 8B"}, "Llama 3"]
    ["a-model-of-mine", {"tokenizer.ggml.pre": "llama-bpe"}, "Llama 3"]
    """,
)
def test_families_of_files(target, metadata, family):
    """An architecture comes before the name in the file, its own name and its tokenizer."""
    assert family_of(target, metadata) == family


@pytest.mark.parametrize(
    ("target", "side", "names"),
    [
        ("Qwen2.5-32B", "target", {"Qwen2.5-32B"}),
        ("Qwen2.5-3B-A1B", "drafter", {"Qwen2.5-0.5B"}),
    ],
)
def test_pairs_of_a_size(target, side, names):
    """Without pairs of the same size they are those with a clearly smaller drafter."""
    family, _ = recommend.family_of(target, {})
    found = recommend.pairs_for(family, recommend.size_of(target))
    assert {pair[side] for pair in found} == names


def test_all_pairs_come_for_an_unknown_size():
    family, _ = recommend.family_of("GLM-4.5-Air", {})
    assert recommend.pairs_for(family, recommend.size_of("GLM-4.5-Air")) == family.get("pairs", [])


@cases(
    "pair, alphas",
    """
    [{}, [0.5, 0.8]]
    [{"acceptance": 0.7}, [0.5, 0.7]]
    [{"acceptance": 0.416, "draft_n": 8}, [0.7, 0.9]]
    """,
)
def test_assumed_acceptance(pair, alphas):
    """A rate of chains becomes one per draft; a rate of sure drafts is an upper end."""
    assert recommend.alphas(pair) == tuple(alphas)


@cases(
    "chip, size, kind",
    """
    ["m4", 1.0, "published"]
    ["m4", 8.0, "estimated"]
    [null, 0.6, "estimated"]
    """,
)
def test_draft_times_say_how_they_are_known(chip, size, kind):
    """A time is published for a chip and models as large as the one that was timed on it."""
    found = recommend.draft_time(chip, size)
    assert found["kind"] == kind
    if kind == "published":
        assert found["ms"] == recommend.known()["chips"][chip]["ms"]


def test_step_times_that_were_given():
    """Wider steps cost as much more as on the machine with the nearest step."""
    step = recommend.given(52)
    like = STEPS_MS["spark-7b"]
    assert step.as_json()["ms"] == pytest.approx(52)
    assert step.costs.seconds(8) == pytest.approx(0.052 * like[8] / like[1])
    assert "estimated" in step.source


def test_drafts_that_cannot_pay():
    """A target as fast as its drafter is better off without it."""
    found = recommend.report("Qwen3-4B", {}, recommend.given(3), "m4", 5)
    assert max(forecast["high"] for forecast in found["pairs"][0]["speedup"]) < 1.02
    assert "without a drafter" in "\n".join(found["advice"])


TARGETS = "Qwen3-4B Qwen2.5-72B Llama-3.3-70B Mistral-Small-3.2-24B gemma-3-27b-it GLM-4.6"


@pytest.fixture(params=TARGETS.split())
def answer(request, monkeypatch):
    """The JSON that is printed for a target, without the simulations, which take seconds."""
    monkeypatch.setattr(recommend, "speedup", lambda *_: 1.5)
    shown = run(f"--target {request.param} --step-ms 40 --chip m3-ultra --json")
    return json.loads(shown.stdout)


def test_times_and_rates_name_their_sources(answer):
    """A rate that nobody published is no number; without pairs there is advice."""
    for time in answer["steps"] + [pair["draft"] for pair in answer["pairs"]]:
        assert time["kind"] in KINDS
        assert time["source"]
    for pair in answer["pairs"]:
        rate = pair["acceptance"]
        if rate["kind"] == "unknown":
            assert (rate["rate"], rate["source"]) == (None, None)
        else:
            assert rate["rate"] is not None
            assert "https://" in rate["source"]
    assert answer["pairs"] or "https://" in "\n".join(answer["advice"])


@pytest.mark.models
def test_a_file_is_measured():
    """Nobody has published pairs for the bundled target's family."""
    pytest.importorskip("llama_cpp")
    found = json.loads(run("--target bundled --json").stdout)
    [step] = found["steps"]
    assert (step["kind"], found["tokenizer"], found["pairs"]) == ("measured", "gpt-2", [])
    assert step["ms"] > 0


def test_every_number_has_a_source_and_a_date():
    """Times are published or measured."""
    data = recommend.known()
    chips = [*data["chips"].values()]
    facts = [*chips, data["suffix"], data["experts"]]
    for family in data["families"]:
        for fact in (*family.get("pairs", []), family.get("instead", {})):
            if "acceptance" in fact or fact is family.get("instead"):
                facts.append(fact)
    for fact in facts:
        assert fact["source"].startswith("https://"), fact
        assert fact["date"], fact
    assert data["machines"].keys() == STEPS_MS.keys()
    for fact in (*chips, *data["machines"].values()):
        assert fact["kind"] == ("published" if "source" in fact else "measured")


def test_all_families_are_shown_without_a_target():
    assert json.loads(run("--json").stdout)["families"] == recommend.known()["families"]


def test_the_readme_has_the_table():
    readme = pairs.PATH.read_text(encoding="utf-8")
    assert pairs.HEAD in readme
    assert pairs.filled(readme) == readme, "run `make docs`"
