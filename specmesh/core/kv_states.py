"""Saved states of sequences: checkpoints, and windows that a sequence is about to lose.

A recurrent sequence is saved while it reads a prompt, which stops for that at certain lengths. One
with windows holds the same lengths for a while without. It is saved there just before it loses the
windows, if at all.
"""

from collections.abc import Callable, Mapping, Sequence

from specmesh.core.kv_checkpoints import Checkpoints
from specmesh.core.kv_orders import KVCopy, KVDrop, KVNarrow, KVOffload, KVOrder, KVSave
from specmesh.core.kv_windows import WindowRoom, WindowSizes


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
        # By sequence, lengths to be saved before it loses the windows there.
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
        """Note that texts may leave the one in a sequence at its present length."""
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
        is_asleep: Callable[[int], bool],
    ) -> list[KVOrder]:
        """Return orders before which there is room in windows.

        What leaves comes first, and saved states are dropped last: others may be copied from them.

        held, rows: as in `WindowRoom.make_room`.
        is_asleep: returns True if a sequence comes back from the host's memory with its next step.
        """
        sources = {order.source for order in orders if isinstance(order, KVCopy)}
        offloads: list[KVOrder] = []
        others: list[KVOrder] = []
        for order in orders:
            leaves = isinstance(order, KVOffload) and order.seq not in sources
            (offloads if leaves else others).append(order)
        room: list[KVOrder] = []
        drops: list[KVOrder] = []
        for narrowed in self.windows.make_room(held, rows):
            seq = narrowed.seq
            for place in self._places.get(seq, ()):
                if self.windows.loses(narrowed, place) and not is_asleep(seq):
                    for order in self.save(seq, place):
                        (drops if isinstance(order, KVDrop) else room).append(order)
            room.append(KVNarrow(seq, narrowed.begin))
        return [*offloads, *room, *others, *drops]
