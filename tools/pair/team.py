"""Worker processes that share one training step.

One thread a process beats several threads in one: matrices this small leave threads waiting for
each other, and a process that loses its core to other work only loses that core.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn


def rank() -> int:
    """Return this worker's number; 0 for a single one."""
    return dist.get_rank() if dist.is_initialized() else 0


def size() -> int:
    """Return the number of workers."""
    return dist.get_world_size() if dist.is_initialized() else 1


def add_up(tensor: Tensor) -> Tensor:
    """Sum a tensor over all workers, in place."""
    if size() > 1:
        dist.all_reduce(tensor)
    return tensor


def agree(value: float) -> float:
    """Return the first worker's value, so that all workers follow one clock."""
    held = torch.tensor([value], dtype=torch.float64)
    if size() > 1:
        dist.broadcast(held, 0)
    return float(held)


def mean_gradients(parameters: list[nn.Parameter]) -> None:
    """Replace every gradient by its mean over the workers, in one exchange."""
    if size() == 1:
        return
    grads = list[Tensor]()
    for parameter in parameters:
        if parameter.grad is not None:
            grads.append(parameter.grad)
    flat = torch.cat(list(map(torch.flatten, grads)))
    mean = add_up(flat) / size()
    parts = torch.split(mean, list(map(torch.numel, grads)))
    for grad, part in zip(grads, parts, strict=True):
        grad.copy_(part.view_as(grad))


def _enter(index: int, count: int, meeting: str, work: Callable[[], None]) -> None:
    torch.set_num_threads(1)
    if count > 1:
        dist.init_process_group("gloo", f"file://{meeting}", rank=index, world_size=count)
    work()
    if count > 1:
        dist.destroy_process_group()


def start(count: int, work: Callable[[], None]) -> None:
    """Run `work` in `count` processes that can exchange tensors."""
    if count == 1:
        _enter(0, 1, "", work)
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(Path(folder) / "meeting")
        spawn(_enter, args=(count, meeting, work), nprocs=count)  # type: ignore[no-untyped-call]
