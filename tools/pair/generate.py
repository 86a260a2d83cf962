"""Batched text from the torch models, for training the drafter on the target's own text."""

from __future__ import annotations

import torch
from torch import Tensor

from pair.model import Llama


def choose(logits: Tensor, temperature: Tensor, random: torch.Generator) -> Tensor:
    """Return the next ids (B,) for logits (B, V).

    Rows of temperature 0 take the most likely id. Sampling is by the exponential race: argmin of
    noise / p picks id i with probability p[i].
    """
    heat = temperature.clamp(min=0.05)[:, None]
    noise = torch.empty_like(logits).exponential_(generator=random).clamp(min=1e-10)
    race = torch.log_softmax(logits / heat, dim=-1) - noise.log()
    drawn = race.argmax(dim=-1)
    likeliest = logits.argmax(dim=-1)
    return torch.where(temperature > 0, drawn, likeliest)


@torch.no_grad()
def continue_rows(
    model: Llama, prompts: Tensor, count: int, temperature: Tensor, random: torch.Generator
) -> Tensor:
    """Return prompts (B, T) with `count` more ids in each row: (B, T + count)."""
    rows, start = prompts.shape
    end = start + count
    cache = model.new_cache(rows, end)
    out = [prompts]
    logits = model(prompts, cache, 0)[:, -1]
    for at in range(start, end):
        ids = choose(logits, temperature, random)
        picked = ids[:, None]
        out.append(picked)
        if at + 1 < end:
            logits = model(picked, cache, at)[:, -1]
    return torch.cat(out, dim=1)
