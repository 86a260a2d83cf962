"""Orders of a core to its engine about sequences, to be carried out before the next step."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KVCut:
    """An order to keep the first `length` cells of a sequence."""

    seq: int
    length: int


@dataclass(frozen=True, slots=True)
class KVCopy:
    """An order to begin an empty sequence with the first `length` ids of the sequence `source`."""

    seq: int
    source: int
    length: int


@dataclass(frozen=True, slots=True)
class KVOffload:
    """Leave to move a sequence to memory that costs no step anything, until it is used.

    now: it is no leave but an order, as the cells of the sequence are wanted.
    """

    seq: int
    now: bool = False


@dataclass(frozen=True, slots=True)
class KVSave:
    """An order to save the state of a sequence after its first `length` ids."""

    seq: int
    length: int


@dataclass(frozen=True, slots=True)
class KVDrop:
    """An order to forget the state that was saved of a sequence when it held `length` ids."""

    seq: int
    length: int


@dataclass(frozen=True, slots=True)
class KVNarrow:
    """Leave to lose the ids of a sequence before `begin` in layers with a sliding window."""

    seq: int
    begin: int


KVOrder = KVCut | KVCopy | KVOffload | KVSave | KVDrop | KVNarrow
