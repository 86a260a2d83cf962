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
    """Return roughly the nearest semi-orthogonal matrices of a stack (N, rows, columns)."""
    a, b, c = _COEFFICIENTS
    tall = stack.shape[1] > stack.shape[2]
    x: Tensor = stack.transpose(1, 2) if tall else stack
    length = x.norm(dim=(1, 2), keepdim=True) + 1e-7
    x = x / length
    for _ in range(steps):
        gram = x @ x.transpose(1, 2)
        polynomial = b * gram + c * gram @ gram
        x = a * x + polynomial @ x
    return x.transpose(1, 2) if tall else x


def shared_orthogonalise(stack: Tensor) -> Tensor:
    """Return `orthogonalise` of a stack, of which each worker does its share."""
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
        self.buffers: dict[tuple[int, ...], Tensor] = {}
        for size, group in self.groups.items():
            self.buffers[size] = torch.zeros(len(group), *size)

    @torch.no_grad()
    def step(self, scale: float) -> None:
        """Update once at `scale` times the full learning rate."""
        lr = self.lr * scale
        for size, group in self.groups.items():
            grads = torch.stack([p.grad for p in group if p.grad is not None])
            buffer = self.buffers[size]
            buffer.lerp_(grads, 1 - self.momentum)
            update = shared_orthogonalise(grads.lerp(buffer, self.momentum))
            rows, columns = size
            update *= max(1.0, rows / columns) ** 0.5
            for matrix, change in zip(group, update, strict=True):
                matrix.mul_(1 - lr * self.decay)
                matrix.add_(change, alpha=-lr)


class Optimiser:
    """Muon and AdamW under one learning-rate scale."""

    def __init__(self, model: nn.Module, muon_lr: float, adam_lr: float, decay: float) -> None:
        matrices: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, parameter in model.named_parameters():
            is_matrix = parameter.ndim == 2 and "embed" not in name
            if is_matrix:
                matrices.append(parameter)
            else:
                others.append(parameter)
        self.muon = Muon(matrices, muon_lr, decay)
        self.adam_lr = adam_lr
        self.adam = torch.optim.AdamW(others, lr=adam_lr, betas=(0.9, 0.95), weight_decay=0.0)
        self.parameters = list(model.parameters())

    def step(self, scale: float) -> None:
        """Average the gradients over workers, clip them, update and clear them."""
        team.mean_gradients(self.parameters)
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for group in self.adam.param_groups:
            group["lr"] = self.adam_lr * scale
        self.adam.step()
        self.muon.step(scale)
        for p in self.parameters:
            p.grad = None

    def state(self) -> dict[str, object]:
        """Return the state for a checkpoint."""
        return {"muon": self.muon.buffers, "adam": self.adam.state_dict()}

    def load(self, state: dict[str, object]) -> None:
        """Go on from the result of `state`."""
        self.muon.buffers = state["muon"]  # type: ignore[assignment]
        self.adam.load_state_dict(state["adam"])  # type: ignore[arg-type]
