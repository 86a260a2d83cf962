"""The target of a verifier, as its core sees it."""

from dataclasses import dataclass, field

from specmesh.core.draft_length.speculation import Speculations
from specmesh.core.draft_length.step_costs import StepCosts
from specmesh.core.kv_slots import KVSlots
from specmesh.core.session_params import TargetLimits
from specmesh.core.verifier.calibration import Calibration
from specmesh.core.verifier.earlier_outputs import EarlierOutputs
from specmesh.core.verifier.local_drafting import LocalDrafting
from specmesh.core.verifier.scheduler import PREFILL_ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The limits, the sequences and the costs of a target.

    costs: seconds of its steps, which teach them.
    n_batch: most rows of a step, at least `max_sessions`.
    guests: sessions with short texts, beside `max_sessions` others.
    prefill_rows: rows for prompts in a step in which other sessions verify.
    speculations: by source and number of sessions.
    earlier: outputs of accounts, for drafts of their later texts; None keeps none.
    calibration: steps that measure it while it has nothing else to do; None for none.
    local: drafts in this process, between its steps; None for none.
    """

    limits: TargetLimits
    costs: StepCosts
    slots: KVSlots
    n_batch: int
    max_sessions: int
    guests: int = 0
    prefill_rows: int = PREFILL_ROWS
    speculations: Speculations = field(default_factory=Speculations)
    earlier: EarlierOutputs | None = None
    calibration: Calibration | None = None
    local: LocalDrafting | None = None
