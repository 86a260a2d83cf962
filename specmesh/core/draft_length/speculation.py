"""What is known of one source of drafts at one number of sessions: gate, policy and probes."""

from collections import defaultdict
from typing import TYPE_CHECKING

from specmesh.core.draft_length.gate import SpeculationGate
from specmesh.core.draft_sources import REMOTE

if TYPE_CHECKING:  # the policy needs numpy, which `bench steps` has no use for
    from specmesh.core.draft_length.policy import Policy

PROBE_INTERVAL = 32
"""Ids after which a source that is off is asked for drafts once, to see whether they would be
accepted.
"""
LONGEST_PROBE_INTERVAL = 256
"""The interval doubles up to here, since drafting may slow the verifier's host."""


class Speculation:
    """Speculation with one source while so many sessions share the steps.

    gate: whether its drafts pay.
    policy: the newest policy of a session, with which others begin. None before one was solved.
    policy_checked_at: when it was last seen whether the policy is out of date.
    probe_interval: ids until the next probe: the shortest interval as soon as drafts are wanted.
    """

    def __init__(self) -> None:
        self.gate = SpeculationGate()
        self.policy: Policy | None = None
        self.policy_checked_at = float("-inf")
        self.probe_interval = PROBE_INTERVAL

    def forget(self) -> None:
        """Learn gate and policy anew: the drafter's machine may have other work by now."""
        self.gate = SpeculationGate()
        self.policy = None
        self.policy_checked_at = float("-inf")

    def probed(self) -> None:
        """Note a probe: the next one comes after twice as many ids."""
        self.probe_interval = min(2 * self.probe_interval, LONGEST_PROBE_INTERVAL)


class Speculations:
    """Speculation by source and number of sessions in a step.

    Numbers of sessions are grouped by powers of two: 1, 2 and 3, 4 to 7, and so on. While a session
    has the steps to itself each drafter has a speculation of its own. So the remote source's are of
    steps that several sessions share.
    """

    def __init__(self) -> None:
        self._known = defaultdict[tuple[str, int], Speculation](Speculation)

    def of(self, source: str, sessions: int) -> Speculation:
        """Return the speculation with a source while so many sessions share the steps."""
        return self._known[source, sessions.bit_length()]

    def shut(self, sessions: int) -> list[str]:
        """Return the sources in hand whose gates are shut for so many sessions."""
        size = sessions.bit_length()
        names: list[str] = []
        for (source, group), speculation in self._known.items():
            if group == size and source != REMOTE and not speculation.gate.open:
                names.append(source)
        return names
