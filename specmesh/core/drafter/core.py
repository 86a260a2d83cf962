"""The drafter's sessions with all its verifiers, and the steps of the draft model that they share.

- `handle` takes an event.
- `next_step` returns what the draft model runs next.
- `finish` takes the result.

`handle` and `finish` return effects: frames to send, and work for others. One step runs at a time.
The events that come meanwhile are handled before it is finished. So a session may have ended by
then, or its text may have grown past the step's drafts, or contradict them:

- The result of a session that is gone is dropped. Its slot was released, and cut for the next one.
- A session compares the drafts with its chain as that is by then, and keeps what agrees.
- A row whose ids were cut meanwhile brought nothing. The session feeds the rest again.

Steps serve sessions of several verifiers, whose ids mean different tokens. So all rows of one step
belong to one verifier, and the engine is asked in its vocabulary.
"""

from math import inf
from typing import NamedTuple, assert_never

from specmesh.core import events as ev
from specmesh.core.drafter.session import (
    DrafterSession,
    DraftingEvent,
    DraftingState,
    DraftLimits,
)
from specmesh.core.kv_contents import NO_CONTENTS, KVContents
from specmesh.core.kv_orders import KVCopy, KVCut, KVDrop, KVNarrow, KVOffload, KVSave
from specmesh.core.kv_slots import KVSlots
from specmesh.core.statistics.snapshot import WindowSection
from specmesh.errors import SpecmeshError
from specmesh.wire import messages as m

REPORT_INTERVAL = 0.25  # seconds between two reports of work, while no session ends


class _Orders(NamedTuple):
    """The orders of the slots, by kind, as a step carries them out."""

    cuts: tuple[KVCut, ...] = ()
    offloads: tuple[KVOffload, ...] = ()
    saves: tuple[KVSave | KVDrop, ...] = ()


