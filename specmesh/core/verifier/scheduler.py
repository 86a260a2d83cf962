"""The scheduler: which sessions share the target's next step, and with how many rows."""

from collections.abc import Collection, Mapping, Sequence
from math import ceil, inf
from typing import NamedTuple

from specmesh.core import events as ev
from specmesh.core.draft_length.bids import allocate_drafts
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.verifier.session_context import SessionContext

Part = ev.Prefill | ev.Verify
"""What one session does in a step."""

PREFILL_ROWS = 128
"""Rows for prompts in a step in which others verify. If the same ids must have the same bits, it
holds for every step.
"""


class Batch(NamedTuple):
    """The parts of one step, by session id.

    rows: of all parts. context: ids that the sequences hold before the step.
    verified: rows of parts that verify.
    pure: all parts do. has_drafts: some of them have drafts.
    """

    parts: tuple[tuple[int, Part], ...]
    rows: int
    context: int
    verified: int
    pure: bool
    has_drafts: bool

    @classmethod
    def of(cls, parts: tuple[tuple[int, Part], ...]) -> "Batch":
        """Return the batch of these parts."""
        rows = 0
        context = 0
        verified = 0
        pure = True
        has_drafts = False
        for _, part in parts:
            context += part.position
            if isinstance(part, ev.Verify):
                verified += 1 + len(part.drafts)
                has_drafts = has_drafts or bool(part.drafts)
            else:
                rows += part.rows
                pure = False
        return cls(
            parts=parts,
            rows=rows + verified,
            context=context,
            verified=verified,
            pure=pure,
            has_drafts=has_drafts,
        )


