"""Optimisers: Muon for the matrices inside the blocks, AdamW for the embedding and the gains.

Muon (K. Jordan and others, 2024, https://kellerjordan.github.io/posts/muon/) replaces a matrix's
momentum by the nearest semi-orthogonal matrix, found by a few Newton-Schulz steps. On data this
scarce it reaches a given loss in far fewer tokens than AdamW alone.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pair import team

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # quintic of the post above


def orthogonalise(stack: Tensor, steps: int = 5) -> Tensor:
    """Nearest semi-orthogonal matrices, roughly, of a stack (N, rows, columns)."""
    a, b, c = _COEFFICIENTS
    tall = stack.shape[1] > stack.shape[2]
    x: Tensor = stack.transpose(1, 2) if tall else stack
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.transpose(1, 2) if tall else x


def shared_orthogonalise(stack: Tensor) -> Tensor:
    """`orthogonalise`, each worker doing its share of the stack."""
    if team.size() == 1:
        return orthogonalise(stack)
    out = torch.zeros_like(stack)
    mine = slice(team.rank(), None, team.size())
    if len(stack[mine]):
        out[mine] = orthogonalise(stack[mine])
    return team.add_up(out)


class Muon:
    """Muon over matrices grouped by shape, so that each group is one batched multiplication."""

    def __init__(self, matrices: list[nn.Parameter], lr: float, decay: float) -> None:
        self.lr = lr
        self.decay = decay
        self.momentum = 0.95
        self.groups: dict[tuple[int, ...], list[nn.Parameter]] = {}
        for matrix in matrices:
            self.groups.setdefault(tuple(matrix.shape), []).append(matrix)
        self.buffers = {size: torch.zeros(len(group), *size) for size, group in self.groups.items()}

    @torch.no_grad()
    def step(self, scale: float) -> None:
        """One update at `scale` times the full learning rate."""
        lr = self.lr * scale
        for size, group in self.groups.items():
            grads = torch.stack([p.grad for p in group if p.grad is not None])
            buffer = self.buffers[size]
            buffer.lerp_(grads, 1 - self.momentum)
            update = shared_orthogonalise(grads.lerp(buffer, self.momentum))
            update *= max(1.0, size[0] / size[1]) ** 0.5
            for matrix, change in zip(group, update, strict=True):
                matrix.mul_(1 - lr * self.decay).add_(change, alpha=-lr)


class Optimiser:
    """Muon and AdamW under one learning-rate scale."""

    def __init__(self, model: nn.Module, muon_lr: float, adam_lr: float, decay: float) -> None:
        named = list(model.named_parameters())
        matrices = [p for n, p in named if p.ndim == 2 and "embed" not in n]
        others = [p for n, p in named if p.ndim != 2 or "embed" in n]
        self.muon = Muon(matrices, muon_lr, decay)
        self.adam_lr = adam_lr
        self.adam = torch.optim.AdamW(others, lr=adam_lr, betas=(0.9, 0.95), weight_decay=0.0)
        self.parameters = [p for _, p in named]

    def step(self, scale: float) -> None:
        """Averages over workers, clips, updates and clears the gradients."""
        team.mean_gradients(self.parameters)
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for group in self.adam.param_groups:
            group["lr"] = self.adam_lr * scale
        self.adam.step()
        self.muon.step(scale)
        for p in self.parameters:
            p.grad = None

    def state(self) -> dict[str, object]:
        """What a checkpoint needs to go on."""
        return {"muon": self.muon.buffers, "adam": self.adam.state_dict()}

    def load(self, state: dict[str, object]) -> None:
        """Takes over what `state` gave."""
        self.muon.buffers = state["muon"]  # type: ignore[assignment]
        self.adam.load_state_dict(state["adam"])  # type: ignore[arg-type]
