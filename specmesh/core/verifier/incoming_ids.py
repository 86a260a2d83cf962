"""The ids of an OPEN that a drafter sends before it, as they are too many for the OPEN."""

from dataclasses import replace

from specmesh.core.prefix import Prefix
from specmesh.errors import Busy, PromptTooLong, RequestError
from specmesh.wire import messages as m

KEPT_S = 5.0  # seconds after the last frame for which ids wait for the next one, or the OPEN


class IncomingIds:
    """The IDS frames of one drafter, until their OPEN comes.

    - They are those of one OPEN: a frame with the base 0 begins anew.
    - A frame that does not follow the one before ends them, and so does one id too many.
    - They are forgotten when nothing comes for KEPT_S.
    """

    def __init__(self, most: int) -> None:
        """Keep so many ids at most: those that a session can have."""
        self._most = most
        self._ref = 0
        self._ids = Prefix()
        self._taken_at = 0.0

    def __len__(self) -> int:
        return len(self._ids)

    def take(self, frame: m.Ids, now: float) -> None:
        """Take a frame."""
        if frame.base == 0:
            self._forget()
            self._ref = frame.session
        if not self._continues(frame) or len(self._ids) + len(frame.ids) > self._most:
            self._forget()
            return
        self._ids.extend(frame.ids)
        self._taken_at = now

    def _continues(self, frame: m.Ids) -> bool:
        place = (frame.session, frame.base, frame.prefix_crc)
        return place == (self._ref, len(self._ids), self._ids.crc)

    def _forget(self) -> None:
        self._ref = 0
        self._ids = Prefix()

    def expire(self, now: float) -> None:
        """Forget ids that have waited for too long."""
        if self._ids and now - self._taken_at > KEPT_S:
            self._forget()

    def complete(self, order: m.Open) -> m.Open:
        """Return an OPEN with the ids that came before it, which are forgotten here.

        Raise Busy if not all of them have come, PromptTooLong for more than a session can have, and
        RequestError for an OPEN that has ids too.
        """
        count = order.n_ids
        if count == 0:
            return order
        if order.ids:
            raise RequestError("ids come before an OPEN or in it, not both")
        if count > self._most:
            raise PromptTooLong.of(count, self._most)
        if order.ref != self._ref or count != len(self._ids):
            raise Busy("not all ids of the text have come", "try again in a moment")
        ids = self._ids[0:]
        self._forget()
        return replace(order, ids=ids, n_ids=0)
