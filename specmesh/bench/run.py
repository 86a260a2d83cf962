"""`specmesh bench run`: the same prompts on a live pair, alone and with drafts in several ways."""

from collections.abc import Callable
from statistics import median
from typing import Any

from specmesh.bench import BenchText, generate
from specmesh.client import Client, Json

WARM_UP_TOKENS = 32

ALONE = "alone"
VARIANTS: dict[str, int | str] = {ALONE: 0, "draft_n 2": 2, "draft_n 4": 4, "draft_n 8": 8, "adaptive": "auto"}
"""The draft_n that is asked for, by name."""

Runs = dict[str, list[list[BenchText]]]
"""By variant and iteration, the text of each prompt."""


def measure(
    client: Client,
    prompts: tuple[str, ...],
    iterations: int,
    max_tokens: int,
    variants: list[str],
    advance: Callable[[], None],
) -> Runs:
    """Generate each prompt with each variant in each iteration, greedily, one text at a time, calling `advance` after
    each; first an unmeasured text of the first and of the last variant. Raise what the daemon raises."""

    def text(prompt: str, variant: str, tokens: int) -> BenchText:
        asked: Json = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "draft_n": VARIANTS[variant]}
        return generate(client, asked | {"cache_prompt": False})  # else the second finds its prompt in memory

    for variant in {variants[0], variants[-1]}:
        text(prompts[0], variant, min(max_tokens, WARM_UP_TOKENS))
    runs: Runs = {variant: [[] for _ in range(iterations)] for variant in variants}
    for iteration in range(iterations):
        for number, prompt in enumerate(prompts):
            shift = (iteration + number) % len(variants)  # so that none always follows the same one
            for variant in variants[shift:] + variants[:shift]:
                runs[variant][iteration].append(text(prompt, variant, max_tokens))
                advance()
    return runs


def outcomes(runs: Runs) -> list[dict[str, Any]]:
    """Sum up each variant. Rates are without prompt processing, by iteration; speed-ups against the verifier alone."""
    found = [{"variant": name} | _outcome(iterations, runs[ALONE]) for name, iterations in runs.items()]
    alone = found[0]["tokens_per_second"]["median"]
    return [one | {"speedup": round(one["tokens_per_second"]["median"] / alone, 4) if alone else 0.0} for one in found]


def _outcome(iterations: list[list[BenchText]], alone: list[list[BenchText]]) -> dict[str, Any]:
    texts = [text for texts in iterations for text in texts]
    rates = [_rate(own) for own in iterations]
    tokens = sum(len(text.ids) for text in texts)
    rounds, drafted, accepted = (_total(texts, name) for name in ("rounds", "drafted", "accepted"))
    return {
        "texts": len(texts),
        "tokens": tokens,
        "tokens_per_second": {"median": round(median(rates), 3), "low": round(min(rates), 3), "high": max(rates)},
        "acceptance_rate": round(accepted / drafted, 4) if drafted else None,
        "mean_draft_n": round(drafted / rounds, 4) if rounds else 0.0,
        "bytes_per_token": round(_total(texts, "bytes_sent", "bytes_received") / tokens, 2) if tokens else 0.0,
        "identical": sum(
            text.ids == truth.ids for own in iterations for text, truth in zip(own, alone[0], strict=True)
        ),
    }


def _total(texts: list[BenchText], *names: str) -> float:
    return sum(float(text.report[name] or 0) for text in texts for name in names)


def _rate(texts: list[BenchText]) -> float:
    """Tokens per second of decoding, of texts that came one after the other."""
    rates = [(len(text.ids), float(text.report["tokens_per_second"] or 0)) for text in texts]
    seconds = sum(tokens / rate for tokens, rate in rates if rate)
    return round(sum(tokens for tokens, _ in rates) / seconds, 3) if seconds else 0.0
