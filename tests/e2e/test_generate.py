"""`specmesh generate` against running daemons: the text is the target's, the numbers are sane."""

import os

import pytest
from harness.tables import cases
from processes import Daemon, Done, Json, command, generate, sim_ids, sim_text, until

from specmesh.core.sampling.sampler import Penalties, SamplingParams

PROMPT = "Once upon a time"
N = 200
TEXT = sim_text(PROMPT, N) + "\n"


def report_of(daemon: Daemon, *options: object, tokens: int = N) -> Json:
    return generate(daemon, PROMPT, *options, max_tokens=tokens, json=True).json


def drafting(daemon: Daemon, *options: object, least: int = 1) -> Json:
    """Return the report of a text of which so many drafts stood.

    A drafter that had no processor is asked again.
    """

    def enough() -> Json | None:
        report = report_of(daemon, *options)
        return report if report["accepted"] >= least else None

    return until(enough, f"{least} drafts stand")


ODD = ["a\0b", "\x1b[31m", "e\u0301 \u200d \U0001f9d1\u200d\U0001f680", "\ufeffx"]
"""NUL, an escape, joined emoji, a byte order mark."""


@pytest.mark.parametrize("prompt", ["two lines\n\tand ümlauts", *ODD], ids=ascii)
@pytest.mark.fault("E7.83")
def test_text_is_the_targets_own(daemon, prompt):
    """stdout has only the text and a newline; `-` reads the prompt unchanged."""
    done = generate(daemon, "-", max_tokens=N, stdin=prompt)
    assert (done.code, done.out, done.err) == (0, sim_text(prompt, N) + "\n", "")


@pytest.mark.fault("E7.83")
def test_a_prompt_that_is_no_text(pair):
    generate(pair["verifier"], os.fsdecode(b"caf\xe9")).refused(2, "is not UTF-8", "iconv")


def test_a_stop_string_that_is_no_text(pair):
    done = generate(pair["verifier"], "x", "--stop", os.fsdecode(b"\xff"))
    done.refused(2, "is not UTF-8")


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
    assert (done.code, done.err) == (0, "")
    assert done.out == sim_text("Grüße", N).encode("ascii", "replace").decode() + "\n"


def test_json_has_the_text(daemon):
    report = report_of(daemon)
    assert report["schema_version"] == 1
    assert report["token_ids"] == sim_ids(PROMPT, N)
    assert (report["text"], report["finish_reason"]) == (sim_text(PROMPT, N), "length")
    assert report["prompt_token_ids"] == list(PROMPT.encode())
    assert (report["prompt_tokens"], report["generated_tokens"]) == (len(PROMPT), N)
    assert isinstance(report["seed"], int)


def test_json_counts_drafts(daemon):
    report = drafting(daemon, "--draft-n", 4)
    accepted = report["accepted"]
    rounds = report["rounds"]
    histogram = report["accept_histogram"]
    assert report["generated_tokens"] == accepted + rounds
    assert 0 < accepted <= report["drafted"] <= 4 * rounds
    assert report["acceptance_rate"] == pytest.approx(accepted / report["drafted"], abs=1e-4)
    assert report["mean_acceptance_length"] == pytest.approx(1 + accepted / rounds, abs=1e-4)
    assert len(histogram) <= 4 + 1
    assert sum(histogram) == rounds
    assert sum(count * times for count, times in enumerate(histogram)) == accepted
    assert report["draft_n_last"] == 4
    assert report["drafter"] is not None


def test_json_has_sane_times(daemon):
    report = drafting(daemon, "--draft-n", 4)
    seconds = report["time_s"]
    assert report["bytes_sent"] > 0
    assert report["bytes_received"] > 0
    if daemon.role == "drafter":
        assert report["draft_ms"] > 0
    else:  # only its drafter knows
        assert report["draft_ms"] is None
    assert 0 < report["verify_ms"] <= seconds * 1e3
    assert 0 < report["time_to_first_token_s"] <= seconds
    assert report["tokens_per_second"] >= report["generated_tokens"] / seconds


VERBOSE = "rounds accepted time_s verify_ms speedup_vs_one_token_step one_token_step_ms"


def test_verbose_writes_the_report_to_stderr(pair):
    """It has the names of --json; stdout has only the text."""
    done = generate(pair["verifier"], PROMPT, max_tokens=N, verbose=True)
    assert (done.code, done.out) == (0, TEXT)
    shown = dict(line.split(None, 1) for line in done.err.splitlines())
    assert (shown["prompt_tokens"], shown["generated_tokens"]) == (str(len(PROMPT)), str(N))
    assert set(VERBOSE.split()) <= set(shown)


def show_drafts(daemon: Daemon, mark: str, **options: object) -> str:
    words = ("--max-tokens", N, "--draft-n", 4, "--show-drafts")

    def marked() -> Done | None:
        done = generate(daemon, PROMPT, *words, **options)
        return done if mark in done.out else None

    return until(marked, "drafts are marked").out


