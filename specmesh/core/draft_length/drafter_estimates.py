"""Everything that was measured of one drafter, over all sessions that it drafted for."""

from specmesh.core.draft_length.acceptance import RollingAcceptance
from specmesh.core.draft_length.arrivals import Arrivals
from specmesh.core.draft_length.speculation import Speculation

DRAFTER_MEMORY = 128.0  # rounds after which a drafter's round counts half


class DrafterEstimates:
    """The acceptance, the speed and the profit of one drafter.

    acceptance: rates over all its sessions.
    arrivals: when its drafts arrive.
    speculation: gate and policy of steps that one of its sessions has to itself.
    """

    def __init__(self, others: RollingAcceptance | None = None) -> None:
        """Begin with the acceptance of all other drafters, if given."""
        self.acceptance = RollingAcceptance(DRAFTER_MEMORY, others)
        self.arrivals = Arrivals()
        self.speculation = Speculation()

    def forget(self) -> None:
        """Measure speed and profit anew: the drafter's machine may have other work by now."""
        self.arrivals.forget()
        self.speculation.forget()
