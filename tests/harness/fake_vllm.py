"""A vLLM server without vLLM: its batch, its scheduler and its calls of a proposer.

It does what a real one was seen to do:

- Requests have rows of a batch. When one ends, the newest row moves to its place.
- A prompt is read in parts, as many ids a step as there is budget for. It is in the batch as a
  whole from the beginning on, and its row gets no ids until it is read.
- When there are too few blocks of memory, the newest request loses its row and its memory. It comes
  back with the ids that it has, and reads them again.
- Drafts are verified against the target's own choice. A scheduler may cut them before.
- A request ends by an id, by its length, or because its client has left. The proposer is not told.
- An exception, a list that is too long, or an id beyond the vocabulary ends the server.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from specmesh.engines.sim import wait_until

Choose = Callable[[Sequence[int]], int]
"""Returns the id that the target chooses after these ids."""


@dataclass(eq=False, kw_only=True)
class Served:
    """A request. ids: its prompt, then its text. read: ids in the server's memory."""

    ids: list[int]
    n_prompt: int
    max_tokens: int
    ignore_eos: bool = False
    most_drafts: int | None = None
    read: int = 0
    drafts: list[int] = field(default_factory=list)
    over: bool = False

    @property
    def text(self) -> list[int]:
        """The ids after the prompt."""
        return self.ids[self.n_prompt :]


def config_of(drafts: int = 8, n_ctx: int = 2048, n_vocab: int = 256, **parallel: int) -> Any:
    """A `VllmConfig`, as far as a proposer looks at it."""
    return SimpleNamespace(
        model_config=SimpleNamespace(
            model="fake",
            served_model_name=None,
            tokenizer="fake",
            max_model_len=n_ctx,
            get_vocab_size=lambda: n_vocab,
        ),
        speculative_config=SimpleNamespace(method="custom_class", num_speculative_tokens=drafts),
        scheduler_config=SimpleNamespace(async_scheduling=False),
        parallel_config=SimpleNamespace(
            **{"tensor_parallel_size": 1, "rank": 0, "data_parallel_rank": 0, **parallel}
        ),
        device_config=SimpleNamespace(device_type="cpu"),
    )


class FakeVllm:
    """Serves requests by one target, and asks a proposer for drafts.

    drafted, accepted: drafts that were verified, and those of them that stood.
    preempted: how often a request has lost its row. steps: that were taken.
    """

    def __init__(
        self,
        proposer: Any,
        choose: Choose,
        config: Any,
        *,
        end_ids: Sequence[int] = (),
        max_rows: int = 64,
        budget: int = 10**9,
        cells: int = 10**9,
        step_s: float = 0.0,
    ) -> None:
        """Begin without requests.

        budget: ids of a step. cells: ids that memory has room for. step_s: seconds of a step.
        """
        self._proposer = proposer
        self._choose = choose
        self._config = config
        self._end_ids = frozenset(end_ids)
        self._max_rows = max_rows
        self._budget = budget
        self._cells = cells
        self._step_s = step_s
        self._waiting = deque[Served]()
        self.rows: list[Served] = []
        self.drafted = self.accepted = self.preempted = self.steps = 0
        n_ctx = config.model_config.max_model_len
        self._lengths = np.zeros(max_rows, np.int32)
        self._ids = np.zeros((max_rows, n_ctx), np.int32)

    def ask(self, prompt: Sequence[int], max_tokens: int, **options: Any) -> Served:
        """Let a request wait for a row."""
        request = Served(ids=list(prompt), n_prompt=len(prompt), max_tokens=max_tokens, **options)
        self._waiting.append(request)
        return request

    def leave(self, request: Served) -> None:
        """Let a client go."""
        request.over = True

    @property
    def busy(self) -> bool:
        """Return True while there are requests."""
        return bool(self._waiting or any(not row.over for row in self.rows))

    def run(self) -> None:
        """Take steps until all requests are over."""
        while self.busy:
            self.step()

    def step(self) -> None:
        """Take a step: read and verify, then ask the proposer."""
        self.steps += 1
        self._schedule()
        if not self.rows:
            return
        ends = time.perf_counter() + self._step_s
        budget = self._budget
        sampled: list[list[int]] = []
        for request in self.rows:
            new, used = self._advanced(request, budget)
            budget -= used
            sampled.append(new)
        for row, request in enumerate(self.rows):
            self._lengths[row] = len(request.ids)
            self._ids[row, : len(request.ids)] = request.ids
        wait_until(ends)
        self._take(self._propose(sampled), sampled)

    def _propose(self, sampled: list[list[int]]) -> list[list[int]]:
        return self._proposer.propose(
            sampled, self._lengths, self._ids, slot_mappings={"layer": None}
        )

    def _take(self, drafts: list[list[int]], sampled: list[list[int]]) -> None:
        most = self._config.speculative_config.num_speculative_tokens
        n_vocab = self._config.model_config.get_vocab_size()
        assert len(drafts) == len(self.rows)
        for request, given, new in zip(self.rows, drafts, sampled, strict=True):
            assert len(given) <= most
            assert all(0 <= draft < n_vocab for draft in given)
            request.drafts = given if new else []

    def _schedule(self) -> None:
        """Remove what is over, move the last rows to the gaps, and let others come."""
        waiting = [request for request in self._waiting if not request.over]
        self._waiting = deque(waiting)
        for row in reversed(range(len(self.rows))):
            if self.rows[row].over:
                last = self.rows.pop()
                if row < len(self.rows):
                    self.rows[row] = last
        while self.rows and sum(len(row.ids) for row in self.rows) > self._cells:
            if len(self.rows) == 1:
                break
            request = self.rows.pop()
            request.read = 0
            request.drafts = []
            self.preempted += 1
            self._waiting.appendleft(request)
        while self._waiting and len(self.rows) < self._max_rows:
            used = sum(len(row.ids) for row in self.rows)
            if self.rows and used + len(self._waiting[0].ids) > self._cells:
                break
            self.rows.append(self._waiting.popleft())

    def _advanced(self, request: Served, budget: int) -> tuple[list[int], int]:
        """Return the ids that a request gets in this step, and what it used of the budget."""
        if request.over:
            return [], 0
        missing = len(request.ids) - request.read
        if missing > 1 and missing > budget:
            request.read += budget
            return [], budget
        drafts = request.drafts[: max(budget - missing, 0)]
        if request.most_drafts is not None:
            drafts = drafts[: request.most_drafts]
        new = self._verified(request, drafts)
        request.ids += new
        request.read = len(request.ids) - 1
        request.drafts = []
        return new, missing + len(drafts)

    def _verified(self, request: Served, drafts: Sequence[int]) -> list[int]:
        """Return the drafts that stand, and one more id; end the request if it is over."""
        new: list[int] = []
        self.drafted += len(drafts)
        n_ctx = self._config.model_config.max_model_len
        for draft in [*drafts, None]:
            token = self._choose([*request.ids, *new])
            new.append(token)
            self.accepted += token == draft
            length = len(request.ids) + len(new)
            ended = token in self._end_ids and not request.ignore_eos
            if ended or length >= min(request.n_prompt + request.max_tokens, n_ctx - 1):
                request.over = True
            if request.over or token != draft:
                break
        return new
