"""`specmesh generate` against running daemons: the text is the target's own, and the numbers are sane."""

import os
from typing import Any

import pytest
from processes import Daemon, Done, Json, command, generate, sim_ids, sim_text, until

from specmesh.core.sampling.sampler import Penalties, SamplingParams

PROMPT = "Once upon a time"
N = 200


def drafting(daemon: Daemon, *options: object, drafts: str = "accepted", least: int = 1) -> Json:
    """The report of a text that had this many drafts: asked for again where the drafter had no processor meanwhile."""

    def enough() -> Json | None:
        report = generate(daemon, PROMPT, "--max-tokens", N, "--json", *options).json
        return report if report[drafts] >= least else None  # type: ignore[operator]

    return until(enough, f"{least} drafts are {drafts}")


ODD = ["a\0b", "\x1b[31m", "e\u0301 \u200d \U0001f9d1\u200d\U0001f680", "\ufeffx"]
"""NUL, an escape, joined emoji, a byte order mark."""


@pytest.mark.parametrize("prompt", ["two lines\n\tand ümlauts", *ODD], ids=ascii)
@pytest.mark.fault("E7.83")
def test_text_is_the_targets_own(daemon: Daemon, prompt: str):
    """stdout is the target's own text and a newline, nothing else, stderr empty; `-` reads the prompt unchanged."""
    done = generate(daemon, "-", "--max-tokens", N, stdin=prompt)
    assert (done.code, done.out, done.err) == (0, sim_text(prompt, N) + "\n", "")


@pytest.mark.fault("E7.83")
def test_a_prompt_that_is_no_text(pair: dict[str, Daemon]):
    generate(pair["verifier"], os.fsdecode(b"caf\xe9")).refused(2, "is not UTF-8", "iconv")
    stop = "--stop", os.fsdecode(b"\xff")
    generate(pair["verifier"], "x", *stop).refused(2, "is not UTF-8")


def test_a_locale_without_utf_8(pair: dict[str, Daemon]):
    """What is typed comes as it was typed; of what is shown, what the locale lacks is a question
    mark."""
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    told = ("--socket", pair["verifier"].socket, "--max-tokens", N)
    for env in (ascii_only, {"PYTHONIOENCODING": "ascii:strict"}):
        done = command("generate", "Grüße", *told, env=env, shell='exec "$@"')  # noqa: S604
        assert (done.code, done.err) == (0, "")
        expected = sim_text("Grüße", N).encode("ascii", "replace").decode()
        assert done.out == expected + "\n"


def test_json_has_sane_values(daemon: Daemon, role: str):
    r: Any = drafting(daemon, "--draft-n", 4)
    assert r["schema_version"] == 1
    assert r["token_ids"] == sim_ids(PROMPT, N)
    assert (r["text"], r["finish_reason"]) == (sim_text(PROMPT, N), "length")
    assert r["prompt_token_ids"] == list(PROMPT.encode())
    assert (r["prompt_tokens"], r["generated_tokens"]) == (len(PROMPT), N)
    assert 0 < r["accepted"] <= r["drafted"] <= 4 * r["rounds"]
    assert len(r["accept_histogram"]) <= 4 + 1
    assert r["acceptance_rate"] == pytest.approx(r["accepted"] / r["drafted"], abs=1e-4)
    assert r["mean_acceptance_length"] == pytest.approx(1 + r["accepted"] / r["rounds"], abs=1e-4)
    assert r["generated_tokens"] == r["accepted"] + r["rounds"]
    assert sum(r["accept_histogram"]) == r["rounds"]
    assert sum(n * rounds for n, rounds in enumerate(r["accept_histogram"])) == r["accepted"]
    assert r["bytes_sent"] > 0
    assert r["bytes_received"] > 0
    if daemon.role == "drafter":
        assert r["draft_ms"] > 0
    else:  # only its drafter knows
        assert r["draft_ms"] is None
    assert 0 < r["verify_ms"] <= r["time_s"] * 1e3
    assert 0 < r["time_to_first_token_s"] <= r["time_s"]
    assert r["tokens_per_second"] >= r["generated_tokens"] / r["time_s"]
    assert r["draft_n_last"] == 4
    assert isinstance(r["seed"], int)
    assert r["drafter"] is not None


def test_verbose_tells_the_report_on_stderr(pair: dict[str, Daemon]):
    """--verbose: text only on stdout; on stderr what --json has of the generation, by the same names."""
    done = generate(pair["verifier"], PROMPT, "--max-tokens", N, "--verbose")
    assert (done.code, done.out) == (0, sim_text(PROMPT, N) + "\n")
    told = dict(line.split(None, 1) for line in done.err.splitlines())
    assert (told["prompt_tokens"], told["generated_tokens"]) == (str(len(PROMPT)), str(N))
    assert {
        "rounds",
        "accepted",
        "time_s",
        "verify_ms",
        "speedup_vs_one_token_step",
        "one_token_step_ms",
    } <= set(told)


