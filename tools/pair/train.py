"""Co-training: the target learns the text, the drafter learns the target, in one loop.

The target's forward pass is already paid for, so distilling the drafter beside it (Hinton et al.
2015, arXiv:1503.02531, forward KL at temperature 1) costs only the drafter's own passes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from pair import team
from pair.model import Llama, drafter_shape, target_shape
from pair.optim import Optimiser


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The settings of the training."""

    minutes: float = 60.0
    steps: int = 0
    tokens_per_step: int = 6144
    micro_tokens: int = 3072
    short: int = 512
    long: int = 1024
    long_from: float = 0.7
    warmup_steps: int = 40
    muon_lr: float = 0.02
    adam_lr: float = 0.004
    decay: float = 0.05
    hard_share: float = 0.1
    seed: int = 1
    save_minutes: float = 5.0
    compile: bool = False


class Batches:
    """Endless shuffled epochs over whole files, cut into rows of the length asked for."""

    def __init__(self, files: list[list[int]], seed: int) -> None:
        self.files = [torch.tensor(ids) for ids in files]
        self.random = torch.Generator().manual_seed(seed)
        self.length = 0
        self.epochs = 0.0
        self.total = sum(map(len, files))
        self.rows: Iterator[Tensor] = iter(())

    def _epoch(self, length: int) -> Iterator[Tensor]:
        order = torch.randperm(len(self.files), generator=self.random).tolist()
        files = [self.files[number] for number in order]
        ids = torch.cat(files)
        # A random first cut, so that every epoch cuts the files at other places.
        offset = int(torch.randint(length, (1,), generator=self.random))
        count = (len(ids) - offset - 1) // length
        rows = torch.randperm(count, generator=self.random).tolist()
        for row in rows:
            at = offset + row * length
            yield ids[at : at + length + 1]

    def next(self, rows: int, length: int) -> Tensor:
        """Return ids (rows, length + 1): inputs and, shifted by one, their targets."""
        if length != self.length:
            self.length = length
            self.rows = self._epoch(length)
        picked: list[Tensor] = []
        while len(picked) < rows:
            row = next(self.rows, None)
            if row is None:
                self.rows = self._epoch(length)
            else:
                picked.append(row)
        self.epochs += rows * length / self.total
        return torch.stack(picked)


@dataclass
class Progress:
    """The state of the training in a checkpoint, without weights."""

    step: int = 0
    seconds: float = 0.0
    tokens: int = 0

    def share(self, plan: Plan) -> float:
        """Return the share of the run that is over: by steps if given, otherwise by the clock."""
        done = self.seconds / (60 * plan.minutes)
        if plan.steps:
            done = self.step / plan.steps
        return min(1.0, done)


def rate(progress: Progress, plan: Plan) -> float:
    """Return the learning-rate scale: a short rise, a plateau, then straight down to zero."""
    rise = min(1.0, (progress.step + 1) / plan.warmup_steps)
    fall = min(1.0, (1.0 - progress.share(plan)) / 0.8)
    return rise * fall


def kl(teacher: Tensor, student: Tensor) -> Tensor:
    """Return the mean KL(teacher || student) in nats over positions; logits (B, T, V)."""
    wanted = F.log_softmax(teacher, dim=-1).flatten(0, 1)
    guessed = F.log_softmax(student, dim=-1).flatten(0, 1)
    return F.kl_div(guessed, wanted, reduction="batchmean", log_target=True)


