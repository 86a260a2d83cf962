"""Sources of drafts: what proposes the drafts of a step.

`SourceChoice` asks the sources of a session, and each may continue the chain of those before it. So
the drafts of one step may come from several sources. What a source proposes changes how soon a text
comes, never the text: the target verifies every draft.

To add a source, write its class in a file of its own and name it in `session_sources.py`.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from specmesh.core.draft_length.controller import DraftLengthController
from specmesh.core.draft_length.local_estimates import LocalEstimates
from specmesh.core.prefix import Prefix
from specmesh.core.rounds import Round
from specmesh.core.sampling.constraint import Constraint
from specmesh.core.session_params import SessionParams, TargetLimits
from specmesh.core.statistics.counters import RoundCounts
from specmesh.core.verifier.earlier_outputs import AccountOutputs
from specmesh.core.verifier.predicted_text import PredictedText


class DraftSource(Protocol):
    """Proposes drafts after the committed prefix of one session."""

    name: str
    """Its name in statistics, metrics and reports."""

    exact: bool
    """Its drafts are accepted for certain. They are not counted as speculation."""

    copies: bool
    """Its drafts repeat known text, so that a step may have more of them."""

    def propose(self, proposed: Sequence[int], limit: int) -> Sequence[int]:
        """Return drafts that continue the prefix and the drafts `proposed`, at most `limit` ids.

        limit: the room that the step has left, by the target, the client's draft_n and the drafts
        `proposed`; it may be 0.
        """
        ...

    def acceptance(self, drafts: int) -> Sequence[float]:
        """Return the probabilities that its first 1, 2, ... `drafts` are all accepted."""
        ...

    def committed(self, done: Round) -> None:
        """Learn from a round, whoever proposed its drafts."""


class SourceContext(NamedTuple):
    """The parts of a session that its sources may read.

    predicted: the client's prediction of the text.
    earlier: outputs of the session's account; None without an account, or if none are kept.
    local: what was measured of a drafter in this process; None without one.
    """

    session: int
    prefix: Prefix
    params: SessionParams
    limits: TargetLimits
    constraint: Constraint | None
    draft_length: DraftLengthController
    counts: RoundCounts
    predicted: PredictedText | None = None
    earlier: AccountOutputs | None = None
    local: LocalEstimates | None = None
