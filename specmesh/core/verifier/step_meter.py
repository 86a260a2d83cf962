"""What each step of the target shows: its costs, the pause before it, and whether drafts pay."""

from dataclasses import dataclass

from specmesh.core.draft_length.gate import SpeculationGate, StepOutcome
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.verifier.scheduler import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDrafts:
    """The drafts of one step, over its sessions whose draft_n adapts.

    tokens: committed by the step. seconds_alone: of a step without drafts; 0 while unknown.
    drafting: drafts were asked for. has_drafts: it verified some.
    has_exact: some were of a source whose drafts are always accepted.
    """

    tokens: int
    seconds_alone: float
    drafting: bool
    has_drafts: bool
    has_exact: bool


class StepMeter:
    """Records one step after the other, in the order `begun`, `ended`, `compare`.

    costs: learn the pauses and, unless `begun` names others, the seconds of steps.
    width: rows of every step, if constant.
    """

    def __init__(self, costs: StepCosts, width: int | None) -> None:
        self._costs = costs
        self._width = width
        self._current = costs  # of the step that runs
        self._last_ended: float | None = None  # unless there was no session since
        self._waited = False  # for drafts, before the step that runs
        self._spent: float | None = None  # from the end of the step before to the newest end

    def idle(self) -> None:
        """Note that there is no session: idle time is no pause."""
        self._last_ended = None

    def begun(self, costs: StepCosts, *, waited: bool) -> None:
        """Note that a step begins, which `costs` learn from."""
        self._current = costs
        self._waited = waited

    def ended(self, batch: Batch, started: float, ended: float, *, cut: bool) -> None:
        """Record a step.

        cut: sequences were cut before it. Some models then decode ids again: drafts cost that.
        """
        before = self._last_ended
        self._last_ended = ended
        self._spent = None
        if before is not None:
            self._spent = ended - before
            if not self._waited:
                self._costs.record_pause(started - before)
        if not batch.pure or (cut and not batch.has_drafts):
            return
        rows = batch.rows
        decodes = 1
        if self._width is not None:  # then each part is a decode of its own
            rows = self._width
            decodes = len(batch.parts)
        self._current.record(rows, (ended - started) / decodes, context=batch.context // decodes)

    def compare(self, batch: Batch, drafts: StepDrafts, gate: SpeculationGate) -> None:
        """Let a gate compare the newest step with those without drafts."""
        if not batch.pure or self._spent is None or (gate.open and not drafts.drafting):
            return
        sessions = len(batch.parts)
        if sessions == 1 and drafts.has_exact:
            return  # they make its steps faster, whoever drafts
        alone = drafts.seconds_alone
        outcome = StepOutcome(
            sessions=sessions,
            tokens=drafts.tokens,
            seconds=self._spent,
            drafting=drafts.drafting,
            has_drafts=drafts.has_drafts,
            rate_alone=1 / alone if alone else 0.0,
            shared_host=self._costs.shared,
        )
        gate.stepped(outcome)
