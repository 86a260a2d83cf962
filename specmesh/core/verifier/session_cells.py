"""The cells of a target's memory that sessions share: who begins, who is set back, who goes on."""

from collections.abc import Collection, Container, Mapping, Sequence

from specmesh.core import events as ev
from specmesh.core.kv_contents import KVContents
from specmesh.core.kv_slots import KVSlots
from specmesh.core.statistics.snapshot import KVCacheSection
from specmesh.core.verifier import events as vev
from specmesh.core.verifier.session_context import SessionContext

GROWTH = 256
"""Ids of each session that a beginning one leaves cells for: it would soon be set back otherwise.
"""


LEAST_KEPT = 0.75
"""Of the cells that are counted with, the share that stays after a step found none."""

MOST_LOSSES = 4
"""Times that a session may lose its sequence to steps without cells, with no new id in between.

Each time fewer cells are counted with, so others leave it more of them. What does not fit by then
fits never.
"""


class SessionCells:
    """Shares the pool of cells out to sessions; without a pool each has cells of its own.

    - A session begins once there are cells for its prompt, and for GROWTH ids of each session.
    - It takes cells as its text grows.
    - When the pool is full, sequences without a session leave it first, then sessions without
      steps or clients are set back, then the youngest ones. The oldest one always goes on.
    - A session that is set back has no sequence. It reads its ids once more as soon as there are
      cells for them, before any request begins; of several the oldest goes first.
    - Guests have cells of their own.

    setbacks: how often sessions were set back.
    set_back: sessions that are, by number.
    """

    def __init__(
        self,
        slots: KVSlots,
        running: Mapping[int, SessionContext],
        paused: Container[int],
        outbox: list[vev.Effect],
    ) -> None:
        """Begin without sessions.

        running: all sessions by number, the oldest first. paused: the numbers of those without
            steps. outbox: gets the effects.
        """
        self.setbacks = 0
        self.set_back: dict[int, SessionContext] = {}
        self._slots = slots
        self._running = running
        self._paused = paused
        self._outbox = outbox
        # The request or session that found no cells: it finds none until something changes.
        self._short: object = None

    # --- the sessions in the pool

    def memories(self) -> list[tuple[int, KVContents]]:
        """Return the sequences of all sessions, with the ids that they hold for certain."""
        found: list[tuple[int, KVContents]] = []
        for context in self._running.values():
            session = context.session
            if not session.is_set_back:
                found.append((session.slot.seq, session.memory))
        return found

    def claims(self) -> dict[int, int]:
        """Return the cells that each sequence of the pool is to fill, by the text of its session.

        A session claims the cells of its whole prompt from the beginning on.
        """
        claims: dict[int, int] = {}
        for context in self._holders():
            session = context.session
            # A prompt that is read in parts would find its cells taken by others before its last
            # part.
            claims[session.slot.seq] = max(len(session.prefix), session.slot.peak)
        return claims

    def _holders(self) -> list[SessionContext]:
        """Return the sessions that have cells of the pool, the oldest first."""
        holders: list[SessionContext] = []
        for context in self._running.values():
            # Guests have cells of their own, beside the pool.
            if not context.guest and not context.session.is_set_back:
                holders.append(context)
        return holders

    def _rests(self, context: SessionContext) -> bool:
        """Return True if a session needs no steps now: it waits for a reader, or for a client."""
        return context.id in self._paused or context.client is None

    def report(self) -> KVCacheSection | None:
        """Return the section of `stats`; None without a pool."""
        pool = self._slots.pool
        if pool is None:
            return None
        claims = self.claims()
        used = pool.used(claims)
        return KVCacheSection(
            cells=pool.cells,
            used=used,
            idle=self._slots.filled(claims) - used,
            offloaded=sum(pool.away.values()),
            setbacks=self.setbacks,
            set_back=len(self.set_back),
        )

    # --- more cells

    def changed(self) -> None:
        """Note that there may be cells for a session that found none."""
        self._short = None

    def make_room(self, rows: int) -> int:
        """Make room for so many rows of the next step, as far as sequences and sessions may leave.

        Return the cells that are left, those of the rows included.
        """
        while True:
            left = self._slots.make_room(self.claims(), rows)
            # Texts that have ended leave first, in `make_room` of the slots. A session leaves only
            # if they do not suffice.
            context = self._next_to_leave() if left < 0 else None
            if context is None:
                return left + rows
            self._leave(context)

    def _next_to_leave(self) -> SessionContext | None:
        """Return the session that is set back next; None if no other is to be."""
        # A session that waits for its reader loses no time by it. Of the others the youngest has
        # the least to read again.
        resting = self._youngest_at_rest()
        if resting is not None:
            return resting
        holders = self._holders()
        return holders[-1] if len(holders) > 1 else None

    def _youngest_at_rest(self) -> SessionContext | None:
        for context in reversed(self._holders()):
            if self._rests(context):
                return context
        return None

    def _leave(self, context: SessionContext) -> None:
        """Set a session back. Its ids stay as those of an ended one do, while there is room."""
        session = context.session
        # They may still be there when the session goes on. Then only the rest is read again.
        contents = session.memory
        seq = session.slot.seq
        session.set_back()
        self._slots.release(seq, contents)
        self.set_back[context.id] = context
        self.setbacks += 1
        self.changed()
        fields: dict[str, object] = {"session": context.id, "tokens": len(session.prefix)}
        self._outbox.append(vev.Noted("session_set_back", fields))

    def stuck(self, lost: Collection[int]) -> set[int]:
        """Note that the engine has emptied sequences; return those whose sessions cannot go on."""
        found: set[int] = set()
        for context in self._running.values():
            seq = context.session.slot.seq
            if seq in lost and context.lost_sequence() >= MOST_LOSSES:
                found.add(seq)
        return found

    def full(self, lost: Collection[int], *, pool_is_full: bool) -> bool:
        """Make room after a step that the engine had no cells for; return False if nobody leaves.

        lost: sequences that the engine has emptied. pool_is_full: it found no free cells.
        """
        slots = self._slots
        pool = slots.pool
        holders = self._holders()
        helped = bool(lost)
        slots.lost(lost)
        # The engine has emptied their sequences in the middle of a step, so they can only begin
        # anew.
        for context in list(self._running.values()):
            if context.session.slot.seq in lost:
                self._leave(context)
        if pool is None or not pool_is_full:
            return helped
        # Windows and padding may take cells that nobody counts. So many were too many, perhaps.
        filled = slots.filled(self.claims())
        helped = slots.empty_pool() or helped
        if not helped and len(holders) > 1:
            self._leave(holders[-1])
            helped = True
        if helped:
            # The count was wrong once. With the same count the next step would fail again.
            pool.cells = min(pool.cells, max(filled, int(pool.cells * LEAST_KEPT)))
        return helped

    # --- sessions that begin or go on

    def has_room_for(self, opening: vev.Opening) -> bool:
        """Return True if there are cells for a prompt. Sessions that were set back come first."""
        if self._slots.pool is None:
            return True
        # A new session must not take the cells that one has given up for the others.
        if self._next_to_go_on() is not None or self._short is opening:
            return False
        generated = len(opening.ids) - opening.n_prompt
        fits = self._fit(
            opening.ids,
            opening.n_prompt,
            opening.request.params.max_tokens - generated,
            cached=opening.request.params.cache_prompt,
        )
        if not fits:
            self._short = opening
        return fits

    def go_on(self) -> tuple[SessionContext, list[ev.VerifierEffect]] | None:
        """Let the next session that was set back go on; return its effects, None if none can."""
        context = self._next_to_go_on()
        if context is None or self._short is context:
            return None
        session = context.session
        ids = session.prefix.ids
        n_prompt = session.n_prompt
        cached = session.params.cache_prompt
        remaining = session.end - len(ids)
        if not context.guest and not self._fit(ids, n_prompt, remaining, cached=cached):
            self._short = context
            return None
        del self.set_back[context.id]
        # Others may have left for it by now.
        claims = None if context.guest else self.claims()
        slot = self._slots.acquire(ids, n_prompt - 1, self.memories(), cached=cached, claims=claims)
        fields: dict[str, object] = {
            "session": context.id,
            "tokens": len(ids),
            "cached_tokens": slot.length,
        }
        self._outbox.append(vev.Noted("session_went_on", fields))
        return context, session.go_on(slot)

    def _next_to_go_on(self) -> SessionContext | None:
        """Return the oldest session that was set back and needs steps."""
        for number in sorted(self.set_back):
            context = self.set_back[number]
            if not self._rests(context):
                return context
        return None

    def _fit(self, ids: Sequence[int], n_prompt: int, remaining: int, *, cached: bool) -> bool:
        """Return True if there are cells for these ids; sessions at rest are set back for them.

        A session that would be the only one always has cells.

        remaining: ids that its text may get yet.
        """
        while True:
            holders = self._holders()
            if not holders:
                return True
            # Sessions that fit only until their next few tokens would set each other back by turns.
            growth = min(remaining, GROWTH)
            for context in holders:
                session = context.session
                growth += min(session.end - len(session.prefix), GROWTH)
            fits = self._slots.fits(
                ids, n_prompt - 1, self.memories(), self.claims(), cached=cached, growth=growth
            )
            resting = None if fits else self._youngest_at_rest()
            if resting is None:
                return fits
            self._leave(resting)
