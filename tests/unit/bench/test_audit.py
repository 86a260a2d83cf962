"""An audit of a daemon whose kernels are noisy, and of one that errs."""

from collections.abc import Generator, Sequence
from hashlib import blake2b
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from specmesh.bench.audit import audit, judged, lines
from specmesh.client import Client
from specmesh.core.fields import Json
from specmesh.core.sampling.logprobs import logprobs_of
from specmesh.core.sampling.sampler import Sampler, SamplingParams, biased

N_VOCAB, END = 24, 0
PROMPTS = ("a", "b", "c")


class Daemon:
    """Answers as a pair would whose target has random logits; with drafts they differ by up to `noise`. quiet: prompts
    after which they do not. wrong: positions at which its texts with drafts have another token than the best, whatever
    the logits; `second`: the next best."""

    def __init__(
        self, noise: float = 0.0, wrong: frozenset[int] = frozenset(), quiet: str = "", *, second: bool = False
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
        sampler = Sampler(SamplingParams(temperature, top_k=top_k, seed=seed, logit_bias=biases))
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
            top = [{"id": one, "logprob": value} for one, value in zip(found.ids, found.top, strict=True)]
            told.append({"id": token, "logprob": found.chosen, "top_logprobs": top})
        yield {"choices": [{"text": ""}], "specmesh": {"session": 1}}
        yield {"choices": [{"text": "x"}], "specmesh": {"token_ids": ids, "accepted": 0, "logprobs": told}}
        report = {"drafted": 3 * drafts, "accepted": 2 * drafts}
        yield {"choices": [{"text": ""}], "specmesh": {"prompt_token_ids": prompt, "report": report}}

    def _row(self, ids: list[int], *, drafts: bool) -> NDArray[np.float32]:
        digest = blake2b(bytes(ids), digest_size=2 * N_VOCAB).digest()
        row = np.frombuffer(digest, np.uint16).astype(np.float32) / 16384
        row[END] -= 1.0
        if drafts and ids[0] not in self._quiet:
            luck = np.random.default_rng(list(bytes(ids)))
            row += luck.uniform(-self._noise, self._noise, N_VOCAB).astype(np.float32)
        return row


def audited(daemon: Daemon, *, reproducible: bool = False, **sampling: object) -> dict[str, Any]:
    bodies: list[Json] = [{"prompt": one, "seed": at, "max_tokens": 40} | sampling for at, one in enumerate(PROMPTS)]
    told: Json = {"model": {"name": "m", "backend": "CPU", "reproducible": reproducible}}
    return audit(cast("Client", daemon), bodies, ("auto", 4), told, lambda: None)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8}, {"temperature": 3.0, "top_k": 6}])
def test_noisy_kernels(sampling: dict[str, object]):
    """Texts part, also at their ends, and each parting is within what the logits were seen to differ by."""
    result = audited(Daemon(noise=0.05), **sampling)
    assert not result["failed"]
    assert len(result["divergences"]) >= 2
    assert {one["verdict"] for one in result["divergences"]} == {"near tie"}
    assert 0.02 < result["noise"] < 0.1
    assert all(0.04 < one["near_tie_up_to"] < 0.4 for one in result["divergences"])
    assert sum(int(way["near_ties"]) for way in result["ways"]) == len(result["divergences"])


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_errors(noise: float):
    """A token that the target would not say is an error, however noisy the kernels; the report names the place."""
    result = audited(Daemon(noise, wrong=frozenset({3})))
    errors = [one for one in result["divergences"] if one["verdict"] == "error"]
    assert result["failed"]
    assert {one["position"] for one in errors} == {2}
    assert len(errors) == 6
    assert any(line.startswith("error: prompt 0, draft_n auto, token 2: ") for line in lines(result))


def test_the_noise_of_one_text_excuses_no_other():
    """A wrong token by a margin within the noise of other texts is an error where its own text is quiet."""
    excused = audited(Daemon(noise=0.2, wrong=frozenset({39}), second=True))
    quiet = audited(Daemon(noise=0.2, wrong=frozenset({39}), second=True, quiet="a"))
    assert not excused["failed"]
    errors = [one for one in quiet["divergences"] if one["verdict"] == "error"]
    assert {(one["prompt"], one["position"], one["near_tie_up_to"]) for one in errors} == {(0, 38, 0.0)}
    assert quiet["failed"]


def test_what_is_promised_to_the_last_bit():
    """Of a reproducible verifier no divergence is a near tie, and logits that differ are an error without one."""
    result = audited(Daemon(noise=0.05), reproducible=True)
    assert {one["verdict"] for one in result["divergences"]} == {"error"}
    assert judged(result | {"divergences": []})["failed"]
    noisy = judged(audited(Daemon()) | {"noise": 0.6})  # more than kernels explain
    assert noisy["failed"]
    assert lines(noisy)[0].startswith("ERROR: log-probabilities")


@pytest.mark.parametrize(("undrafted", "failed"), [(("auto",), []), ((4,), [4]), (("auto", 4), ["auto", 4])])
def test_nothing_was_drafted(undrafted: tuple[object, ...], failed: list[object]):
    """What no drafter took part in is no audit; a draft_n that adapts may find that nothing pays."""
    found = audited(Daemon())
    ways = [way | {"drafted": 0} if way["draft_n"] in undrafted else way for way in found["ways"]]
    result = judged(found | {"ways": ways})
    assert (result["undrafted"], result["failed"]) == (failed, bool(failed))
    assert sum("nothing was drafted" in line for line in lines(result)) == len(failed)
