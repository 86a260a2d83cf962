"""Which of several drafters drafts for which session: the one with the most expected tokens per second.

That follows from what was measured of a drafter on the sessions it had: acceptance, seconds per draft, round trip;
nothing that it says of itself. One that was not measured of late comes first. A session moves on when its drafter goes
or is silent, when another is to be measured, and when another is clearly better.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from specmesh.core.draft_length.estimates import Arrivals, RollingAcceptance
from specmesh.core.draft_length.gate import SpeculationGate
from specmesh.core.draft_length.policy import PolicyInputs
from specmesh.core.no_drafts import LASTING, NoDrafts
from specmesh.core.session_params import opened_options
from specmesh.core.statistics.counters import milliseconds
from specmesh.core.verifier import events as vev
from specmesh.core.verifier.session_context import SessionContext
from specmesh.wire import messages as m

# from one comparison of a session's drafter with the others to the next. Three drafters as in bench/pool.py, in virtual
# time: of the best alone 0.96 where two are killed, 32: 0.92, 8: 0.95; in a text of 300 tokens 0.90, 32: 0.84
LOOK_ROUNDS = 16
SWITCH_GAIN = 1.15  # times the present rate that a better one must have: a change costs a restart
MEASURED = 600.0  # seconds that what was measured of a drafter without sessions counts
DRAFTER_MEMORY = 128.0  # rounds after which what was seen of a drafter counts half
NOTE_INTERVAL = 10.0  # seconds between two lines of the log about what comes and goes
CERTAIN = 0.999  # no chain of drafts is accepted more surely than this


class RemoteDrafter:
    """A drafter attached to the verifier, and what was measured of it. others: acceptance of all there were."""

    def __init__(self, joined: vev.DrafterJoined, others: RollingAcceptance | None = None) -> None:
        self.id, self.n_ctx, self.name = joined.drafter, joined.n_ctx, joined.name
        self.silent = False  # a session has waited for its drafts in vain
        self.muted = False  # it says that it drafts nothing here
        self.acceptance = RollingAcceptance(DRAFTER_MEMORY, others)
        self.arrivals = Arrivals()
        self.rate: float | None = None  # tokens per second to expect, when it was last compared
        self.measured: float | None = None  # when it last drafted, or should have

    def unmeasured(self, now: float) -> bool:
        return self.measured is None or now - self.measured > MEASURED

    def report(self, sessions: int) -> dict[str, object]:
        """Return what was measured of it, and how many sessions it drafts for."""
        return {
            "draft_interval_ms": milliseconds(self.arrivals.interval),
            "acceptance_rate": round(self.acceptance.pooled(), 4)
            if self.acceptance.known
            else None,
            "promised_tokens_per_second": None if self.rate is None else round(self.rate, 2),
            "sessions": sessions,
        }


class DrafterPool:
    """Assigns `drafters`, the oldest first, to `sessions`; a session of a drafter's own client always has that drafter.
    What is returned is to be done."""

    def __init__(self, sessions: Mapping[int, SessionContext]) -> None:
        self.drafters: dict[vev.DrafterId, RemoteDrafter] = {}
        self._sessions = sessions
        self._acceptance = RollingAcceptance()

    # --- drafters come and go

    def join(self, joined: vev.DrafterJoined, now: float) -> list[vev.Effect]:
        self.drafters[joined.drafter] = RemoteDrafter(joined, self._acceptance)
        return self.find_all(now)

    def name(self, identity: vev.DrafterId | None) -> str | None:
        return self.drafters[identity].name if identity in self.drafters else None

    def gone(self, identity: vev.DrafterId) -> None:
        self.drafters.pop(identity, None)
        for live in self._sessions.values():
            if live.drafter == identity:
                self.detach(live)

    def mute(self, identity: vev.DrafterId, now: float, *, muted: bool) -> list[vev.Effect]:
        """Note that a drafter drafts nothing, or again: its own clients' sessions stay with it,
        others find another."""
        drafter, effects = self.drafters.get(identity), list[vev.Effect]()
        if drafter is None:
            return effects  # it has just gone
        drafter.muted = muted
        for live in [one for one in self._sessions.values() if one.drafter == identity]:
            live.session.draft_length.mute(muted=muted)
            if live.owner != identity:
                effects += self.release(live, identity)
                self.detach(live)
        return effects + self.find_all(now)

    def round_trip(self, identity: vev.DrafterId, seconds: float) -> None:
        """Note how long a PING and its answer took."""
        if identity in self.drafters:
            self.drafters[identity].arrivals.record_round_trip(seconds)

    # --- a session gets a drafter, or loses it

    def find_all(self, now: float) -> list[vev.Effect]:
        """Give all sessions without a drafter one; those of a drafter's own client wait for that drafter."""
        effects = list[vev.Effect]()
        for live in self._sessions.values() if self.drafters else ():
            if live.drafter is None and live.owner is None and live.session.may_draft:
                effects += self.find(live, now)
        return effects

    def find(self, live: SessionContext, now: float) -> list[vev.Effect]:
        """Give a session without a drafter one, if there is any: first those to measure, then by their rates."""
        fitting = self._fitting(live)
        if not fitting:
            return []
        unmeasured = self._unmeasured(fitting, now)
        return self.attach(live, (unmeasured or self._best(live, fitting)).id, now)

    def attach(self, live: SessionContext, identity: vev.DrafterId, now: float) -> list[vev.Effect]:
        """Let a drafter draft for a session. The one before must know that it does no more."""
        drafter = self.drafters.get(identity)
        if drafter is None:
            return []  # it has just gone
        live.drafter, live.rounds, live.announced = identity, 0, False
        if drafter.measured is not None and drafter.unmeasured(now):
            drafter.arrivals.forget()
        drafter.silent = False
        return self._begin(live, drafter, now)

    def _begin(self, live: SessionContext, drafter: RemoteDrafter, now: float) -> list[vev.Effect]:
        """Tell a drafter of its session, unless it is refused drafts: it may need the cores that the verifier's steps
        want."""
        session = live.session
        if session.draft_length.refuses(drafter.arrivals) and drafter.id != live.owner:
            return []
        live.announced, effects = True, list[vev.Effect]()
        session.draft_length.mute(muted=drafter.muted)
        if drafter.id != live.owner:  # that one has just got OPENED
            effects.append(
                vev.ToDrafter(
                    drafter.id,
                    m.Opened(live.id, 0, session.n_prompt, opened_options(session.params)),
                )
            )
        for said in session.attach(drafter.arrivals, drafter.acceptance):
            effects += self.tell(live, said)
        self.weigh()
        return [
            *effects,
            *self.reconsider(live, now),
        ]  # by what other sessions have shown, before the first step

    def tell(self, live: SessionContext, said: m.Truth | m.Sync | m.Nack) -> list[vev.Effect]:
        """Tell a session's drafter, if it has one; with ids their log-probabilities, if its client asked for them."""
        if live.drafter is None:
            return []
        effects: list[vev.Effect] = [vev.ToDrafter(live.drafter, said)]
        if live.session.logprobs is not None and not isinstance(said, m.Nack):
            effects += [vev.ToDrafter(live.drafter, logprobs) for logprobs in live.logprobs(said)]
        return effects

    def detach(self, live: SessionContext) -> None:
        live.drafter = None
        live.session.draft_length.detach()
        self.weigh()

    def release(self, live: SessionContext, identity: vev.DrafterId) -> list[vev.Effect]:
        moved = m.Done(live.id, m.FinishReason.MOVED, len(live.session.prefix))
        return [vev.ToDrafter(identity, moved)] if live.announced else []

    def no_drafts(self, live: SessionContext) -> NoDrafts | None:
        """Return why nothing is drafted for a session now; None if something is."""
        session = live.session
        if not session.may_draft:
            return NoDrafts.CLIENT
        whose = live.drafter or live.owner
        could = [one for one in self.drafters.values() if whose in (None, one.id)]
        if not could:
            return NoDrafts.NONE_ATTACHED
        speaking = [one for one in could if not one.muted]
        if not speaking:
            return NoDrafts.VOCABULARY
        if all(one.n_ctx <= len(session.prefix) for one in speaking):
            return NoDrafts.CONTEXT
        if not live.announced:
            return NoDrafts.GATE  # its drafter is refused drafts, or it has none yet
        return session.no_drafts

    def verdict(self, live: SessionContext) -> NoDrafts | None:
        """Return why nothing was drafted for a session that has ended, or no more at its end;
        None if drafts were verified to the end."""
        why = self.no_drafts(live)
        if live.session.counts.drafted == 0:
            return why or live.session.was_not_drafted
        return why if why in LASTING else None

    def changed(self, live: SessionContext, now: float) -> vev.Noted | None:
        """Return a line for the log if the reason why nothing is drafted has changed; seldom for
        reasons that come and go."""
        why = self.no_drafts(live)
        fleeting = why not in LASTING and now < live.noted + NOTE_INTERVAL
        if why == live.no_drafts or fleeting:
            return None
        live.no_drafts, live.noted = why, now
        return vev.Noted("no_drafts", {"session": live.id, "why": why})

    def reconsider(self, live: SessionContext, now: float) -> list[vev.Effect]:
        """Have the policy of a session solved where what it comes of has moved."""
        session = live.session
        inputs = session.draft_length.unsolved(now) if session.finished is None else None
        return (
            [vev.Solve(live.id, inputs, session.draft_length.policy)] if inputs is not None else []
        )

    def gate(self, live: SessionContext) -> SpeculationGate | None:
        """That of a session's drafter, where the steps are the session's alone."""
        drafter = self.drafters.get(live.drafter) if live.drafter is not None else None
        return (
            drafter.arrivals.gate
            if drafter is not None and live.session.draft_length.lone
            else None
        )

    # --- another drafter for a session

    def stepped(self, live: SessionContext, now: float) -> list[vev.Effect]:
        """Count a round of a session; where there are other drafters, see now and then whether it goes to one."""
        drafting = live.session.drafting
        if drafting != live.in_load:
            self.weigh()
        drafter = self.drafters.get(live.drafter) if live.drafter is not None else None
        if drafter is None or live.session.finished is not None:
            return []
        effects = self.reconsider(live, now) if live.announced else self._begin(live, drafter, now)
        if drafting:
            drafter.measured = now
        live.rounds += 1
        if live.owner is None and len(self.drafters) > 1:
            effects += self._look(live, drafter, now)
        return effects

    def _look(self, live: SessionContext, present: RemoteDrafter, now: float) -> list[vev.Effect]:
        draft_length = live.session.draft_length
        if draft_length.withheld and not draft_length.lone:
            return []  # no drafter is asked, whoever it is
        silent = draft_length.estimate.silent(now)
        if live.rounds % LOOK_ROUNDS and not silent:
            return []
        others = [one for one in self._fitting(live) if one is not present]
        if not others:
            return []
        unmeasured = self._unmeasured(others, now)
        drafted = present.arrivals.restart is not None
        if silent or not (drafted or live.session.drafting):  # nor will it: drafting with it is off
            present.silent = True
            return self._move(
                live, present, unmeasured or self._best(live, others), now, why="silent"
            )
        if not drafted:
            return []
        if unmeasured is not None:
            return self._move(live, present, unmeasured, now)
        best = self._best(live, others)
        better = self._rate(live, best) > SWITCH_GAIN * self._rate(live, present)
        return self._move(live, present, best, now, why="better") if better else []

    def _move(
        self,
        live: SessionContext,
        present: RemoteDrafter,
        chosen: RemoteDrafter,
        now: float,
        why: str = "",
    ) -> list[vev.Effect]:
        present.measured = now
        changed = vev.Noted(
            "drafter_changed", {"session": live.id, "drafter": chosen.name, "why": why}
        )
        released = self.release(live, present.id)
        return [*([changed] if why else []), *released, *self.attach(live, chosen.id, now)]

    # --- which drafter

    def _fitting(self, live: SessionContext) -> list[RemoteDrafter]:
        length = len(live.session.prefix)
        return [one for one in self.drafters.values() if one.n_ctx > length and not one.muted]

    def _unmeasured(self, drafters: Sequence[RemoteDrafter], now: float) -> RemoteDrafter | None:
        """Return one that was not measured of late, and is not being measured."""
        busy = {live.drafter for live in self._sessions.values()}
        free = (one for one in drafters if one.unmeasured(now) and one.id not in busy)
        return next(free, None)

    def _best(self, live: SessionContext, drafters: Sequence[RemoteDrafter]) -> RemoteDrafter:
        """Return the one with the best rate, of equal ones that with the fewest sessions."""
        sessions = Counter(other.drafter for other in self._sessions.values() if other is not live)
        return max(drafters, key=lambda one: (self._rate(live, one), -sessions[one.id]))

    def _rate(self, live: SessionContext, drafter: RemoteDrafter) -> float:
        """Return expected tokens per second of a session with a drafter, 0 while nothing is known."""
        draft_length, arrivals = live.session.draft_length, drafter.arrivals
        if draft_length.alone <= 0 or drafter.silent:
            return 0.0
        others = sum(
            one.in_load and one.drafter == drafter.id
            for one in self._sessions.values()
            if one is not live
        )
        rates, interval = drafter.acceptance.rates(), arrivals.interval_at(1 + others)
        inputs = draft_length.inputs_with(rates, interval, arrivals.restart, arrivals.round_trip)
        if inputs is None:
            return 0.0
        present = live.drafter == drafter.id
        useless = arrivals.gate.verdict is False or (present and draft_length.off)
        out_of_room = drafter.n_ctx <= len(live.session.prefix)
        drafter.rate = 1 / draft_length.alone if useless or out_of_room else drafting_rate(inputs)
        return drafter.rate

    def share(self, sessions: int) -> None:
        """Let all sessions know that so many will have the next steps."""
        for live in self._sessions.values():
            live.session.draft_length.share(sessions)

    def weigh(self) -> None:
        """Set each drafter's load, which its timing depends on."""
        for live in self._sessions.values():
            live.in_load = live.session.drafting
        loads = Counter(live.drafter for live in self._sessions.values() if live.in_load)
        for drafter in self.drafters.values():
            drafter.arrivals.load = max(loads[drafter.id], 1)

    def reports(self) -> dict[vev.DrafterId, dict[str, object]]:
        sessions = Counter(live.drafter for live in self._sessions.values())
        return {
            drafter.id: drafter.report(sessions[drafter.id]) for drafter in self.drafters.values()
        }


def drafting_rate(inputs: PolicyInputs) -> float:
    """Expected tokens per second with such a drafter, at least the target's alone: a closed form, microseconds where
    solving the policy takes milliseconds. Each step has the same number of drafts. After a rejection they are waited
    for, or the target goes on alone until the drafter has caught up."""
    interval, single = inputs.interval, inputs.steps[0]
    best, tokens, alive = 1.0 / inputs.alone, 1.0, 1.0
    for drafts, step in enumerate(inputs.steps[1:], 1):
        alive *= inputs.rates[drafts - 1]
        tokens += alive
        stands = min(alive * inputs.rates[drafts], CERTAIN)  # the next step has drafts too
        behind = inputs.restart + (drafts - 1) * interval
        spent = (1.0 - stands) * step + stands * max(step, (drafts + 1) * interval)
        best = max(best, tokens / ((1.0 - stands) * behind + spent))
        if interval < single:
            first = min(inputs.rates[0], CERTAIN)
            caught = first ** (
                behind / (single - interval)
            )  # else the target's own tokens contradict the chain
            alone = (1.0 - caught) / (1.0 - first) * (1.0 - stands)
            best = max(best, (alone + caught * tokens) / (alone * single + caught * spent))
    return best
