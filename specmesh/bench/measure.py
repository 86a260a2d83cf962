"""Measures a live pair through its local socket: the same prompts, one way of generating after the other."""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import cast

from specmesh.bench.run import ADAPTIVE, ALONE, VARIANTS, Sample, Variant, sample
from specmesh.client import Client, Json
from specmesh.errors import Busy, EngineError

WARM_UP_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run: each prompt with each variant in each iteration, `max_tokens` tokens, greedily."""

    prompts: tuple[str, ...]
    iterations: int
    max_tokens: int
    variants: tuple[Variant, ...] = VARIANTS

    @property
    def texts(self) -> int:
        """Texts it takes."""
        return len(self.prompts) * self.iterations * len(self.variants)

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
    """Run `plan`, one text at a time, calling `advance` after each; one of alone and adaptive before, unmeasured.

    Raises what the daemon raises.
    """
    for variant in plan.variants:
        if variant in {ALONE, ADAPTIVE}:
            _text(client, plan.prompts[0], variant, min(plan.max_tokens, WARM_UP_TOKENS))
    samples = []
    for iteration in range(plan.iterations):
        for number, prompt in enumerate(plan.prompts):
            for variant in plan.order(iteration, number):
                ids, seconds, report = _text(client, prompt, variant, plan.max_tokens)
                samples.append(sample(variant, number, iteration, ids, seconds, report))
                advance()
    return samples


def _text(client: Client, prompt: str, variant: Variant, max_tokens: int) -> tuple[list[int], float, Json]:
    """(ids, seconds to the last of them, report)."""
    body: Json = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "draft_n": variant.draft_n}
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