def nll(logits: Tensor, gold: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats."""
    return F.cross_entropy(logits.flatten(0, 1), gold.flatten())


@torch.no_grad()
def held_out_loss(model: Llama, files: list[list[int]], length: int = 512) -> float:
    """Return nats per token of held-out files, in rows of `length` like the training text."""
    ids = torch.tensor(list(chain.from_iterable(files)))
    count = (len(ids) - 1) // length
    rows: list[Tensor] = []
    for start in range(0, count * length, length):
        rows.append(ids[start : start + length + 1])
    total = 0.0
    for first in range(0, count, 8):
        block = torch.stack(rows[first : first + 8])
        loss = nll(model(block[:, :-1]), block[:, 1:])
        total += float(loss) * len(block)
    return total / count


def save(path: Path, payload: dict[str, object]) -> None:
    """Write a checkpoint so that a reader never sees half of one."""
    temporary = path.with_suffix(".tmp")
    torch.save(payload, temporary)
    temporary.replace(path)


def say(text: str) -> None:
    """Print a line with the time, once for all workers."""
    if team.rank() == 0:
        print(time.strftime("%H:%M:%S"), text, flush=True)


class Trainer:
    """Both models, their optimisers and the loop."""

    def __init__(
        self, vocab: int, train: list[list[int]], held: list[list[int]], plan: Plan, out: Path
    ) -> None:
        torch.manual_seed(plan.seed)
        self.plan = plan
        self.out = out
        self.held = held
        self.target = Llama(target_shape(vocab))
        self.drafter = Llama(drafter_shape(vocab))
        self.optimisers: list[Optimiser] = []
        for model in (self.target, self.drafter):
            self.optimisers.append(Optimiser(model, plan.muon_lr, plan.adam_lr, plan.decay))
        self.batches = Batches(train, plan.seed)
        self.progress = Progress()
        self.losses = self._losses
        if plan.compile:
            self.losses = torch.compile(self._losses, dynamic=False)

    def _losses(self, inputs: Tensor, gold: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.target(inputs)
        guess = self.drafter(inputs)
        soft = kl(logits.detach(), guess)
        hard = nll(guess, gold)
        share = self.plan.hard_share
        mixed = (1 - share) * soft + share * hard
        return nll(logits, gold), mixed

    def step(self) -> tuple[float, float]:
        """Update both models once, by a gradient gathered over cache-sized pieces."""
        plan = self.plan
        length = plan.short
        if self.progress.share(plan) >= plan.long_from:
            length = plan.long
        block = self.batches.next(plan.tokens_per_step // length, length)
        mine = block[team.rank() :: team.size()]
        rows = max(1, plan.micro_tokens // length)
        pieces = torch.split(mine, rows)
        total = [0.0, 0.0]
        for piece in pieces:
            first, second = self.losses(piece[:, :-1], piece[:, 1:])
            torch.autograd.backward((first + second) / len(pieces))
            total = [total[0] + float(first.detach()), total[1] + float(second.detach())]
        scale = rate(self.progress, plan)
        for optimiser in self.optimisers:
            optimiser.step(scale)
        self.progress.step += 1
        self.progress.tokens += plan.tokens_per_step
        return total[0] / len(pieces), total[1] / len(pieces)

    def checkpoint(self) -> None:
        """Save everything that `resume` and the export need."""
        payload: dict[str, object] = {
            "target": self.target.state_dict(),
            "drafter": self.drafter.state_dict(),
            "optimisers": [o.state() for o in self.optimisers],
            "progress": asdict(self.progress),
            "plan": asdict(self.plan),
        }
        save(self.out / "cotrain.pt", payload)

    def resume(self) -> None:
        """Go on from the last checkpoint; the order of batches starts anew."""
        state = torch.load(self.out / "cotrain.pt", weights_only=True)
        self.target.load_state_dict(state["target"])
        self.drafter.load_state_dict(state["drafter"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load(saved)
        self.progress = Progress(**state["progress"])
        self.batches.random.manual_seed(self.plan.seed + self.progress.step)

    def run(self) -> None:
        """Train until the plan's end, with a checkpoint now and then."""
        last = time.monotonic()
        saved = self.progress.seconds
        while self.progress.share(self.plan) < 1.0:
            first, second = self.step()
            now = time.monotonic()
            self.progress.seconds = team.agree(self.progress.seconds + now - last)
            last = now
            if self.progress.step % 10 == 0:
                self._report(first, second)
            if self.progress.seconds - saved > 60 * self.plan.save_minutes:
                saved = self.progress.seconds
                self._keep()
        self._keep()

    def _keep(self) -> None:
        if team.rank() == 0:
            self.checkpoint()
            self._evaluate()

    def _report(self, first: float, second: float) -> None:
        done = self.progress
        share = done.share(self.plan)
        rate = done.tokens / done.seconds
        place = f"step {done.step} {share:.3f} epoch {self.batches.epochs:.2f}"
        say(f"{place} target {first:.3f} drafter {second:.3f} {rate:.0f} tok/s")

    def _evaluate(self) -> None:
        some = self.held[::4]  # a glance: the report measures all of them
        target = held_out_loss(self.target, some)
        drafter = held_out_loss(self.drafter, some)
        say(f"held-out target {target:.4f} drafter {drafter:.4f}")
