"""The rows of a target's steps that its own head has not read yet: `UnreadRows`."""

from collections.abc import Collection
from dataclasses import dataclass

from specmesh.core.kv_slots import KVSlot
from specmesh.core.verifier.session import VerifierSession


@dataclass(slots=True)
class _Rows:
    """Rows of a session's sequence, at the positions [begin, end) of its text."""

    slot: KVSlot
    begin: int
    end: int


class UnreadRows:
    """By session, the rows that the head has not read, as far as it can.

    An engine has the hidden states of its newest step, and of so many rows before. Older rows are
    let go: then the head begins anew behind them.
    """

    def __init__(self, kept: int) -> None:
        """Begin without rows. kept: rows before the newest step."""
        self._kept = kept
        self._rows: dict[int, _Rows] = {}

    def note(self, session: VerifierSession, begin: int, end: int) -> None:
        """Note that a step had the rows [begin, end) of a session.

        Rows of its step before from `begin` on were rejected. Those of another sequence, in which
        the session was before, are let go.
        """
        rows = self._rows.get(session.id)
        slot = session.slot
        if rows is None or rows.slot is not slot or not rows.begin <= begin <= rows.end:
            rows = self._rows[session.id] = _Rows(slot, begin, end)
        rows.begin = max(rows.begin, begin - self._kept)
        rows.end = end

    def forget_others(self, sessions: Collection[int]) -> None:
        """Forget the rows of all but these sessions."""
        for number in self._rows.keys() - sessions:
            del self._rows[number]

    def of(self, session: VerifierSession) -> range:
        """Return the positions of a session's rows that are of its text."""
        rows = self._rows.get(session.id)
        if rows is None or rows.slot is not session.slot:
            return range(0)
        # The row of an id is read together with the next id.
        return range(rows.begin, min(rows.end, len(session.prefix) - 1))

    def read(self, session: VerifierSession, end: int) -> None:
        """Note that the rows before the position `end` are read, or not wanted."""
        rows = self._rows.get(session.id)
        if rows is not None:
            rows.begin = max(rows.begin, end)

    def is_full(self, session: VerifierSession) -> bool:
        """Return True if the next step costs rows that are not read."""
        return len(self.of(session)) > self._kept
