"""The frames of sessions on their way to one drafter, of which long SYNCs may have to wait."""

from collections import deque

from specmesh.core.verifier.events import DrafterFrame
from specmesh.wire import messages as m

MOST_ON_WAY = 64 * 1024
"""Bytes of long SYNCs, at least, that may be on their way to a drafter. A TRUTH that comes next is
behind so many and one frame: 8 ms at 100 Mbit/s, less than a step.
"""
SHORT_SYNC = 1024  # ids of a SYNC that never waits
ACKNOWLEDGED_S = 1.0  # seconds without a PONG after which frames count as arrived
MOST_FRAMES = 4096  # frames that wait beyond which the drafter does not keep up
FRAME_BYTES = 24  # bytes of a frame without ids


class OutgoingFrames:
    """The frames of sessions to one drafter.

    - A long SYNC waits while MOST_ON_WAY bytes of others are on their way.
    - A frame waits behind the frames of its own session. Those of other sessions pass.
    - Sessions whose frames wait take turns.
    - A SYNC that does not go on from the frames that wait is a new answer. It replaces the text
      that waits.
    - DONE `moved` replaces all, as the drafter forgets the session.
    - A PONG acknowledges the SYNCs before its PING. A PING is due when frames wait, one at a time.

    waiting: the frames that wait, by session. While there are none, only a SYNC need be `put`.
    """

    def __init__(self) -> None:
        self.waiting: dict[int, deque[DrafterFrame]] = {}
        self._on_way = 0  # bytes of long SYNCs that are not acknowledged
        self._pinged = 0  # how many of them were sent before the newest PING
        self._pinged_at: float | None = None  # when that was sent; None if it was answered

    @property
    def full(self) -> bool:
        """Return True if more frames wait than a drafter that keeps up ever has."""
        return sum(map(len, self.waiting.values())) > MOST_FRAMES

    def put(self, frame: DrafterFrame) -> list[DrafterFrame]:
        """Take a frame; return the frames to be sent now."""
        waiting = self.waiting.get(frame.session)
        if waiting is not None and _replaces(frame, waiting):
            _drop_text(waiting)
            if isinstance(frame, m.Done) or not waiting:
                del self.waiting[frame.session]
                waiting = None
        if waiting is None:
            if not self._has_to_wait(frame):
                return [frame]
            waiting = self.waiting[frame.session] = deque()
        waiting.append(frame)
        return []

    def forget(self, session: int) -> None:
        """Drop the frames of a session that the drafter has closed."""
        self.waiting.pop(session, None)

    def ping_due(self, now: float) -> bool:
        """Return True if a PING is to be sent now; then it counts as sent."""
        if not self.waiting or self._pinged_at is not None:
            return False
        self._pinged = self._on_way
        self._pinged_at = now
        return True

    def acknowledged(self) -> list[DrafterFrame]:
        """Note that the PING was answered; return the frames to be sent now."""
        self._on_way -= self._pinged
        self._pinged = 0
        self._pinged_at = None
        frames: list[DrafterFrame] = []
        before = -1
        while before < len(frames):
            before = len(frames)
            for session in list(self.waiting):
                self._move_next(session, frames)
        return frames

    def expire(self, now: float) -> list[DrafterFrame]:
        """Take a PING that waits for too long as answered; return the frames to be sent now."""
        if self._pinged_at is None or now - self._pinged_at < ACKNOWLEDGED_S:
            return []
        return self.acknowledged()

    def _has_to_wait(self, frame: DrafterFrame) -> bool:
        """Return True if a frame has to wait; else it counts as sent."""
        if not isinstance(frame, m.Sync) or len(frame.ids) <= SHORT_SYNC:
            return False
        if self._on_way >= MOST_ON_WAY:
            return True
        self._on_way += FRAME_BYTES + 4 * len(frame.ids)
        return False

    def _move_next(self, session: int, frames: list[DrafterFrame]) -> None:
        """Move the next frame of a session, if it may go, to `frames`."""
        waiting = self.waiting.pop(session)
        if self._has_to_wait(waiting[0]):
            self.waiting[session] = waiting
            return
        frames.append(waiting.popleft())
        if waiting:
            self.waiting[session] = waiting  # behind the others


def _replaces(frame: DrafterFrame, waiting: deque[DrafterFrame]) -> bool:
    """Return True if a frame makes the text useless that waits."""
    if isinstance(frame, m.Done):
        return frame.finish_reason == m.FinishReason.MOVED
    if not isinstance(frame, m.Sync):
        return False
    for before in reversed(waiting):
        if isinstance(before, m.Sync | m.Truth):
            return frame.base != before.base + len(before.ids)
    return True


def _drop_text(waiting: deque[DrafterFrame]) -> None:
    """Drop the frames with committed ids and their log-probabilities."""
    kept = [frame for frame in waiting if isinstance(frame, m.Nack | m.Opened | m.Done)]
    waiting.clear()
    waiting.extend(kept)
