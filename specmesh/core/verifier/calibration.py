"""Steps that measure a target while it has nothing else to do."""

from collections import deque
from collections.abc import Sequence

from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.events import Span
from specmesh.core.kv_slots import KVSlots
from specmesh.core.session_params import TargetLimits

WIDTHS = (1, 2, 4, 8, 9, 16, 17, 25, 64, 128, 3, 5, 6, 7, 12, 33, 10, 11, 13, 14, 15, 20)
"""Rows of the steps.

The first are the widths beside which kernels change, up to a step with the most drafts. The others,
which lie between them, follow while there is time: a slow target has none left for them.

With 65 and 129 rows, edits of a padded F16 target on a CPU were 4.3 times as fast as without
drafts, without these two 3.1 times (bench/edits.py). 64 and 128 rows fill tiles of llama.cpp's: one
row more of SmolLM2 F16, after 1,000 ids, takes 20 and 9 % longer.
"""

REPEATS = 3
BUDGET = 2.0  # seconds of measured steps after which no other begins
QUIET = 0.5  # seconds without a session before the first step: a request at once waits for none
AGAIN_S = 60.0
"""Seconds until all steps are run again, if what they had shown was thrown away.

Else a target whose host was busy at first would never learn where its kernels change.
"""


class Calibration:
    """The steps of each width, one after the other, on a sequence that is empty before and after.

    Sessions need none of them, as their own steps are measured too: calibration only lets drafts
    be of the right number from the first round on.
    """

    def __init__(self, limits: TargetLimits, *, most: int, held: int = 0) -> None:
        """Begin with no step.

        most: rows of a step, at most.
        held: ids that the sequence holds before a measured step. A target that saves states has
            something to save then.
        """
        wanted: Sequence[int] = WIDTHS if limits.width is None else (limits.width,)
        most = min(most, limits.n_ctx - held)
        self._widths = [rows for rows in wanted if rows <= most]
        self._held = held
        self._ids: tuple[int, ...] = ()  # that the sequence of the next step holds
        self._not_before = 0.0
        self._failed = False
        self._begin()

    def _begin(self) -> None:
        """Plan all steps, from the first one on."""
        # The first step of all warms caches up and is not typical.
        self._left = deque(self._widths[:1] + self._widths * REPEATS)
        self._warm = False
        self._spent = 0.0
        self._rests_since: float | None = None

    def repeat(self, now: float) -> None:
        """Run all steps again after AGAIN_S, unless one has failed."""
        if not self._failed:
            self._begin()
            self._not_before = now + AGAIN_S

    @property
    def over(self) -> bool:
        """Return True if no other step begins."""
        return not self._left or self._spent > BUDGET

    @property
    def cells(self) -> int:
        """Return the cells that the next step fills, with those before it."""
        return self._held + self._left[0]

    def sequence(self, slots: KVSlots) -> int | None:
        """Return the sequence of the next step; None if there is none for it.

        To be asked while there are no sessions. One that came and went may have had the sequence of
        the step before. Then another one is begun.
        """
        seq = slots.holding(self._ids, self.cells)
        if seq is None and self._ids:
            self._ids = ()
            seq = slots.holding(self._ids, self.cells)
        return seq

    def disturbed(self) -> None:
        """Note that the target has something to do."""
        self._rests_since = None

    def begins_at(self, now: float) -> float:
        """Return when the next step may begin, if the target has nothing to do until then."""
        if self._rests_since is None:
            self._rests_since = now
        return max(self._rests_since + QUIET, self._not_before)

    def spans(self, seq: int) -> tuple[Span, ...]:
        """Return the next step, on an empty sequence or the one of the step before."""
        if len(self._ids) < self._held:
            return (Span(seq, 0, (0,) * self._held, logits=False),)
        return (Span(seq, self._held, (0,) * self._left[0], logits=True),)

    def ended(self, costs: StepCosts, seconds: float) -> bool:
        """Take the seconds of the step; return True if its sequence is to be emptied now."""
        if len(self._ids) < self._held:
            self._ids = (0,) * self._held
            return False
        self._ids = ()
        rows = self._left.popleft()
        if self._warm:
            self._spent += seconds
            costs.record_in_advance(rows, seconds)
        self._warm = True
        return True

    def end(self) -> None:
        """Begin no other step: one has failed."""
        self._failed = True
        self._left.clear()
