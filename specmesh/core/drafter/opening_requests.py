"""Requests that a verifier was sent an OPEN for, and that have no session yet.

OPENED or ERROR answers, and names the request by its `ref`. The frames of a long request come
before its OPEN. A verifier bounds the ids and bytes that it takes in a second. It drops what comes
faster, and with it the whole request. So after such frames the next long request waits.
"""

import itertools
from collections.abc import Iterable
from typing import assert_never

from specmesh.core.drafter.placement import Placement, PlacementEnded, PlacementRefused
from specmesh.core.drafter.upstream_events import UpstreamEffect
from specmesh.core.drafter.upstream_facts import UpstreamFacts
from specmesh.core.events import Noted
from specmesh.core.request_frames import (
    BODY_BYTES_PER_S,
    TEXT_IDS_PER_S,
    OpenPart,
    WriteOpen,
    frames_of,
    open_of,
)
from specmesh.errors import NotPassedOn, UnfitMessage
from specmesh.wire import messages as m

MAX_REF = 0xFFFFFFFF  # refs wrap around on the wire


class OpeningRequests:
    """The requests that wait for an answer of the verifier with this number."""

    def __init__(self, upstream: int, write: WriteOpen) -> None:
        self._upstream = upstream
        self._write = write
        self._placements: dict[int, Placement] = {}  # by ref
        self._refs = itertools.count(1)
        self._next_text_at = 0.0

    @property
    def placements(self) -> list[Placement]:
        """Return the requests, the oldest first."""
        return list(self._placements.values())

    def has_room(self, now: float) -> bool:
        """Return True if the verifier takes the frames of another long request now."""
        return now >= self._next_text_at

    def place(
        self, placement: Placement, verifier: UpstreamFacts, now: float
    ) -> list[UpstreamEffect]:
        """Ask the verifier for a session; a request that its frames do not hold is refused."""
        effects: list[UpstreamEffect] = []
        if placement.returns:
            fields: dict[str, object] = {
                "request": placement.request.label,
                "verifier": verifier.address,
            }
            effects.append(Noted("session_goes_elsewhere", fields))
        # A ref names the OPEN in its answers, and in a CLOSE before these have come.
        ref = next(self._refs) & MAX_REF
        info = verifier.info
        takes_ids = info is not None and info.takes_ids
        takes_body = info is not None and info.takes_body
        try:
            order = open_of(placement.request, ref)
            frames = frames_of(order, self._write, takes_ids=takes_ids, takes_body=takes_body)
        except UnfitMessage as wrong:
            what = f"the request is longer than what a drafter can pass on ({wrong})"
            error = NotPassedOn(what, remedy="ask the verifier")
            return [*effects, PlacementRefused(placement.number, self._upstream, error)]
        self._placements[ref] = placement
        if len(frames) > 1:
            self._next_text_at = now + _sending_seconds(frames)
        return [*effects, *frames]

    def withdraw(self, number: int) -> list[UpstreamEffect]:
        """Withdraw the request of this number, if it waits here."""
        effects: list[UpstreamEffect] = []
        for ref, placement in list(self._placements.items()):
            if placement.number == number:
                del self._placements[ref]
                effects += [m.Close(0, ref), PlacementEnded(number)]
        return effects

    def take(self, ref: int) -> Placement | None:
        """Return the request that is answered; None if none waits with this ref."""
        return self._placements.pop(ref, None)

    def take_all(self) -> list[Placement]:
        """Return all requests, which nobody answers any more."""
        placements = self.placements
        self._placements.clear()
        return placements


def _sending_seconds(frames: Iterable[OpenPart | m.Open]) -> float:
    """Return the time that the verifier has to be given for the frames of a long request."""
    seconds = 0.0
    for frame in frames:
        match frame:
            case m.Ids():
                seconds += len(frame.ids) / TEXT_IDS_PER_S
            case m.Open():
                seconds += frame.n_body / BODY_BYTES_PER_S
            case m.Body():
                pass  # the OPEN has the bytes of all of them
            case _:
                assert_never(frame)
    return seconds