class DrafterCore:
    """The sessions of a drafter, and the steps of its draft model.

    - Each session that drafts has a slot. If none is free, a session without drafts to make gives
      its slot up.
    - Sessions take turns: those with a row in a step come last for the next one.
    - Work is reported when a session ends, when slots have changed, and every REPORT_INTERVAL while
      there are steps.
    """

    def __init__(self, limits: DraftLimits, slots: KVSlots) -> None:
        """Begin without sessions; slots: the draft model's sequences."""
        self._slots = slots
        self._sessions: dict[ev.SessionKey, DrafterSession] = {}  # in the order of their turns
        self._reader = limits.reader()  # reads windows, for all sessions
        self._limits = limits
        self._round_trips: dict[int, float] = {}
        self._speaks: set[int] = set()  # upstreams in whose ids the draft model can draft
        self._threads: int | None = None  # of the next step, if they change
        self._work = ev.WorkReport()  # since the last report
        self._reported_at = 0.0

    def sessions(self) -> dict[ev.SessionKey, DrafterSession]:
        """Return the sessions by key, in the order of their turns."""
        return dict(self._sessions)

    def windows(self) -> WindowSection:
        """Return the counts of the windows that were read, for all sessions."""
        return self._reader.snapshot()

    # --- events

    def handle(self, event: ev.CoreEvent, now: float) -> list[ev.CoreEffect]:
        """Take an event."""
        match event:
            case ev.FrameReceived(key, frame):
                session = self._sessions.get(key)
                if session is None:
                    return []
                return self._take_frame(session, frame, now)
            case ev.OpenSession(key=key):
                round_trip = self._round_trips.get(key.upstream, 0.0)
                self._sessions[key] = DrafterSession(event, self._reader, self._slots, round_trip)
            case ev.CloseSession(key):
                return self._close(key, now)
            case ev.CompiledGrammar(key, constraint):
                session = self._sessions.get(key)
                if session is not None:
                    session.constrain(constraint)
            case ev.UpstreamChanged():
                return self._change(event, now)
            case ev.UseThreads(threads):
                self._threads = threads
            case _:
                assert_never(event)
        return []

    def _compile(self, session: DrafterSession) -> list[ev.CoreEffect]:
        """Have a session's grammar compiled, now that drafts are wanted.

        Compiling takes long, and a text that nobody drafts for needs no grammar.
        """
        key = session.opened.key
        if key.upstream not in self._speaks:
            return []
        grammar = session.take_grammar()
        return [] if grammar is None else [(key, grammar)]

    def _take_frame(
        self, session: DrafterSession, frame: m.Truth | m.Sync | m.Nack, now: float
    ) -> list[ev.CoreEffect]:
        """Have a session take a frame; count the round that it ends, if any."""
        key = session.opened.key
        effects: list[ev.CoreEffect] = []
        for effect in session.handle(frame, now):
            if isinstance(effect, ev.Learned):
                if not effect.sync:
                    self._work.rounds += 1
                    self._work.accepted += effect.own
                    self._work.committed += len(effect.ids)
                if not session.opened.learns:
                    continue
            effects.append((key, effect))
        if session.grammar is not None and session.chain.draft_n:
            effects += self._compile(session)
        return effects

    def _close(self, key: ev.SessionKey, now: float) -> list[ev.CoreEffect]:
        """End a session, and report: there may be no step for long, and `stats` would lack it."""
        effects = list[ev.CoreEffect]()
        session = self._sessions.pop(key, None)
        if session is not None:
            self._release(session)
            closed = ev.DraftingEnded(session.chain.draft_tokens, session.chain.draft_seconds)
            effects.append((key, closed))
        effects.append(self._report(now))
        return effects

    def _change(self, event: ev.UpstreamChanged, now: float) -> list[ev.CoreEffect]:
        """Note a verifier's round trip, and whether the draft model can draft in its ids."""
        upstream = event.upstream
        self._round_trips[upstream] = event.round_trip
        for key, session in self._sessions.items():
            if key.upstream == upstream:
                session.chain.measured(event.round_trip)
        if event.speaks:
            self._speaks.add(upstream)
        elif upstream in self._speaks:
            self._speaks.discard(upstream)
            # The ids that ended sessions have left may come to mean other tokens.
            self._slots.clear()
            return [self._report(now)]
        return []

    def _report(self, now: float) -> ev.WorkReport:
        """Return the report of the work since the last one."""
        report = self._work
        if self._reader.windows.size:
            report.windows = self.windows()
        self._work = ev.WorkReport()
        if self._slots.changed:
            report.prefix_cache = self._slots.snapshot()
        self._reported_at = now
        return report

    # --- steps

    def next_step(self, _: float) -> ev.DraftStep | ev.Wait:
        """Return the step that begins now; sessions without drafts to make read nothing."""
        rows = self._rows()
        orders = _Orders()
        if self._slots.has_orders:
            orders = self._orders()
        threads = self._threads
        if not rows and not any(orders) and threads is None:
            return ev.Wait(inf)
        for row in rows:
            # The others come first in the next step.
            self._sessions[row.key] = self._sessions.pop(row.key)
        self._threads = None
        return ev.DraftStep(
            upstream=rows[0].key.upstream if rows else -1,
            cuts=orders.cuts,
            rows=tuple(rows),
            threads=threads,
            offloads=orders.offloads,
            saves=orders.saves,
        )

    def _rows(self) -> list[ev.DraftRow]:
        """Return the row of the first session that has one, and those that may join it.

        - All are in the ids of one verifier.
        - A session on trial has a step to itself, and so has a row that drafts nothing.
        - The rows together are no longer than a step of the draft model.
        """
        rows: list[ev.DraftRow] = []
        room = self._limits.n_batch
        for key, session in self._sessions.items():
            if not session.chain.draft_n or key.upstream not in self._speaks:
                continue
            if rows and key.upstream != rows[0].key.upstream:
                continue
            if session.reading.slot is None and not self._give_slot(session):
                continue
            reading = session.reading
            if reading.spare is not None or session.chain.n_truth > reading.quiet_until:
                reading.attend(self._take_spare)
            on_trial = session.state is DraftingState.ON_TRIAL
            if rows and on_trial:
                continue
            row = session.plan(room if rows else None)
            if row is None:
                continue
            if reading.slot is not None and reading.slot.seq == row.seq:
                self._slots.reached(reading.slot)
            rows.append(row)
            room -= len(row.ids)
            if on_trial or row.sampler is None or not self._limits.batches:
                break
        return rows

    def _orders(self) -> _Orders:
        """Return the orders of the slots, with at most one cut of a sequence."""
        lengths = dict[int, int]()
        offloads = list[KVOffload]()
        saves = list[KVSave | KVDrop]()
        for order in self._slots.orders():
            match order:
                case KVCut(seq, length):
                    # An engine is asked for one cut before its rows: the shortest holds for all.
                    lengths[seq] = min(length, lengths.get(seq, length))
                case KVSave() | KVDrop():
                    saves.append(order)
                case KVOffload():
                    offloads.append(order)
                case KVCopy() | KVNarrow():
                    raise AssertionError("a draft model copies nothing, and has room")
                case _:
                    assert_never(order)
        cuts = [KVCut(seq, length) for seq, length in lengths.items()]
        return _Orders(tuple(cuts), tuple(offloads), tuple(saves))

    def finish(
        self,
        step: ev.DraftStep,
        result: ev.DraftedRows | SpecmeshError,
        started: float,
        ended: float,
    ) -> list[ev.CoreEffect]:
        """Take the result of a step, or the error that it failed with."""
        if isinstance(result, SpecmeshError):
            return self._fail(step, result)
        for seq, held in result.held.items():
            self._slots.relocated(seq, held)
        effects: list[ev.CoreEffect] = []
        draft_tokens = 0
        for row, tokens in zip(step.rows, result.tokens, strict=True):
            session = self._sessions.get(row.key)
            if session is None:
                continue  # it has ended meanwhile
            # It has drafted by itself, so it was another session that broke the shared step.
            if tokens and session.state is DraftingState.ON_TRIAL:
                session.advance(DraftingEvent.DRAFTED)
            for frame in session.drafted(row, tokens, started, ended):
                effects.append((row.key, frame))
            draft_tokens += len(tokens)
        work = self._work
        work.ended = ended
        work.seconds += ended - started
        for row in step.rows:
            work.read += len(row.ids)
        if draft_tokens:
            work.draft_tokens += draft_tokens
            work.draft_seconds += ended - started
        if self._slots.changed or ended - self._reported_at > REPORT_INTERVAL:
            effects.append(self._report(ended))
        return effects

    def _fail(self, step: ev.DraftStep, error: SpecmeshError) -> list[ev.CoreEffect]:
        """Find the session that a step failed for.

        - A session that had the step to itself gets no more drafts; its verifier goes on without.
        - Sessions that shared it try again, each in a step of its own.
        """
        effects = list[ev.CoreEffect]()
        shared = len(step.rows) > 1
        for row in step.rows:
            session = self._sessions.get(row.key)
            if session is None:
                continue  # it has ended meanwhile
            # Which row broke the step cannot be seen. Nothing that it touched is kept for others.
            self._release(session, broken=True)
            if shared:
                session.advance(DraftingEvent.SHARED_STEP_FAILED)
                continue
            session.advance(DraftingEvent.OWN_STEP_FAILED)
            failure = ev.Noted("drafting_failed", {"error": str(error)}, "error")
            effects.append((row.key, failure))
        for cut in step.cuts:  # perhaps they were not carried out
            self._slots.cut(cut.seq, cut.length)
        return effects

    # --- KV slots of the draft model

    def _give_slot(self, session: DrafterSession) -> bool:
        """Give a session a slot, perhaps that of one without drafts to make.

        Return False if there is none, or the session needs none.
        """
        opened = session.opened
        if session.state is DraftingState.UNDRAFTABLE:
            return False
        # Its prompt is still on its way, perhaps in many frames.
        if session.chain.n_truth < max(opened.n_prompt, 1):
            return False
        # So many sequences stay free for windows.
        if self._slots.free <= self._reader.spares_left and not self._take_slot():
            return False
        slot = self._slots.acquire(
            session.chain.truth,
            opened.n_prompt,
            cached=opened.cached,
            crc_at=session.chain.known.crc_at,
        )
        session.reading.take(slot)
        session.advance(DraftingEvent.SLOT_GIVEN)
        return True

    def _take_spare(self) -> bool:
        """Take the spare sequence of a session without drafts to make; False if none has one."""
        for session in self._sessions.values():
            if session.reading.spare is not None and not session.chain.draft_n:
                session.reading.release_spare()
                return True
        return False

    def _take_slot(self) -> bool:
        """Take the slot of a session without drafts to make; return False if none has one."""
        for session in self._sessions.values():
            if session.reading.slot is not None and not session.chain.draft_n:
                self._release(session)
                session.advance(DraftingEvent.SLOT_TAKEN)
                return True
        return False

    def _release(self, session: DrafterSession, *, broken: bool = False) -> None:
        """Give a session's slot back, with the committed ids that it holds."""
        session.reading.release_spare()
        slot = session.reading.slot
        if slot is None:
            return
        opened = session.opened
        contents = NO_CONTENTS
        if opened.cached and not broken:
            # Drafts beyond the committed text may be wrong. Another text must not begin with them.
            end = min(slot.end, session.chain.n_truth)
            ids = session.chain.ids[slot.start : end]
            if ids:
                contents = KVContents(ids, opened.n_prompt, session.reading.begin_of(slot))
        self._slots.cut(slot.seq, contents.cells)
        self._slots.release(slot.seq, contents)
        session.reading.leave()
