"""The drafter pool: which of several drafters drafts for which session.

A session gets the drafter with the most expected tokens per second. The rate follows from what was
measured of the drafter on the sessions that it had: acceptance, seconds per draft, round trip. What
a drafter claims of itself does not count.

- A drafter that was not measured of late comes first.
- A session moves when its drafter goes or is silent, when another is to be measured, and when
  another is clearly better.

So each drafter is measured by being used, on one session at a time. That costs the session little:
drafts of a bad drafter are rejected or late, and the gate bounds what they may cost. A drafter that
drafts for several sessions has a lower rate for each of them, as its drafts come later.

A drafter that was silent promises nothing until a session gets it again. That happens if there is
no other drafter, and when it is measured anew after MEASURED_SECONDS.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from specmesh.core.draft_length.drafter_estimates import RollingAcceptance
from specmesh.core.draft_length.speculation import Speculation
from specmesh.core.draft_sources import REMOTE
from specmesh.core.fields import Json
from specmesh.core.no_drafts import LASTING, NoDrafts
from specmesh.core.session_params import opened_options
from specmesh.core.verifier import events as vev
from specmesh.core.verifier.remote_drafter import RemoteDrafter, drafting_rate
from specmesh.core.verifier.session_context import SessionContext
from specmesh.wire import messages as m

LOOK_ROUNDS = 16
"""Rounds from one comparison of a session's drafter with the others to the next. With three
drafters as in bench/pool.py, two of which are killed, a text had 0.96 of the best one's speed (32:
0.92, 8: 0.95), and one of 300 tokens 0.90 (32: 0.84), in virtual time.
"""
SWITCH_GAIN = 1.15
"""Times the present rate that another drafter must have: a change costs a restart."""
NOTE_INTERVAL = 10.0  # seconds between two lines of the log about reasons that come and go


class DrafterPool:
    """Assigns drafters to sessions.

    A session of a drafter's own client always has that drafter.
    """

    def __init__(self, sessions: Mapping[int, SessionContext], outbox: list[vev.Effect]) -> None:
        """Assign drafters to these sessions, which others add and remove.

        outbox: gets the effects.
        """
        self._outbox = outbox
        self._drafters: dict[vev.DrafterId, RemoteDrafter] = {}  # the oldest first
        self._sessions = sessions
        self._acceptance = RollingAcceptance()  # of all drafters

    @property
    def count(self) -> int:
        """Return how many drafters are attached."""
        return len(self._drafters)

    # --- drafters come and go

    def join(self, joined: vev.DrafterJoined, now: float) -> None:
        """Add a drafter."""
        self._drafters[joined.drafter] = RemoteDrafter(joined, self._acceptance)
        self.find_all(now)

    def name(self, context: SessionContext) -> str | None:
        """Return the name of a session's drafter; None if it has none."""
        drafter = self._drafter_of(context)
        return None if drafter is None else drafter.name

    def gone(self, identity: vev.DrafterId) -> None:
        """Remove a drafter."""
        self._drafters.pop(identity, None)
        for context in self._sessions.values():
            if context.drafter == identity:
                self.detach(context)

    def mute(self, identity: vev.DrafterId, now: float, *, muted: bool) -> None:
        """Note that a drafter drafts nothing, or that it drafts again.

        Its own clients' sessions stay with it; others find another drafter.
        """
        drafter = self._drafters.get(identity)
        if drafter is None:
            return  # it has just gone
        drafter.muted = muted
        for context in self._sessions.values():
            if context.drafter != identity:
                continue
            context.session.draft_length.mute(muted=muted)
            # A client of the drafter reads along there, whether or not it drafts.
            if context.owner != identity:
                self.release(context, identity)
                self.detach(context)
        self.find_all(now)

    def round_trip(self, identity: vev.DrafterId, seconds: float) -> None:
        """Note the time from a PING to its PONG."""
        if identity in self._drafters:
            self._drafters[identity].estimates.arrivals.record_round_trip(seconds)

    # --- a session gets a drafter, or loses it

    def find_all(self, now: float) -> None:
        """Find a drafter for each session without one.

        The session of a drafter's own client waits for that drafter.
        """
        for context in self._sessions.values():
            self.find(context, now)

    def find(self, context: SessionContext, now: float) -> None:
        """Find a drafter for a session without one: one to measure, or else the best one."""
        session = context.session
        unowned = context.drafter is None and context.owner is None
        if not (unowned and session.may_draft and session.draft_length.allows_remote):
            return
        fitting = self._fitting(context)
        if fitting:
            chosen = self._unmeasured(fitting, now) or self._best(context, fitting)
            self.attach(context, chosen.id, now)

    def attach(self, context: SessionContext, identity: vev.DrafterId, now: float) -> None:
        """Let a drafter draft for a session. The one before must know that it no longer does."""
        drafter = self._drafters.get(identity)
        if drafter is None:
            return  # it has just gone
        context.attach(identity)
        # Its machine may have other work by now, or none.
        if drafter.measured_at is not None and drafter.unmeasured(now):
            drafter.estimates.forget()
        # It gets another chance. If it is silent again, the session moves on.
        drafter.silent = False
        self._announce(context, drafter, now)

    def _announce(self, context: SessionContext, drafter: RemoteDrafter, now: float) -> None:
        """Send a drafter its session, unless its drafts are refused.

        A refused drafter may need the cores that the verifier's steps want.
        """
        session = context.session
        is_own = drafter.id == context.owner
        # Its own client's text is shown there, so that drafter is always sent it.
        if session.draft_length.refuses(drafter.estimates) and not is_own:
            return
        frames = context.announce(drafter.estimates, muted=drafter.muted)
        if not is_own:  # the owner has just got OPENED
            options = opened_options(session.params)
            opened = m.Opened(context.id, 0, session.n_prompt, options)
            self._outbox.append(vev.ToDrafter(drafter.id, opened))
        for frame in frames:
            self.send(context, frame)
        self.weigh()
        # Other sessions may have measured the drafter: a policy is due before the first step.
        self.reconsider(context, now)

    def send(self, context: SessionContext, frame: m.Truth | m.Sync | m.Nack) -> None:
        """Send a frame to a session's drafter, if it has one.

        Log-probabilities and sources of its ids follow, if the drafter's client asked for them.
        """
        if context.drafter is None:
            return
        self._outbox.append(vev.ToDrafter(context.drafter, frame))
        if context.session.annotated and not isinstance(frame, m.Nack):
            for logprobs in context.logprobs(frame):
                self._outbox.append(vev.ToDrafter(context.drafter, logprobs))

    def detach(self, context: SessionContext) -> None:
        """Let a session go on without a drafter."""
        context.detach()
        self.weigh()

    def release(self, context: SessionContext, identity: vev.DrafterId) -> None:
        """Send a drafter the end of a session that goes on without it, if it knows of it."""
        if not context.announced:
            return
        moved = m.Done(context.id, m.FinishReason.MOVED, len(context.session.prefix))
        self._outbox.append(vev.ToDrafter(identity, moved))

    def reconsider(self, context: SessionContext, now: float) -> None:
        """Have the policy of a session solved if its inputs have moved."""
        session = context.session
        if session.finished is not None:
            return
        inputs = session.draft_length.unsolved(now)
        if inputs is not None:
            old = session.draft_length.policy
            self._outbox.append(vev.Solve(context.id, context.drafter, inputs, old))

    def speculation(self, context: SessionContext) -> Speculation | None:
        """Return the speculation with a session's drafter, if the session has steps to itself."""
        drafter = self._drafter_of(context)
        if drafter is None or not context.session.draft_length.lone:
            return None
        return drafter.estimates.speculation

    def _drafter_of(self, context: SessionContext) -> RemoteDrafter | None:
        """Return a session's drafter; None without one, and for one that has just gone."""
        return None if context.drafter is None else self._drafters.get(context.drafter)

    # --- why nothing is drafted

    def no_drafts(self, context: SessionContext) -> NoDrafts | None:
        """Return why nothing is drafted for a session now; None if something is."""
        session = context.session
        if not session.may_draft:
            return NoDrafts.CLIENT
        possible = self._possible(context)
        # The widest reason comes first: those after it cannot be mended before it is.
        if not possible:
            return _why_without_drafter(context)
        drafting = [drafter for drafter in possible if not drafter.muted]
        if not drafting:
            return NoDrafts.VOCABULARY
        if all(drafter.n_ctx <= len(session.prefix) for drafter in drafting):
            return NoDrafts.CONTEXT
        if not context.announced:
            return NoDrafts.GATE  # its drafter is refused, or it has none yet
        return session.no_drafts

    def _possible(self, context: SessionContext) -> list[RemoteDrafter]:
        """Return the drafters that could draft for a session; none if its client wants none."""
        if not context.session.draft_length.allows_remote:
            return []
        identity = context.drafter or context.owner
        return [drafter for drafter in self._drafters.values() if identity in (None, drafter.id)]

    def verdict(self, context: SessionContext) -> NoDrafts | None:
        """Return why nothing was drafted for a session that is over, or why drafting ended before.

        None if drafts were verified to the end, or if other sources had some and no drafter came.
        """
        why = self.no_drafts(context)
        counts = context.session.counts
        if counts.drafted == 0:
            return why or context.session.was_not_drafted
        return why if why in LASTING else None

    def log_no_drafts(self, context: SessionContext, now: float) -> None:
        """Log the reason why nothing is drafted for a session, if it has changed.

        Reasons that come and go are logged once in NOTE_INTERVAL.
        """
        why = self.no_drafts(context)
        lasts = why in LASTING
        is_early = now < context.noted_at + NOTE_INTERVAL
        if why == context.no_drafts or (is_early and not lasts):
            return
        context.note_no_drafts(why, now)
        self._outbox.append(vev.Noted("no_drafts", {"session": context.id, "why": why}))

    # --- another drafter for a session

    def stepped(self, context: SessionContext, now: float) -> None:
        """Count a round of a session, and see now and then whether another drafter gets it."""
        drafting = context.session.drafting
        # All sessions of the drafter are timed by its load, so it is counted when it changes only.
        if drafting != context.in_load:
            self.weigh()
        drafter = self._drafter_of(context)
        if drafter is None or context.session.finished is not None:
            return
        if context.announced:
            self.reconsider(context, now)
        else:
            self._announce(context, drafter, now)
        if drafting:
            # A drafter counts as measured as long as it works. Its time without work begins after
            # that.
            drafter.measured_at = now
        context.rounds += 1
        if context.owner is None and len(self._drafters) > 1:
            self._look(context, drafter, now)

    def _look(self, context: SessionContext, present: RemoteDrafter, now: float) -> None:
        """Move a session to another drafter, if it is due and there is a reason to."""
        draft_length = context.session.draft_length
        if draft_length.withheld and not draft_length.lone:
            return  # no drafter would be asked for drafts
        silent = draft_length.estimate.silent(now)
        # A look computes the rate of each drafter. One that is silent is not waited for so long.
        if context.rounds % LOOK_ROUNDS and not silent:
            return
        others = [other for other in self._fitting(context) if other is not present]
        if not others:
            return
        unmeasured = self._unmeasured(others, now)
        # A drafter that is asked for nothing shows nothing. Without a first draft its rate would
        # stay unknown, and the session would stay with it for ever.
        has_drafted = present.estimates.arrivals.restart is not None
        never_will = not has_drafted and not context.session.drafting
        if silent or never_will:
            present.silent = True
            chosen = unmeasured or self._best(context, others)
            self._move(context, present, chosen, now, why="silent")
        elif has_drafted and unmeasured is not None:
            self._move(context, present, unmeasured, now)
        elif has_drafted:
            best = self._best(context, others)
            if self._rate(context, best) > SWITCH_GAIN * self._rate(context, present):
                self._move(context, present, best, now, why="better")

    def _move(
        self,
        context: SessionContext,
        present: RemoteDrafter,
        chosen: RemoteDrafter,
        now: float,
        why: str = "",
    ) -> None:
        """Give a session another drafter; the log has the reason, unless it is to measure."""
        present.measured_at = now
        if why:
            fields: Json = {"session": context.id, "drafter": chosen.name, "why": why}
            self._outbox.append(vev.Noted("drafter_changed", fields))
        self.release(context, present.id)
        self.attach(context, chosen.id, now)

    # --- the choice of a drafter

    def _fitting(self, context: SessionContext) -> list[RemoteDrafter]:
        """Return the drafters that draft, and whose model has room for a session's text."""
        length = len(context.session.prefix)
        fitting: list[RemoteDrafter] = []
        for drafter in self._drafters.values():
            if drafter.n_ctx > length and not drafter.muted:
                fitting.append(drafter)
        return fitting

    def _unmeasured(self, drafters: Sequence[RemoteDrafter], now: float) -> RemoteDrafter | None:
        """Return the first drafter that was not measured of late, and is not being measured."""
        busy = {context.drafter for context in self._sessions.values()}
        for drafter in drafters:
            if drafter.unmeasured(now) and drafter.id not in busy:
                return drafter
        return None

    def _best(self, context: SessionContext, drafters: Sequence[RemoteDrafter]) -> RemoteDrafter:
        """Return the drafter with the best rate, of equal ones that with the fewest sessions."""
        sessions: Counter[vev.DrafterId | None] = Counter()
        for other in self._sessions.values():
            if other is not context:
                sessions[other.drafter] += 1

        def merit(drafter: RemoteDrafter) -> tuple[float, int]:
            return self._rate(context, drafter), -sessions[drafter.id]

        return max(drafters, key=merit)

    def _rate(self, context: SessionContext, drafter: RemoteDrafter) -> float:
        """Return the tokens per second to expect of a session with a drafter; 0 while unknown.

        A known rate is the drafter's in `stats`, too.
        """
        draft_length = context.session.draft_length
        estimates = drafter.estimates
        if draft_length.undrafted_s <= 0 or drafter.silent:
            return 0.0
        load = 1
        for other in self._sessions.values():
            # Itself, and the others that it makes drafts for now.
            if other.in_load and other.drafter == drafter.id and other is not context:
                load += 1
        inputs = draft_length.inputs_with(
            estimates.acceptance.rates(), estimates.arrivals, load=load
        )
        if inputs is None:
            return 0.0
        present_and_off = context.drafter == drafter.id and draft_length.off
        # Such a drafter takes nothing from the session: it goes on at the target's own speed. So
        # its rate is that speed, and not 0, which is for drafters that nothing is known of.
        useless = estimates.speculation.gate.verdict is False or present_and_off
        out_of_room = drafter.n_ctx <= len(context.session.prefix)
        if useless or out_of_room:
            drafter.rate = 1 / draft_length.undrafted_s
        else:
            drafter.rate = drafting_rate(inputs)
        return drafter.rate

    # --- the load of drafters

    def share(self, sessions: int) -> None:
        """Let all sessions know that so many will have the next steps."""
        for context in self._sessions.values():
            context.session.draft_length.note_sessions(sessions)

    def weigh(self) -> None:
        """Set each drafter's load, on which its timing depends."""
        loads: Counter[vev.DrafterId | None] = Counter()
        for context in self._sessions.values():
            if context.weigh():
                loads[context.drafter] += 1
        for drafter in self._drafters.values():
            # An idle drafter is rated as it would be with the session in question.
            drafter.estimates.arrivals.load = max(loads[drafter.id], 1)

    def reports(self) -> dict[vev.DrafterId, Json]:
        """Return the measurements of each drafter for `stats`."""
        sessions = Counter(context.drafter for context in self._sessions.values())
        return {
            identity: drafter.report(sessions[identity])
            for identity, drafter in self._drafters.items()
        }


def _why_without_drafter(context: SessionContext) -> NoDrafts | None:
    """Return why nothing is drafted for a session that no drafter daemon could draft for.

    None if sources of the verifier itself draft for it.
    """
    session = context.session
    local = session.local
    counts = session.counts
    if local is not None and local.drafting:
        return None
    drafted = counts.drafted
    if local is not None:
        drafted -= counts.drafted_by_source[local.name]
    if drafted > 0 and counts.drafted_by_source[REMOTE] == 0:
        return None
    if local is not None:
        return NoDrafts.GATE
    return NoDrafts.NONE_ATTACHED if session.draft_length.allows_remote else NoDrafts.CLIENT
