"""The verifier's core: everything that a verifier decides.

- `handle` takes an event. `next_step` returns what the target runs next. `finish` takes the result.
- `handle` and `finish` return the effects to carry out.
- Sessions begin, change their drafter and end between two steps (lifecycle.py).
- Frames of drafters count at any time, and a step takes the drafts that are in hand (steps.py).

The shell's loop is:

    handle(event) for each event that waits; carry out the effects
    next_step() -> Step: run it, finish(result); carry out the effects
                -> Wait: sleep until then, or until an event comes

While a step runs, frames of drafters go straight to their sessions: they add drafts to the chains
in hand, and change nothing that the step depends on. Other events could end a session of the
step, or change its sequence. They wait in `_late`, and happen right after it.

It is called from the engine's thread only. It needs no lock, and has the time from its caller.
"""

from collections.abc import Sequence
from typing import assert_never

from specmesh.core import events as ev
from specmesh.core.statistics.counters import RoundCounts
from specmesh.core.statistics.session_report import session_row
from specmesh.core.verifier import events as vev
from specmesh.core.verifier.admission import GRACE
from specmesh.core.verifier.lifecycle import SessionLifecycle
from specmesh.core.verifier.session import VerifierSession
from specmesh.core.verifier.steps import TargetSteps
from specmesh.core.verifier.target import Target
from specmesh.errors import SpecmeshError


class VerifierCore:
    """The sessions of one target, the drafters that draft for them, and the target's steps."""

    def __init__(self, target: Target, *, first: int = 1, grace: float = GRACE) -> None:
        """Begin without sessions.

        first: number of the first session.
        grace: seconds for which a session is kept for its lost drafter.
        """
        self._target = target
        # Effects in the order in which they came: all parts share it, and only append.
        self._outbox = list[vev.Effect]()
        self._lifecycle = SessionLifecycle(target, self._outbox, first, grace)
        self._steps = TargetSteps(target, self._lifecycle, self._outbox)
        self._late: list[vev.Change] = []  # events of the step that runs
        self._stray_frames = 0

    def sessions(self) -> list[VerifierSession]:
        """Return the sessions that have a sequence, the oldest first."""
        return [context.session for context in self._lifecycle.running.values()]

    @property
    def guests(self) -> int:
        """Return how many of them are short ones beside as many others as there may be."""
        return sum(context.guest for context in self._lifecycle.running.values())

    @property
    def kept(self) -> int:
        """Return how many sessions, or their ends, wait for a client."""
        return len(self._lifecycle.kept)

    def handle(self, event: vev.Happened, now: float) -> list[vev.Effect]:
        """Take an event that happened at `now`.

        While a step runs only the frames of drafters count; other events wait for its end.
        """
        if isinstance(event, vev.FromDrafter):
            self._take(event, now)
        elif self._steps.running:
            self._late.append(event)
        else:
            self._change(event, now)
        if not self._steps.running:
            self._lifecycle.advance(now)
        return self._take_effects() if self._outbox else []

    def next_step(self, now: float) -> ev.Step | ev.DraftStep | ev.Wait:
        """Return the step that begins now, or until when there is none: for ever, infinity.

        A DraftStep is of the drafter in this process.
        """
        return self._steps.next_step(now)

    def finish(
        self,
        step: ev.Step | ev.DraftStep,
        result: Sequence[ev.Rows] | ev.DraftedRows | SpecmeshError,
        started: float,
        ended: float,
        *,
        other_work: bool = False,
    ) -> list[vev.Effect]:
        """Take the result of a step: for each span its rows, or None without any.

        A session that was to verify and has no rows had no part in the step. An error ends the
        sessions of the step. That of a DraftStep ends their drafts only.

        other_work: the target did more in that time, of its own accord. So it shows no costs.
        """
        self._steps.finish(step, result, started, ended, other_work=other_work)
        return self._after_step(ended)

    def abandon(self, now: float) -> list[vev.Effect]:
        """End all sessions, and forget the step that runs.

        A shell calls it that cannot say any more what its target has done.
        """
        self._steps.abandon()
        self._lifecycle.abandon(now)
        return self._after_step(now)

    def _after_step(self, now: float) -> list[vev.Effect]:
        """Handle the events that came while a step ran; return all effects."""
        late = self._late
        self._late = []
        for event in late:
            self._change(event, now)
        self._lifecycle.advance(now)
        return self._take_effects()

    def _take_effects(self) -> list[vev.Effect]:
        """Return the effects since the last call, and begin anew."""
        effects = self._outbox.copy()
        self._outbox.clear()
        return effects

    def _take(self, event: vev.FromDrafter, now: float) -> None:
        """Hand a frame to its session.

        A frame for a session that is over, or of a drafter that does not draft for it, is counted
        and dropped. Most were on their way when the session ended or changed hands.
        """
        context = self._lifecycle.running.get(event.frame.session)
        if context is None or context.drafter != event.drafter:
            self._stray_frames += 1
            return
        answers = context.session.take(event.frame, now)
        if answers:
            self._lifecycle.carry_out(context, answers, now)

    def _change(self, event: vev.Change, now: float) -> None:
        """Take an event that may begin, change or end sessions; no step runs."""
        lifecycle = self._lifecycle
        drafters = lifecycle.drafters
        match event:
            case vev.Opening():
                lifecycle.open(event, now)
            case vev.Solved():
                lifecycle.solved(event)
            case vev.RoundTrip(drafter, seconds):
                drafters.round_trip(drafter, seconds)
            case vev.ClientLeft(client, reason):
                lifecycle.client_left(client, now, reason)
            case vev.ClientPaused(client, paused):
                lifecycle.client_paused(client, now, paused=paused)
            case vev.SessionPaused(drafter, session, paused):
                lifecycle.session_paused(drafter, session, now, paused=paused)
            case vev.SessionClosed(drafter, session):
                lifecycle.close(drafter, session, now)
            case vev.DrafterJoined():
                drafters.join(event, now)
            case vev.DrafterLeft(drafter, may_return):
                lifecycle.drafter_left(drafter, now, may_return=may_return)
            case vev.DrafterMuted(drafter, muted):
                drafters.mute(drafter, now, muted=muted)
            case vev.ThreadsShared():
                self._steps.threads.share(event)
            case vev.Signal.STOPPING:
                lifecycle.stop(now)
            case vev.Signal.REPORT_WANTED:
                self._outbox.append(self._report(now))
            case vev.Signal.TIME_UP:
                pass  # `handle` does what is due
            case _:
                assert_never(event)

    def _report(self, now: float) -> vev.CoreReport:
        """Return the report for `stats`; new reasons without drafts are logged before it."""
        drafters = self._lifecycle.drafters
        totals = RoundCounts()
        totals.add(self._lifecycle.ended_counts)
        rows: list[dict[str, object]] = []
        draft_n = None
        for context in self._lifecycle.running.values():
            drafters.log_no_drafts(context, now)
            session = context.session
            totals.add(session.counts)
            why = drafters.no_drafts(context)
            rows.append(session_row(session, drafters.name(context), now, why))
            draft_n = session.draft_n
        costs = self._target.costs.undrafted
        earlier = self._target.earlier
        return vev.CoreReport(
            sessions=rows,
            drafters=drafters.reports(),
            kept=self.kept,
            stray_frames=self._stray_frames,
            draft_n=draft_n,
            prefix_cache=self._target.slots.snapshot(),
            totals=totals,
            step_s=costs.seconds(1),
            steps=costs.tables(),
            kv_cache=self._lifecycle.cells.report(),
            suffix_cache=None if earlier is None else earlier.report(),
        )
