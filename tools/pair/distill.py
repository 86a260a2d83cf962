"""Last phase: the target is frozen, the drafter learns to write the target's texts.

Acceptance is measured on the target's own text, so half of every batch is such text: the target
continues prompts from the training files, greedily and by sampling (on-policy distillation seen
from the verifier's side; compare Zhou et al. 2023, DistillSpec, arXiv:2310.08461). The other half
is the corpus, which keeps the drafter broad.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from pair import team
from pair.generate import continue_rows
from pair.model import Llama
from pair.optim import Optimiser
from pair.train import Batches, Plan, Progress, kl, rate, save, say


@dataclass(frozen=True, kw_only=True)
class Finish:
    """The settings of the last phase."""

    minutes: float = 9.0
    steps: int = 0
    own_minutes: float = 3.0
    own_batches: int = 0
    own_rows: int = 64
    prompt: int = 64
    length: int = 512
    rows: int = 12
    muon_lr: float = 0.01
    adam_lr: float = 0.002
    decay: float = 0.05
    choice_share: float = 0.3
    seed: int = 7
    compile: bool = False


class Distiller:
    """A frozen target, a drafter and the two sorts of text."""

    def __init__(
        self, target: Llama, drafter: Llama, files: list[list[int]], plan: Finish, out: Path
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.plan = plan
        self.out = out
        self.target.requires_grad_(False)
        self.optimiser = Optimiser(drafter, plan.muon_lr, plan.adam_lr, plan.decay)
        seed = plan.seed + 100 * team.rank()
        self.batches = Batches(files, seed)
        self.random = torch.Generator().manual_seed(seed + 1)
        self.own = torch.empty(0, plan.length, dtype=torch.long)
        self.loss = self._loss
        if plan.compile:
            self.loss = torch.compile(self._loss, dynamic=False)

    def write_own(self) -> None:
        """Let the target write rows of `length` ids, half of them greedily."""
        plan = self.plan
        begun = time.monotonic()
        heat = torch.zeros(plan.own_rows)
        heat[plan.own_rows // 2 :] = 0.8
        written: list[Tensor] = []
        count = plan.length - plan.prompt
        while True:
            minutes = (time.monotonic() - begun) / 60
            by_clock = not plan.own_batches and minutes < plan.own_minutes
            if len(written) >= plan.own_batches and not by_clock:
                break
            prompts = self.batches.next(plan.own_rows, plan.prompt)[:, : plan.prompt]
            written.append(continue_rows(self.target, prompts, count, heat, self.random))
            say(f"own text: {len(written)} batches of {plan.own_rows} x {plan.length} ids")
        self.own = torch.cat(written)

    def _loss(self, ids: Tensor) -> Tensor:
        """Return the disagreement in distribution and in the likeliest id; ids (B, T)."""
        with torch.no_grad():
            teacher = self.target(ids)
        student = self.drafter(ids)
        likeliest = teacher.argmax(dim=-1).flatten()
        choice = F.cross_entropy(student.flatten(0, 1), likeliest)
        share = self.plan.choice_share
        return (1 - share) * kl(teacher, student) + share * choice

    def _batch(self) -> Tensor:
        half = self.plan.rows // team.size() // 2
        picked = torch.randint(len(self.own), (half,), generator=self.random)
        corpus = self.batches.next(half, self.plan.length)[:, :-1]
        return torch.cat([self.own[picked], corpus])

    def run(self) -> None:
        """Train until the plan's end and save the finished pair."""
        self.write_own()
        plan = self.plan
        progress = Progress()
        clock = Plan(minutes=plan.minutes, steps=plan.steps, warmup_steps=20)
        last = time.monotonic()
        while progress.share(clock) < 1.0:
            loss = self.loss(self._batch())
            torch.autograd.backward(loss)
            self.optimiser.step(rate(progress, clock))
            now = time.monotonic()
            progress.seconds = team.agree(progress.seconds + now - last)
            progress.step += 1
            last = now
            if progress.step % 20 == 0:
                share = progress.share(clock)
                say(f"distil {progress.step} {share:.3f} {float(loss.detach()):.4f}")
        if team.rank() == 0:
            payload: dict[str, object] = {
                "target": self.target.state_dict(),
                "drafter": self.drafter.state_dict(),
                "distil_steps": progress.step,
                "own_rows": len(self.own) * team.size(),
            }
            save(self.out / "final.pt", payload)
