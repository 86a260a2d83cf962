"""Places of a drafter's sessions in the draft model."""

from collections.abc import Iterable

from specmesh.core.scheduling.kv_slots import NO_CONTENTS, KVContents, KVSlots
from specmesh.daemons.drafter.draft_session import DraftSession
from specmesh.engines.base import DraftEngine


class DraftSlots:
    """Gives sessions the engine's `places`, which others may share; `DraftSession.seq` is the sequence, or None."""

    def __init__(self, engine: DraftEngine, places: KVSlots) -> None:
        self._engine, self._places = engine, places

    def take(self, live: DraftSession, others: Iterable[DraftSession]) -> bool:
        """Give a session a place, with what was left there of its prompt; whether it has one now. If need be that of
        one of the others that no drafts are asked for.

        None before its prompt is here, nor for one that has nothing to do: that would cost another's prompt.
        """
        machine = live.machine
        if live.undraftable or not machine.active or machine.n_truth < max(live.n_prompt, 1):
            return False
        if not self._places and machine.draft_n:
            idle = (other for other in others if other.seq is not None and not other.machine.draft_n)
            spare = next(idle, None)
            if spare is not None:
                self.release(spare)
        if not self._places:
            return False
        live.seq, held = self._places.take(machine.truth, live.n_prompt, cached=live.cache_prompt)
        self._cut()
        machine.relocated(self._engine.trim(live.seq, held))
        return True

    def release(self, live: DraftSession, *, broken: bool = False) -> None:
        """Give its place back, with the truth that it holds; the session is followed without drafting."""
        if live.seq is None:
            return
        machine, seq = live.machine, live.seq
        keeps = live.cache_prompt and not broken
        held = self._engine.trim(seq, min(machine.held, machine.n_truth) if keeps else 0)
        memory = KVContents(machine.truth[:held], live.n_prompt) if held else NO_CONTENTS
        self._places.give_back(seq, memory)
        self._cut()
        live.seq = None

    def clear(self) -> None:
        self._places.clear()
        self._cut()

    def _cut(self) -> None:
        for order in self._places.orders():
            self._engine.trim(order.seq, order.length)