def test_show_drafts_marks_the_same_text(pair):
    shown = show_drafts(pair["verifier"], "\x1b[32m")
    assert shown.replace("\x1b[32m", "").replace("\x1b[39m", "") == TEXT


def test_drafts_are_marked_without_colours(pair):
    assert "\x1b" not in show_drafts(pair["verifier"], "[[", env={"NO_COLOR": "1"})


@pytest.mark.fault("E7.84")
def test_sampled_text_repeats_with_its_seed(daemon):
    options = ("--temperature", 8, "--seed", 7)
    expected = sim_ids(PROMPT, N, SamplingParams(temperature=8, seed=7))
    with_drafts = drafting(daemon, *options, "--draft-n", 4)
    assert (with_drafts["seed"], with_drafts["token_ids"]) == (7, expected)
    assert report_of(daemon, *options, "--draft-n", 0)["token_ids"] == expected


SEVERAL = ("--max-tokens", 12, "--temperature", 4, "--top-k", 60, "--seed", 7, "--n", 3)
SEVERAL_TEXTS = [
    sim_text(PROMPT, 12, SamplingParams(temperature=4, top_k=60, seed=seed)) for seed in (7, 8, 9)
]


def test_several_texts_are_those_of_seeds_that_follow_one_another(daemon):
    done = generate(daemon, PROMPT, *SEVERAL)
    assert len(set(SEVERAL_TEXTS)) == 3
    assert (done.code, done.out) == (0, "\n".join([*SEVERAL_TEXTS, ""]))
    lines = [f"specmesh: text {number} of 3, seed {6 + number}" for number in (1, 2, 3)]
    assert done.err.splitlines() == lines


def test_several_texts_as_json(daemon):
    choices = generate(daemon, PROMPT, *SEVERAL, json=True).json["choices"]
    assert [choice["text"] for choice in choices] == SEVERAL_TEXTS
    assert [choice["seed"] for choice in choices] == [7, 8, 9]


def penalised(**penalties: float) -> SamplingParams:
    return SamplingParams(temperature=8, seed=3, penalties=Penalties(**penalties))


@pytest.mark.parametrize(
    ("options", "params"),
    [
        (("--top-k", 5), SamplingParams(temperature=8, top_k=5, seed=3)),
        (("--top-p", 0.5), SamplingParams(temperature=8, top_p=0.5, seed=3)),
        (("--min-p", 0.3), SamplingParams(temperature=8, seed=3, min_p=0.3)),
        (("--presence-penalty", 40, "--repeat-last-n", -1), penalised(presence=40.0, window=-1)),
        (("--frequency-penalty", 9), penalised(frequency=9.0)),
        (("--presence-penalty", -9), penalised(presence=-9.0)),
    ],
    ids=["top-k", "top-p", "min-p", "window", "frequency", "presence"],
)
def test_sampling_options_are_what_the_verifier_samples_with(pair, options, params):
    """Filters and penalties go over HTTP and the wire."""
    sampling = ("--temperature", 8, "--seed", 3, *options)
    expected = sim_ids(PROMPT, 30, params)
    assert report_of(pair["drafter"], *sampling, tokens=30)["token_ids"] == expected
    assert expected != sim_ids(PROMPT, 30, SamplingParams(temperature=8, seed=3))


def with_strategy(pair: dict[str, Daemon], strategy: str, least: int) -> Json:
    options = ("--temperature", 3, "--seed", 5, "--draft-n", 4, "--ignore-eos")
    strategy_options = ("--strategy", strategy, "--threshold", 0.5)
    return drafting(pair["drafter"], *options, *strategy_options, least=least)


@pytest.mark.parametrize(("strategy", "exact"), [("probabilistic", True), ("threshold", False)])
def test_strategies(pair, strategy, exact):
    """The report names the strategy and whether it is exact."""
    report = with_strategy(pair, strategy, least=11)
    assert (report["strategy"], report["exact"]) == (strategy, exact)
    assert len(report["token_ids"]) == N


def test_probabilistic_drafts_come_with_distributions(pair):
    report = with_strategy(pair, "probabilistic", least=11)
    assert max(report["bytes_sent"], report["bytes_received"]) > 100 * report["drafted"]


def test_greedy_drafts_of_sampled_texts_hardly_stand(pair):
    report = with_strategy(pair, "greedy", least=0)
    assert (report["strategy"], report["exact"]) == ("greedy", True)
    assert report["accepted"] <= 10
    assert report["token_ids"] == sim_ids(PROMPT, N, SamplingParams(temperature=3, seed=5))


def test_closed_stdout_ends_quietly(pair):
    """`specmesh generate ... | head -c 3` has no traceback, and its session ends."""
    daemon = pair["verifier"]
    done = generate(daemon, PROMPT, max_tokens=2000, shell='"$@" | head -c 3')  # noqa: S604
    assert (done.out, done.err) == (sim_text(PROMPT, 3), "")
    until(lambda: daemon.live() == 0, "the session is cancelled")