class Scheduler:
    """Forms steps of at most `n_batch` rows.

    - As soon as one session is ready, all sessions that can step join with a row of their own.
      Nobody waits for another session's drafts: that would cost more than a draft brings.
    - If several join, as many drafts come as raise the tokens per second of all, by `costs`.
    - Prompts get rows before drafts do. If others verify or wait, prompts get only `prefill_rows`,
      times the number of prompts for each of the others.
    - Prompts take turns of `n_batch` rows, in the order in which they came. So each goes on
      whatever comes, and those that need more than a turn advance alike.
    - Every other step begins with the prompt that has the fewest ids left, if it needs no more than
      a turn. So short ones need not wait for the turns of long ones.
    - A prompt may bound the rows for all prompts, to get them in short steps.
    - With `constant` rows cost the same whatever they hold, so all drafts come. Prompts are then
      cut at multiples of `prefill_rows` only: other sessions do not change how a prompt is read.
    """

    def __init__(
        self, n_batch: int, costs: StepCosts, prefill_rows: int, *, constant: bool = False
    ) -> None:
        self._n_batch = n_batch
        self._costs = costs
        self._prefill_rows = prefill_rows
        self._constant = constant
        self._shortest_first = False
        self._turns: dict[int, int] = {}  # by prompt, rows left of its turn; the next one first

    def next_batch(self, sessions: Mapping[int, SessionContext], now: float) -> Batch | ev.Wait:
        """Return the next step of the unfinished sessions, or until when there is none.

        Wait until infinity if none of them has anything to do.
        """
        if len(sessions) == 1:
            [(key, context)] = sessions.items()
            plan = context.session.plan(now, lone=True)
            if isinstance(plan, ev.Wait):
                return plan
            if isinstance(plan, ev.Verify) and len(plan.drafts) < self._n_batch:
                return Batch.of(((key, plan),))
        prompts: dict[int, ev.Prefill] = {}
        others: dict[int, ev.Verify | ev.Wait] = {}
        for key, context in sessions.items():
            if context.session.finished is not None:
                continue
            plan = context.session.plan(now)
            if isinstance(plan, ev.Prefill):
                prompts[key] = plan
            else:
                others[key] = plan
        waits = [plan.until for plan in others.values() if isinstance(plan, ev.Wait)]
        if not prompts and len(waits) == len(others):
            return ev.Wait(min(waits, default=inf))
        joining: dict[int, ev.Verify] = {}
        if len(waits) < len(others):
            joining = self._joining(others, sessions)
        room = self._n_batch - len(joining)
        most = min(room, self._prompt_rows(prompts.values(), len(others)))
        prefills = self._prefills(prompts, most)
        for _, part in prefills:
            room -= part.rows
        return Batch.of((*self._with_drafts(joining, sessions, room), *prefills))

    def _prompt_rows(self, prompts: Collection[ev.Prefill], others: int) -> int:
        """Return the most rows of a step for prompts, beside so many other sessions."""
        rows = self._n_batch
        if others:
            rows = self._prefill_rows * ceil(len(prompts) / others)
        for prompt in prompts:
            if prompt.most_rows is not None:
                rows = min(rows, prompt.most_rows)
        return rows

    def _joining(
        self,
        plans: Mapping[int, ev.Verify | ev.Wait],
        sessions: Mapping[int, SessionContext],
    ) -> dict[int, ev.Verify]:
        """Return the steps of all sessions that can step; those that would wait step now."""
        joining: dict[int, ev.Verify] = {}
        for key, plan in plans.items():
            if isinstance(plan, ev.Verify):
                joining[key] = plan
            else:
                joining[key] = sessions[key].session.verify()
        return joining

    def _with_drafts(
        self, joining: Mapping[int, ev.Verify], sessions: Mapping[int, SessionContext], room: int
    ) -> list[tuple[int, Part]]:
        """Return each session's step with as many drafts as fit in `room` rows and pay."""
        counts = self._draft_counts(joining, sessions, room)
        parts: list[tuple[int, Part]] = []
        for (key, verify), count in zip(joining.items(), counts, strict=True):
            if count < len(verify.drafts):
                verify = verify._replace(drafts=verify.drafts[:count])  # noqa: PLW2901 - cut
            parts.append((key, verify))
        return parts

    def _draft_counts(
        self, joining: Mapping[int, ev.Verify], sessions: Mapping[int, SessionContext], room: int
    ) -> Sequence[int]:
        """Return how many drafts each session brings: all that fit, or as many of them as pay."""
        verifies = joining.values()
        alone = len(joining) <= 1
        if alone or self._constant or not any(verify.drafts for verify in verifies):
            counts: list[int] = []
            for verify in verifies:
                counts.append(min(len(verify.drafts), room))
                room -= counts[-1]
            return counts
        context = sum(verify.position for verify in verifies)
        pause = self._costs.pause

        def seconds(rows: int) -> float:
            return self._costs.seconds(rows, context) + pause

        bids = [sessions[key].session.bid(verify) for key, verify in joining.items()]
        return allocate_drafts(bids, room, seconds)

    def _prefills(
        self, prompts: Mapping[int, ev.Prefill], budget: int
    ) -> list[tuple[int, ev.Prefill]]:
        """Return parts of prompts of at most `budget` rows.

        A prompt that would have to be cut elsewhere than where it always is waits.
        """
        parts: list[tuple[int, ev.Prefill]] = []
        for key in self._in_turn(prompts):
            plan = prompts[key]
            most = budget
            if self._constant and plan.stepwise:
                most = len(plan.ids)
            elif self._constant:
                most = self._prefill_rows - plan.position % self._prefill_rows
            ids = tuple(plan.ids[:most])
            if 0 < len(ids) <= budget:
                part = plan._replace(ids=ids)
                if len(ids) < len(plan.ids) or part.rows > budget:
                    part = part._replace(last=None)
                parts.append((key, part))
                budget -= part.rows
                self._took_turn(key, part.rows)
        return parts

    def _in_turn(self, prompts: Mapping[int, ev.Prefill]) -> list[int]:
        """Return the prompts in the order in which they get rows of a step."""
        for key in list(self._turns):
            if key not in prompts:
                del self._turns[key]
        for key in prompts:
            self._turns.setdefault(key, self._n_batch)
        order = list(self._turns)
        self._shortest_first = not self._shortest_first and not self._constant
        if self._shortest_first and order:
            shortest = min(order, key=lambda key: len(prompts[key].ids))
            if len(prompts[shortest].ids) <= self._n_batch:
                order.remove(shortest)
                order.insert(0, shortest)
        return order

    def _took_turn(self, key: int, rows: int) -> None:
        """Note that a prompt gets rows; one whose turn is over waits for those of the others.

        Rows beyond its turn count for its next one.
        """
        left = self._turns[key] - rows
        if left <= 0:
            del self._turns[key]
            left += self._n_batch
        self._turns[key] = left
