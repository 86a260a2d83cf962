"""Measures a live pair through its local socket: the same prompts, one way of generating after the other."""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import cast

from specmesh.bench.run import VARIANTS, Sample, Variant, sample
from specmesh.client import Client, Json
from specmesh.errors import Busy, EngineError

WARM_UP_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run: each prompt with each variant in each iteration, greedily, `max_tokens` tokens."""

    prompts: tuple[str, ...]
    iterations: int
    max_tokens: int
    variants: tuple[Variant, ...] = VARIANTS

    @property
    def texts(self) -> int:
        """Texts it takes."""
        return len(self.prompts) * self.iterations * len(self.variants)

    def body(self, prompt: int, variant: Variant) -> Json:
        """What is asked for."""
        return {
            "prompt": self.prompts[prompt],
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "draft_n": variant.draft_n,
            "cache_prompt": False,  # else whichever comes second finds its prompt in memory
        }

    def order(self, iteration: int, prompt: int) -> tuple[Variant, ...]:
        """The variants in this iteration's order: rotated, so that none always follows the same one."""
        shift = (iteration + prompt) % len(self.variants)
        return self.variants[shift:] + self.variants[:shift]


def has_drafter(snapshot: Json) -> bool:
    """Whether the daemon of these /stats has a drafter, or is one that has found its verifier.

    Raises Busy while it is loading.
    """
    if "loading" in snapshot:
        raise Busy("the daemon is still loading its model: try again in a moment")
    return bool(snapshot.get("verifier" if snapshot.get("role") == "drafter" else "peers"))


def measure(client: Client, plan: Plan, advance: Callable[[], None]) -> list[Sample]:
    """Run `plan`, one text at a time, calling `advance` after each; one of the first and of the last variant before,
    unmeasured.

    Raises what the daemon raises.
    """
    for variant in dict.fromkeys((plan.variants[0], plan.variants[-1])):
        _text(client, plan.body(0, variant) | {"max_tokens": min(plan.max_tokens, WARM_UP_TOKENS)})
    samples = []
    for iteration in range(plan.iterations):
        for number in range(len(plan.prompts)):
            for variant in plan.order(iteration, number):
                ids, seconds, report = _text(client, plan.body(number, variant))
                samples.append(sample(variant, number, iteration, ids, seconds, report))
                advance()
    return samples


def _text(client: Client, body: Json) -> tuple[list[int], float, Json]:
    """(ids, seconds to the last of them, report)."""
    ids = list[int]()
    report: Json | None = None
    begun = last = time.perf_counter()
    with closing(client.complete(body)) as chunks:
        for chunk in chunks:
            told = cast("Json", chunk["specmesh"])
            if "report" in told:
                report = cast("Json", told["report"])
            new = told.get("token_ids")
            if isinstance(new, list) and new:
                ids += new
                last = time.perf_counter()
    if report is None:
        raise EngineError("the daemon ended a text without its report: see its log")
    return ids, last - begun, report
