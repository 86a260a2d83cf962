"""A session of the verifier with its client and its drafters, and what these and the log hear of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from specmesh.core import events as ev
from specmesh.core import verifier_events as vev
from specmesh.core.draft_length.estimates import RollingAcceptance
from specmesh.core.prefix import common_length
from specmesh.core.sampling.constraint import SIMPLER
from specmesh.core.session import VerifierSession
from specmesh.errors import SpecmeshError


@dataclass(slots=True, eq=False)
class SessionContext:
    """client: who hears of it, None while it is kept. owner: the drafter whose client asked for it, None for one of
    the verifier's own. name: to resume it by; key: it was opened with; either may be empty. unguided: the log has that
    its grammar can check no more drafts.

    The drafter pool's: why it got its newest drafter, since when and for how many rounds; when it was last compared, in
    rounds and time, and which other one promised more then; the acceptance of each seen here; asked: drafts were asked
    for when drafters' loads were last counted."""

    id: int
    machine: VerifierSession
    seq: int  # of the target's memory
    client: int | None
    owner: vev.DrafterId | None
    drafter: vev.DrafterId | None = None
    name: str = ""
    key: str = ""
    unguided: bool = False
    reason: vev.AttachReason | None = None
    since: float = 0.0
    rounds: int = 0
    looked: tuple[int, float] = (0, 0.0)
    rival: vev.DrafterId | None = None
    acceptance: dict[vev.DrafterId, RollingAcceptance] = field(default_factory=dict)
    asked: bool = False

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        return tuple(self.machine.prefix[: self.machine.n_prompt])

    def opened(self, label: str) -> vev.Noted:
        machine, fields = self.machine, dict[str, object](session=self.id, prompt_tokens=self.machine.n_prompt)
        if machine.cached:
            fields["cached_tokens"] = machine.cached
        if machine.resumed:
            fields["resumed_tokens"] = machine.resumed
        return vev.Noted("session_opened", fields | ({"request": label} if self.owner is None else {"remote": True}))

    def differs(self, generated: Sequence[int]) -> vev.Noted | None:
        """Return a warning where its text contradicts the one that its client remembers."""
        said = self.machine.said()
        if common_length(generated, said) >= min(len(generated), len(said)):
            return None
        meaning = "it goes on as the verifier has it"
        return vev.Noted("resumed_text_differs", {"session": self.id, "meaning": meaning}, "warning")

    def grammar_spent(self) -> vev.Noted | None:
        """Return a warning, once, where its grammar can check no more drafts."""
        constraint = self.machine.constraint
        why = constraint.exhausted if constraint is not None else None
        if why is None or self.unguided:
            return None
        self.unguided = True
        fields = {"session": self.id, "error": why, "meaning": "none of its drafts is verified", "hint": SIMPLER}
        return vev.Noted("grammar_spent", fields, "warning")

    def logprobs(self, told: ev.Told) -> vev.LogprobsTold | None:
        """Return those of the ids that a drafter is told, where its client asked for them."""
        known, end = self.machine.logprobs, told.base + len(told.ids)
        if self.owner is None or known is None:
            return None
        begin = max(told.base, known.begin)
        return vev.LogprobsTold(begin, known.between(begin, end)) if begin < end else None

    def began(self, known: int, *, adopted: bool) -> vev.Began:
        """What its client, new to it, hears; of a client of the verifier's own that has `known` ids, the others too."""
        machine, begin = self.machine, self.machine.n_prompt + known
        said = machine.said(known) if self.owner is None else ()
        assert self.client is not None, "it was just given to one"
        return vev.Began(
            self.client, self.id, self.owner, self.prompt_ids, machine.params, self.name, machine.times.opened,
            machine.cached, machine.resumed, adopted, said,
            machine.logprobs.between(begin, begin + len(said)) if said and machine.logprobs is not None else (),
        )  # fmt: skip

    def ended(
        self, reason: str, error: SpecmeshError | None, report: dict[str, object], now: float
    ) -> vev.SessionEnded:
        machine = self.machine
        return vev.SessionEnded(
            self.id, self.client, self.owner, self.drafter, reason, error, self.prompt_ids, report,
            now - machine.times.opened,
        )  # fmt: skip
