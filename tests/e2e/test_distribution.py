"""Texts by the real daemons, with the bundled pair: each token is as likely as the target makes it.

Each token has a number by the target's distribution at its place, which an engine of the test
computes: the share of the tokens below it, and a uniform part of its own share. If texts have the
target's distribution, these numbers are uniform and independent. "Below" is in the order of the
drafter's preference over the target's, so that a leaning towards drafts would fill the upper bins.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from harness.truth import place, surprise
from processes import Daemon, complete, until

from specmesh.config import ModelSettings
from specmesh.core.events import Span
from specmesh.core.kv_orders import KVCut
from specmesh.core.sampling.sampler import Sampler, SamplingParams
from specmesh.engines.llama.engine import LlamaVerifier

pytestmark = pytest.mark.models

BUNDLED = Path(str(files("specmesh") / "models"))
PROMPT = "def read_config(path):\n    "
CONTEXT = 128
TOKENS = 40
BINS = 25


@dataclass(frozen=True, slots=True)
class Pair:
    """The daemons, and both models once more in this process."""

    daemon: Daemon
    target: LlamaVerifier
    drafter: LlamaVerifier


def engine_of(name):
    model = str(BUNDLED / name)
    settings = ModelSettings(engine="llama", model=model, ctx=CONTEXT, max_sessions=1, threads=1)
    return LlamaVerifier(settings, max_draft=CONTEXT - 1)


@pytest.fixture(scope="module")
def pair(shared):
    options = ("--ctx", CONTEXT, "--max-sessions", 4)
    verifier = shared.verifier(BUNDLED / "target.gguf", *options, engine="llama")
    shared.drafter(BUNDLED / "drafter.gguf", *options, engine="llama")
    return Pair(verifier, engine_of("target.gguf"), engine_of("drafter.gguf"))


def rows(engine, ids, count):
    """The logits after each of the last `count` ids."""
    [found] = engine.decode([Span(0, 0, tuple(ids), logits=True)])
    engine.carry_out(KVCut(0, 0))
    return found[-count:].copy()


def ranks(pair, prompt, said, params, rng):
    """Return a number per token, uniform if the text has the target's distribution."""
    ids = [*prompt, *said]
    sampler = Sampler(params)
    truths = rows(pair.target, ids[:-1], len(said))
    draft_rows = rows(pair.drafter, ids[:-1], len(said))
    found = []
    for at, (token, truth, draft_row) in enumerate(zip(said, truths, draft_rows, strict=True)):
        after = sampler.after(ids[: len(prompt) + at])
        found.append(place(after.distribution(truth), draft_row - truth, token, rng.random()))
    return found


def sampled(pair, params, total, seed):
    """Return the numbers of at least `total` tokens, and how many drafts stood.

    The daemons write several texts at a time.
    """
    prompt, lock = pair.target.tokenizer.encode(PROMPT), threading.Lock()
    rng = np.random.default_rng(seed)
    found = []
    accepted = 0
    [end] = pair.target.vocabulary.end_ids

    def text(number):
        request = {"prompt": prompt, "max_tokens": TOKENS, "seed": number, "draft_n": 3}
        names = ("temperature", "top_k", "top_p", "strategy", "threshold")
        stream = complete(pair.daemon, request | {name: getattr(params, name) for name in names})
        with lock:
            if stream.finish == "stop":
                stream.ids.append(end)
            found.extend(ranks(pair, prompt, stream.ids, params, rng))
        return sum(stream.accepted)

    with ThreadPoolExecutor(4) as pool:
        number = seed
        while len(found) < total:
            accepted += sum(pool.map(text, range(number, number + 8)))
            number += 8
    return found, accepted


def drafted(pair, params, total, seed):
    """The numbers of `sampled`, of texts in which drafts stood.

    On a busy machine they may all be late.
    """

    def numbers():
        found, accepted = sampled(pair, params, total, seed)
        return found if accepted > len(found) / 10 else []

    return until(numbers, "drafts stand")


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.8, strategy="probabilistic"),
        SamplingParams(temperature=1.2, top_k=40, top_p=0.95, strategy="probabilistic"),
    ],
    ids=["all tokens", "filtered"],
)
def test_exact_strategies_have_the_targets_distribution(pair, params):
    assert abs(surprise(drafted(pair, params, 1000, 1000), BINS)) < 4


def test_a_lossy_strategy_is_seen(pair):
    """A leaning towards the drafter shows, the sooner the more drafts come in time."""
    params = SamplingParams(temperature=1.0, strategy="threshold", threshold=0.005)
    until(lambda: surprise(sampled(pair, params, 3000, 2000)[0], BINS) > 4, "it is seen")


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("strategy", ["probabilistic", "deterministic"])
@pytest.mark.parametrize("temperature", [0.5, 0.8, 1.0, 1.5])
def test_a_hundred_thousand_tokens(pair, strategy, temperature):
    """25,000 tokens at each of several temperatures, 100,000 for each strategy that is exact."""
    params = SamplingParams(temperature=temperature, strategy=strategy)
    assert abs(surprise(drafted(pair, params, 25_000, 10_000), BINS)) < 4
