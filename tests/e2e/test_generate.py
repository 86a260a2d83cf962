"""`specmesh generate` against running daemons: the text is the target's, the numbers are sane."""

import os
from dataclasses import replace

import pytest
from harness.tables import cases
from processes import Done, command, generate, sim_ids, sim_text, until

from specmesh.core.sampling.sampler import Penalties, SamplingParams

fault = pytest.mark.fault
PROMPT = "Once upon a time"
N = 200
TEXT = sim_text(PROMPT, N) + "\n"
COLOUR = "\x1b[4;32m"
NO_COLOUR = "\x1b[24;39m"


def report_of(daemon, *options, tokens=N):
    done = generate(daemon, PROMPT, *options, max_tokens=tokens, json=True)
    return done.json


def drafting(daemon, *options, least=1):
    """Return the report of a text of which so many drafts stood.

    A drafter that had no processor is asked again.
    """

    def enough():
        report = report_of(daemon, *options)
        return report if report["accepted"] >= least else None

    return until(enough, f"{least} drafts stand")


ODD = ["a\0b", "\x1b[31m", "e\u0301 \u200d \U0001f9d1\u200d\U0001f680", "\ufeffx"]
"""NUL, an escape, joined emoji, a byte order mark."""


@pytest.mark.parametrize("prompt", ["two lines\n\tand ümlauts", *ODD], ids=ascii)
@fault("E7.83")
def test_text_is_the_targets_own(daemon, prompt):
    """stdout has only the text and a newline; `-` reads the prompt unchanged."""
    done = generate(daemon, "-", max_tokens=N, stdin=prompt)
    assert done == Done(0, sim_text(prompt, N) + "\n", "")


@fault("E7.83")
@pytest.mark.parametrize(("options", "field"), [((), "prompt"), (("x", "--stop"), "stop[0]")])
def test_what_is_no_text_is_refused(pair, options, field):
    """A prompt and a stop string."""
    generate(pair["verifier"], *options, os.fsdecode(b"caf\xe9")).refused(
        2, f"{field} is not UTF-8", "iconv"
    )


@cases(
    "env",
    """
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    {"PYTHONIOENCODING": "ascii:strict"}
    """,
)
def test_a_locale_without_utf_8(pair, env):
    """The prompt arrives as it was typed; a character the locale lacks is shown as `?`."""
    words = ("generate", "Grüße", "--socket", pair["verifier"].socket, "--max-tokens", N)
    done = command(*words, env=env, shell='exec "$@"')  # noqa: S604
    shown = sim_text("Grüße", N).encode("ascii", "replace")
    assert done == Done(0, shown.decode() + "\n", "")


def test_json_has_the_text(daemon):
    report = report_of(daemon)
    assert report["schema_version"] == 1
    assert report["text"] == sim_text(PROMPT, N)
    assert report["finish_reason"] == "length"
    assert report["prompt_token_ids"] == list(PROMPT.encode())
    assert report["generated_tokens"] == N


def test_json_counts_drafts(daemon):
    report = drafting(daemon, "--draft-n", 4)
    accepted = report["accepted"]
    drafted = report["drafted"]
    rounds = report["rounds"]
    assert accepted + rounds == N
    assert 0 < accepted <= drafted <= 4 * rounds
    assert report["acceptance_rate"] == pytest.approx(accepted / drafted, abs=1e-4)
    assert report["mean_acceptance_length"] == pytest.approx(N / rounds, abs=1e-4)
    assert report["draft_n_last"] == 4
    histogram = report["accept_histogram"]
    assert sum(histogram) == rounds
    assert sum(count * times for count, times in enumerate(histogram)) == accepted


def test_json_has_sane_times(daemon):
    report = drafting(daemon, "--draft-n", 4)
    seconds = report["time_s"]
    assert report["bytes_sent"] > 0
    assert report["bytes_received"] > 0
    assert (report["draft_ms"] is None) == (daemon.role == "verifier")  # only its drafter knows
    assert 0 < report["verify_ms"] <= seconds * 1e3
    assert 0 < report["time_to_first_token_s"] <= seconds
    assert report["tokens_per_second"] >= N / seconds


VERBOSE = "rounds accepted time_s verify_ms speedup_vs_one_token_step one_token_step_ms"


def test_verbose_writes_the_report_to_stderr(pair):
    """It has the names of --json; stdout has only the text."""
    done = generate(pair["verifier"], PROMPT, max_tokens=N, verbose=True)
    assert (done.code, done.out) == (0, TEXT)
    shown = dict(line.split(None, 1) for line in done.err.splitlines())
    assert (shown["prompt_tokens"], shown["generated_tokens"]) == (str(len(PROMPT)), str(N))
    assert set(VERBOSE.split()) <= set(shown)


def show_drafts(daemon, mark, **options):
    words = ("--max-tokens", N, "--draft-n", 4, "--show-drafts")

    def marked():
        done = generate(daemon, PROMPT, *words, **options)
        return done if mark in done.out else None

    return until(marked, "drafts are marked").out


def test_show_drafts_marks_the_same_text(pair):
    shown = show_drafts(pair["verifier"], COLOUR)
    plain = shown.replace(COLOUR, "").replace(NO_COLOUR, "")
    assert plain == TEXT


def test_drafts_are_marked_without_colours(pair):
    shown = show_drafts(pair["verifier"], "[[", env={"NO_COLOR": "1"})
    assert "\x1b" not in shown


@fault("E7.84")
def test_sampled_text_repeats_with_its_seed(daemon):
    options = ("--temperature", 8, "--seed", 7)
    expected = sim_ids(PROMPT, N, SamplingParams(temperature=8, seed=7))
    drafted = drafting(daemon, *options, "--draft-n", 4)
    alone = report_of(daemon, *options, "--draft-n", 0)
    for report in (drafted, alone):
        assert report["token_ids"] == expected


