"""Saved states of sequences: checkpoints, and windows that a sequence is about to lose.

A recurrent sequence is saved while it reads a prompt: it stops at certain lengths for that. A
sequence with windows can be cut to the same lengths for a while without a saved state. It is saved
there just before it loses the windows, if at all.
"""

from collections.abc import Callable, Mapping, Sequence

from specmesh.core.kv_checkpoints import Checkpoints
from specmesh.core.kv_orders import KVCopy, KVDrop, KVNarrow, KVOffload, KVOrder, KVSave
from specmesh.core.kv_windows import Narrowed, WindowRoom, WindowSizes


class SavedStates:
    """The lengths at which sequences are saved, and the orders for that.

    checkpoints: the states that are saved. windows: the ids that sequences hold in windows.
    """

    def __init__(self, checkpoints: int, windows: WindowSizes, *, whole: bool) -> None:
        """Begin with no states.

        checkpoints: as many as may be saved.
        whole: only whole sequences are reused, or checkpoints of them.
        """
        self.checkpoints = Checkpoints(checkpoints)
        self.windows = WindowRoom(windows)
        self._whole = whole
        # By sequence, the lengths at which it is to be saved before it loses the windows there.
        self._places: dict[int, list[int]] = {}

    def begun(self, seq: int, length: int, end: int, common: int) -> list[int]:
        """Return the lengths at which a sequence stops to be saved while it reads a prompt.

        length, end, common: as in `Checkpoints.stops`.
        """
        if self._whole:
            return self.checkpoints.stops(length, end, common)
        places = self.checkpoints.places(length, end, common)
        self._places.setdefault(seq, []).extend(places)
        return []

    def note_place(self, seq: int, length: int) -> list[KVOrder]:
        """Note that other texts may begin like a sequence up to its present length.

        Return the orders that save it now, if it has to be saved now.
        """
        if self._whole:
            return self.save(seq, length)
        if self.checkpoints:
            self._places.setdefault(seq, []).append(length)
        return []

    def save(self, seq: int, length: int) -> list[KVOrder]:
        """Return the orders that save a sequence, if that pays, and drop others for it."""
        if not self.checkpoints:
            return []
        dropped, worth_saving = self.checkpoints.add(seq, length)
        orders: list[KVOrder] = [KVDrop(other, saved) for other, saved in dropped]
        if worth_saving:
            orders.append(KVSave(seq, length))
        return orders

    def copied(self, seq: int, source: int, length: int) -> None:
        """Note that an empty sequence begins with `length` ids of another one."""
        self.checkpoints.copy(seq, source, length)
        self.windows.copy(seq, length)
        places = self._places.get(source, ())
        self._places[seq] = [place for place in places if place <= length]

    def cut(self, seq: int, length: int) -> None:
        """Note that a sequence keeps its first `length` ids."""
        self.checkpoints.cut(seq, length)
        if length == 0:
            self.windows.empty(seq)
        places = self._places.get(seq)
        if places:
            self._places[seq] = [place for place in places if place <= length]

    def with_room(
        self,
        orders: Sequence[KVOrder],
        held: Mapping[int, int],
        rows: int,
        loads_next: Callable[[int], bool],
    ) -> list[KVOrder]:
        """Return orders before a step, with those that make room for it in windows.

        Sequences are offloaded first, unless others are copied from them. Saved states are dropped
        last, as others may be copied from these too.

        held, rows: as in `WindowRoom.make_room`.
        loads_next: returns True if a sequence is loaded from the host's memory with its next step.
        """
        sources = {order.source for order in orders if isinstance(order, KVCopy)}
        offloads: list[KVOrder] = []
        others: list[KVOrder] = []
        for order in orders:
            if isinstance(order, KVOffload) and order.seq not in sources:
                offloads.append(order)
            else:
                others.append(order)
        room: list[KVOrder] = []
        drops: list[KVOrder] = []
        for narrowed in self.windows.make_room(held, rows):
            saving = [] if loads_next(narrowed.seq) else self._saved_before(narrowed)
            for order in saving:
                if isinstance(order, KVDrop):
                    drops.append(order)
                else:
                    room.append(order)
            room.append(KVNarrow(narrowed.seq, narrowed.begin))
        return [*offloads, *room, *others, *drops]

    def _saved_before(self, narrowed: Narrowed) -> list[KVOrder]:
        """Return the orders that save a sequence at the places whose windows it loses."""
        orders: list[KVOrder] = []
        for place in self._places.get(narrowed.seq, ()):
            if self.windows.loses(narrowed, place):
                orders += self.save(narrowed.seq, place)
        return orders
