"""Which sessions share the next step of the target, and with what rows."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from specmesh.core import events as ev
from specmesh.core.verifier_session import VerifierSession


@dataclass(frozen=True, slots=True)
class Step:
    """One decode: parts by session id. `pure` says that it holds verification rows only, so its time teaches costs."""

    parts: tuple[tuple[int, ev.Prefill | ev.Verify], ...]

    @property
    def rows(self) -> int:
        """Rows of the whole step."""
        return sum(_rows(part) for _, part in self.parts)

    @property
    def context(self) -> int:
        """Ids that its sequences hold before it."""
        return sum(part.position for _, part in self.parts)

    @property
    def pure(self) -> bool:
        """Whether every part verifies."""
        return all(isinstance(part, ev.Verify) for _, part in self.parts)

    @property
    def drafts(self) -> bool:
        """Whether any part has drafts."""
        return any(isinstance(part, ev.Verify) and part.drafts for _, part in self.parts)

    def measured(self, seconds: float, width: int | None) -> tuple[int, float, int]:
        """What its time teaches: rows, seconds and context of one decode. With a constant width each part was one of
        its own, of so many rows."""
        if width is None:
            return self.rows, seconds, self.context
        return width, seconds / len(self.parts), self.context // len(self.parts)


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing to run before time `until` (None: before an event)."""

    until: float | None


class Scheduler:
    """Forms steps of at most `n_batch` rows.

    As soon as one session is ready, every session that could step joins with the drafts it has: a shared step is cheap
    for each, and waiting through the others' step would cost more than any draft brings. What room is left prefills,
    oldest session first; where others verify or wait only `prefill_rows` of it, so that no one's tokens stall.

    constant: a prompt is always cut at the same places, at multiples of `prefill_rows`, so that what other sessions do
    does not change how it is computed.
    """

    def __init__(self, n_batch: int, prefill_rows: int = 128, *, constant: bool = False) -> None:
        self._n_batch = n_batch
        self._prefill_rows = prefill_rows
        self._constant = constant

    def next_step(self, sessions: Mapping[int, VerifierSession], now: float) -> Step | Idle:
        """The next step over the unfinished `sessions`, or until when there is none."""
        plans = {key: session.plan(now) for key, session in sessions.items() if session.finished is None}
        waits = [plan.until for plan in plans.values() if isinstance(plan, ev.Wait)]
        if len(waits) == len(plans):
            return Idle(min(waits, default=None))
        verifying = any(isinstance(plan, ev.Verify) for plan in plans.values())
        parts: list[tuple[int, ev.Prefill | ev.Verify]] = []
        joining = [key for key, plan in plans.items() if verifying and not isinstance(plan, ev.Prefill)]
        rows = 0
        for others, key in zip(reversed(range(len(joining))), joining, strict=True):
            plan = plans[key]
            verify = plan if isinstance(plan, ev.Verify) else sessions[key].verify()
            room = self._n_batch - rows - others  # one row is everybody's
            if room > 0:
                parts.append((key, ev.Verify(verify.position, verify.last, verify.drafts[: room - 1])))
                rows += _rows(parts[-1][1])
        budget = self._n_batch - rows
        if not all(isinstance(plan, ev.Prefill) for plan in plans.values()):
            budget = min(budget, self._prefill_rows)
        for key, plan in plans.items():
            part = self._filling(plan, budget) if isinstance(plan, ev.Prefill) else None
            if part is not None:
                parts.append((key, part))
                budget -= len(part.ids)
        return Step(tuple(parts))

    def _filling(self, plan: ev.Prefill, budget: int) -> ev.Prefill | None:
        """As much of a prompt as there is room for; None for none."""
        if not self._constant:
            return replace(plan, ids=plan.ids[:budget]) if budget > 0 else None
        next_cut = self._prefill_rows - plan.position % self._prefill_rows
        whole = plan if plan.stepwise else replace(plan, ids=plan.ids[:next_cut])
        return whole if len(whole.ids) <= budget else None


def _rows(part: ev.Prefill | ev.Verify) -> int:
    return len(part.ids) if isinstance(part, ev.Prefill) else 1 + len(part.drafts)
