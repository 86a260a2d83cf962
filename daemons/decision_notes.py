"""From steps to the records of a decision log: what was known when a step began, and what came of it."""

from dataclasses import replace

from specmesh.core import events as ev
from specmesh.core.decision import WAIT, Decision, DrafterChange, PolicyRecord
from specmesh.core.policy import Policy
from specmesh.core.pool import Why
from specmesh.daemons.decision_log import DecisionLog
from specmesh.daemons.live import Live


class DecisionNotes:
    """Notes of the steps that run, written to `log` when they are done; nothing is noted without one."""

    def __init__(self, log: DecisionLog | None) -> None:
        self._log = log
        self._begun: dict[int, Decision] = {}

    def begun(self, live: Live, part: ev.Verify, waited: float, now: float) -> None:
        """A step with a part of this session begins at `now`, after `waited` seconds."""
        if self._log is not None:
            self._begun[live.id] = live.machine.decision(live.id, len(part.drafts), waited, now)

    def stepped(self, live: Live, effects: list[ev.VerifierEffect], seconds: float) -> None:
        """It is done after `seconds`, with these effects."""
        begun = self._begun.pop(live.id, None)
        if self._log is None or begun is None:
            return
        for effect in effects:
            if isinstance(effect, ev.Emit):
                committed = len(live.machine.prefix) - begun.position
                outcome = replace(
                    begun,
                    asked=live.machine.draft_n,
                    took_s=seconds,
                    accepted=effect.accepted,
                    committed=committed,
                    side=effect.side_drafted,
                    side_accepted=effect.side_accepted,
                )
                self._log.add(outcome)

    def solved(self, live: Live, policy: Policy, now: float) -> None:
        """The session decides by this policy from `now` on."""
        if self._log is None:
            return
        waits = [then > at for at, then in enumerate(policy.then)]
        drafts = [WAIT if wait else drafts for wait, drafts in zip(waits, policy.drafts, strict=True)]
        leads = [policy.lead_at(at) for at in range(len(drafts))]
        self._log.add(PolicyRecord(now - live.machine.times.opened, live.id, leads, drafts, policy.rate))

    def drafter(self, live: Live, number: int, why: Why, rate: float | None, now: float) -> None:
        """The session is drafted for by the drafter of this number from `now` on."""
        if self._log is not None:
            self._log.add(DrafterChange(now - live.machine.times.opened, live.id, number, why, rate))