def test_show_drafts_marks_the_same_text(pair: dict[str, Daemon]):
    options: dict[str, object] = {}

    def marked(mark: str) -> Done | None:
        done = generate(
            pair["verifier"], PROMPT, "--max-tokens", N, "--draft-n", 4, "--show-drafts", **options
        )
        return done if mark in done.out else None

    done = until(lambda: marked("\x1b[32m"), "drafts are marked")
    assert done.out.replace("\x1b[32m", "").replace("\x1b[39m", "") == sim_text(PROMPT, N) + "\n"
    options["env"] = {"NO_COLOR": "1"}
    assert "\x1b" not in until(lambda: marked("[["), "they are marked without colours").out


@pytest.mark.fault("E7.84")
def test_sampled_text_repeats_with_its_seed(daemon: Daemon):
    options = ("--temperature", 8, "--seed", 7)
    with_drafts = drafting(daemon, *options, "--draft-n", 4)
    alone = generate(daemon, PROMPT, "--max-tokens", N, *options, "--draft-n", 0, "--json").json
    assert with_drafts["seed"] == 7
    assert (
        with_drafts["token_ids"]
        == alone["token_ids"]
        == sim_ids(PROMPT, N, SamplingParams(temperature=8, seed=7))
    )


def test_several_texts_are_those_of_seeds_that_follow_one_another(daemon: Daemon):
    """Side by side, each the text of its seed alone."""
    options = ("--max-tokens", 12, "--temperature", 4, "--top-k", 60)
    alone = [
        sim_text(PROMPT, 12, SamplingParams(temperature=4, top_k=60, seed=seed)) + "\n"
        for seed in (7, 8, 9)
    ]
    done = generate(daemon, PROMPT, *options, "--seed", 7, "--n", 3)
    assert (done.code, done.out) == (0, "".join(alone))
    assert done.err == "".join(f"specmesh: text {n} of 3, seed {6 + n}\n" for n in (1, 2, 3))
    told = generate(daemon, PROMPT, *options, "--seed", 7, "--n", 3, "--json").json
    assert [(one["text"] + "\n", one["seed"]) for one in told["choices"]] == list(
        zip(alone, (7, 8, 9), strict=True)
    )
    assert len(set(alone)) == 3


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
def test_sampling_options_are_what_the_verifier_samples_with(
    pair: dict[str, Daemon], options: tuple[object, ...], params: SamplingParams
):
    """Every filter, penalty and bias, over HTTP and the wire, with drafts: the text is the target's own."""
    done = generate(
        pair["drafter"],
        PROMPT,
        "--max-tokens",
        30,
        "--temperature",
        8,
        "--seed",
        3,
        *options,
        "--json",
    )
    assert (
        done.json["token_ids"]
        == sim_ids(PROMPT, 30, params)
        != sim_ids(PROMPT, 30, SamplingParams(temperature=8, seed=3))
    )


@pytest.mark.parametrize("strategy", ["probabilistic", "threshold", "greedy"])
def test_strategies(pair: dict[str, Daemon], strategy: str):
    """The report names it, and if it is exact. Drafts stand but by greedy; probabilistic's come with distributions."""
    options = (
        "--temperature",
        3,
        "--seed",
        5,
        "--draft-n",
        4,
        "--strategy",
        strategy,
        "--threshold",
        0.5,
    )
    options = (
        *options,
        "--ignore-eos",
    )  # which texts of probabilistic a drafter's timing gives is luck
    report: Any = drafting(pair["drafter"], *options, least=0 if strategy == "greedy" else 11)
    assert (report["strategy"], report["exact"]) == (strategy, strategy != "threshold")
    assert len(report["token_ids"]) == N
    assert (report["accepted"] > 10) == (strategy != "greedy")
    if strategy == "greedy":
        assert report["token_ids"] == sim_ids(PROMPT, N, SamplingParams(temperature=3, seed=5))
    if strategy == "probabilistic":
        assert max(report["bytes_sent"], report["bytes_received"]) > 100 * report["drafted"]


def test_closed_stdout_ends_quietly(pair: dict[str, Daemon]):
    """`specmesh generate ... | head -c 3`: no traceback, and the session ends on the verifier."""
    daemon = pair["verifier"]
    done = generate(daemon, PROMPT, "--max-tokens", 2000, shell='"$@" | head -c 3')  # noqa: S604
    assert (done.out, done.err) == (sim_text(PROMPT, 3), "")
    until(lambda: daemon.live() == 0, "the session is cancelled")