SEVERAL = ("--max-tokens", 12, "--temperature", 4, "--top-k", 60, "--seed", 7, "--n", 3)
SEEDS = [7, 8, 9]


def text_of_seed(seed):
    return sim_text(PROMPT, 12, SamplingParams(temperature=4, top_k=60, seed=seed))


def test_several_texts_are_those_of_seeds_that_follow_one_another(daemon):
    done = generate(daemon, PROMPT, *SEVERAL)
    texts = [text_of_seed(seed) for seed in SEEDS]
    assert len(set(texts)) == 3
    assert (done.code, done.out) == (0, "\n".join([*texts, ""]))
    lines = done.err.splitlines()
    assert lines == [f"specmesh: text {number} of 3, seed {6 + number}" for number in (1, 2, 3)]


def test_several_texts_as_json(daemon):
    choices = generate(daemon, PROMPT, *SEVERAL, json=True).json["choices"]
    for choice, seed in zip(choices, SEEDS, strict=True):
        assert (choice["seed"], choice["text"]) == (seed, text_of_seed(seed))


@cases(
    "options, params, penalties",
    """
    [["--top-k", 5], {"top_k": 5}, {}]
    [["--top-p", 0.5], {"top_p": 0.5}, {}]
    [["--min-p", 0.3], {"min_p": 0.3}, {}]
    [["--presence-penalty", 40, "--repeat-last-n", -1], {}, {"presence": 40.0, "window": -1}]
    [["--frequency-penalty", 9], {}, {"frequency": 9.0}]
    [["--presence-penalty", -9], {}, {"presence": -9.0}]
    """,
)
def test_the_verifier_samples_with_the_options(pair, options, params, penalties):
    """Filters and penalties go over HTTP and the wire."""
    plain = SamplingParams(temperature=8, seed=3)
    sampling = replace(plain, **params, penalties=Penalties(**penalties))
    expected = sim_ids(PROMPT, 30, sampling)
    words = ("--temperature", 8, "--seed", 3, *options)
    report = report_of(pair["drafter"], *words, tokens=30)
    assert report["token_ids"] == expected
    assert expected != sim_ids(PROMPT, 30, plain)


@pytest.fixture
def predicted(tmp_path):
    """Return a function that writes a file with a prediction."""

    def write(text):
        path = tmp_path / "prediction.txt"
        path.write_bytes(text)
        return path

    return write


def test_drafts_come_from_a_prediction(daemon, predicted):
    path = predicted(TEXT.encode())
    report = report_of(daemon, "--prediction-file", path)
    assert report["text"] == sim_text(PROMPT, N)
    assert report["by_source"]["prediction"]["accepted"] > N / 2
    assert report["rounds"] < N / 2


def test_a_wrong_prediction_leaves_the_text_as_it_is(daemon, predicted):
    path = predicted(TEXT[::-1].encode())
    report = report_of(daemon, "--prediction-file", path)
    assert report["text"] == sim_text(PROMPT, N)


def test_several_texts_have_the_prediction_each(daemon, predicted):
    path = predicted(text_of_seed(8).encode())
    words = ("--prediction-file", path)
    choices = generate(daemon, PROMPT, *SEVERAL, *words, json=True).json["choices"]
    for choice, seed in zip(choices, SEEDS, strict=True):
        assert choice["text"] == text_of_seed(seed)


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (b"caf\xe9", 78, ("UTF-8", "prediction.txt")),
        (b"x" * 9000, 2, ("prediction.content", "context")),
    ],
    ids=["no text", "longer than the context"],
)
def test_what_is_no_prediction_is_refused(pair, predicted, content, code, words):
    path = predicted(content)
    generate(pair["drafter"], PROMPT, "--prediction-file", path).refused(code, *words)


def test_a_prediction_that_is_no_file_is_refused(pair, tmp_path):
    path = tmp_path / "none"
    generate(pair["drafter"], PROMPT, "--prediction-file", path).refused(78, str(path))


def test_a_resumed_text_keeps_its_prediction(pair, predicted):
    words = ("--resume", "cmpl-" + 32 * "0", "--prediction-file", predicted(b"x"))
    done = generate(pair["verifier"], *words)
    assert done.code == 2
    assert "leave out --prediction-file" in done.err


STRATEGIES = ("--temperature", 3, "--seed", 5, "--draft-n", 4, "--ignore-eos", "--threshold", 0.5)


@cases("strategy, exact", '["probabilistic", true] ["threshold", false]')
def test_strategies(pair, strategy, exact):
    """The report names the strategy, and whether it is exact; drafts come with distributions."""
    report = drafting(pair["drafter"], *STRATEGIES, "--strategy", strategy, least=11)
    assert report["strategy"] == strategy
    assert report["exact"] is exact
    assert len(report["token_ids"]) == N
    if exact:
        largest = max(report["bytes_sent"], report["bytes_received"])
        assert largest > 100 * report["drafted"]


def test_greedy_drafts_of_sampled_texts_hardly_stand(pair):
    report = drafting(pair["drafter"], *STRATEGIES, "--strategy", "greedy", least=0)
    assert (report["strategy"], report["exact"]) == ("greedy", True)
    assert report["accepted"] <= 10
    assert report["token_ids"] == sim_ids(PROMPT, N, SamplingParams(temperature=3, seed=5))


def test_closed_stdout_ends_quietly(pair):
    """`specmesh generate ... | head -c 3` has no traceback, and its session ends."""
    daemon = pair["verifier"]
    done = generate(daemon, PROMPT, max_tokens=2000, shell='"$@" | head -c 3')  # noqa: S604
    assert (done.out, done.err) == (sim_text(PROMPT, 3), "")
    daemon.idle()
