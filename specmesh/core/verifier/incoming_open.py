"""The parts of an OPEN that a drafter sends before it, as they are too long for one frame.

They come in order on one connection, and none is answered; `request_frames.py` shows them. What
a peer can cost is bounded before it is known whether an OPEN will ever come: one OPEN's parts for
each drafter, no more ids than a session can have, no more bytes than an OPEN may, and a few
seconds. Whatever breaks the order is dropped without an answer; the OPEN that misses its parts
gets one.
"""

from collections.abc import Callable
from dataclasses import replace

from specmesh.core.prefix import Prefix
from specmesh.errors import Busy, FrameError, PromptTooLong, RequestError
from specmesh.wire import messages as m

KEPT_S = 5.0  # seconds after the last frame for which parts wait for the next one, or the OPEN


class IncomingOpen:
    """The IDS and BODY frames of one drafter, until their OPEN comes.

    - They are those of one OPEN: a frame with another `ref` begins anew.
    - A frame with the base 0 begins the ids, or the body, anew.
    - A frame that does not follow the one before of its kind ends both, and so does one too many.
    - They are forgotten when nothing comes for KEPT_S.
    """

    def __init__(self, most_ids: int, read: Callable[[bytearray], m.Open]) -> None:
        """Begin empty.

        most_ids: those that a session can have.
        read: returns the OPEN of a JSON body; raises FrameError for a body that is none.
        """
        self._read = read
        self._most_ids = most_ids
        self._ref = 0
        self._ids = Prefix()
        self._body = bytearray()
        self._taken_at = 0.0

    @property
    def n_ids(self) -> int:
        """Return the number of ids that are kept."""
        return len(self._ids)

    @property
    def n_body(self) -> int:
        """Return the bytes of the body that are kept."""
        return len(self._body)

    def take_ids(self, frame: m.Ids, now: float) -> None:
        """Take a frame of ids."""
        self._begin(frame.session)
        if frame.base == 0:
            self._ids = Prefix()
        follows = (frame.base, frame.prefix_crc) == (len(self._ids), self._ids.crc)
        if not follows or len(self._ids) + len(frame.ids) > self._most_ids:
            self._forget()
            return
        self._ids.extend(frame.ids)
        self._taken_at = now

    def take_body(self, frame: m.Body, now: float) -> None:
        """Take a piece of the body."""
        self._begin(frame.ref)
        piece = frame.text.encode()
        if frame.base == 0:
            self._body.clear()
        follows = frame.base == len(self._body)
        if not follows or len(self._body) + len(piece) > m.MAX_OPEN_BODY:
            self._forget()
            return
        self._body += piece
        self._taken_at = now

    def _begin(self, ref: int) -> None:
        """Forget the parts of another OPEN."""
        if ref != self._ref:
            self._forget()
            self._ref = ref

    def _forget(self) -> None:
        """Drop all parts; those that still come of the same OPEN follow nothing."""
        self._ref = 0
        self._ids = Prefix()
        self._body = bytearray()

    def expire(self, now: float) -> None:
        """Forget parts that have waited for too long."""
        if (self._ids or self._body) and now - self._taken_at > KEPT_S:
            self._forget()

    def complete(self, order: m.Open) -> m.Open:
        """Return an OPEN with the parts that came before it, which are forgotten here.

        Raise Busy if not all of them have come, PromptTooLong for more ids than a session can have,
        and RequestError for an OPEN that has in it what came before it, or whose body is none.
        """
        whole = order
        if whole.n_body:
            whole = self._with_body(whole)
        if whole.n_ids:
            whole = self._with_ids(whole)
        if whole is not order:
            self._forget()
        return whole

    def _with_body(self, order: m.Open) -> m.Open:
        """Return the OPEN that came as a body before this one, which has nothing else in it."""
        if order != m.Open(ref=order.ref, prompt="", options={}, n_body=order.n_body):
            raise RequestError("the body of an OPEN comes before it or in it, not both")
        if order.n_body > m.MAX_OPEN_BODY:
            raise RequestError(f"the body of an OPEN has at most {m.MAX_OPEN_BODY} bytes")
        if (order.ref, order.n_body) != (self._ref, len(self._body)):
            raise Busy("not all of the request has come", "try again in a moment")
        try:
            whole = self._read(self._body)
        except FrameError as error:
            raise RequestError(f"the body before an OPEN is none: {error.seen}") from None
        if whole.ref != order.ref or whole.n_body:
            raise RequestError("the body before an OPEN is that of another one")
        return whole

    def _with_ids(self, order: m.Open) -> m.Open:
        """Return an OPEN with the ids that came before it."""
        count = order.n_ids
        if order.ids:
            raise RequestError("ids come before an OPEN or in it, not both")
        if count > self._most_ids:
            raise PromptTooLong.of(count, self._most_ids)
        if (order.ref, count) != (self._ref, len(self._ids)):
            raise Busy("not all ids of the text have come", "try again in a moment")
        return replace(order, ids=self._ids[0:], n_ids=0)
