"""Simulated time, and a link that drops, delays, duplicates, reorders and corrupts real frames."""

import heapq
from dataclasses import dataclass
from itertools import count

from specmesh.errors import FrameError
from specmesh.wire.codec import decode, encode


class Clock:
    def __init__(self):
        self.now, self.events = 0.0, 0
        self._queue, self._order = [], count()

    def at(self, time, action):
        heapq.heappush(self._queue, (max(time, self.now), next(self._order), action))

    def run(self, done, limit):
        for _ in range(limit):
            if done() or not self._queue:
                return
            self.now, _, action = heapq.heappop(self._queue)
            self.events += 1
            action()


@dataclass(frozen=True)
class Faults:
    """Probabilities per frame; a late frame is delayed by up to `late_s` and so overtaken by others."""

    drop: float = 0.0
    double: float = 0.0
    late: float = 0.0
    damage: float = 0.0
    late_s: float = 0.3


QUIET = Faults()


class Link:
    """One direction: takes messages, delivers frames to `receive` after half a round trip, or worse."""

    def __init__(self, world, receive, faults, lose=()):
        self.world, self.receive, self.faults = world, receive, faults
        self.lose = lose
        self.open = True

    def send(self, message):
        self.send_raw(encode(message))

    def send_raw(self, frame):
        world, rng = self.world, self.world.rng
        faults = QUIET if world.quiet else self.faults
        if rng.random() < faults.drop or (not world.quiet and frame[3:4] in self.lose):
            world.seen["lost"] += 1
            return
        for _ in range(1 + (rng.random() < faults.double)):
            late = rng.random() * faults.late_s if rng.random() < faults.late else 0.0
            sent = damaged(frame, rng) if frame and rng.random() < faults.damage else frame
            world.clock.at(world.clock.now + world.round_trip / 2 + late, lambda sent=sent: self.deliver(sent))

    def deliver(self, frame):
        if not self.open:
            return
        try:
            message = decode(frame)
        except FrameError as error:
            self.world.seen[error.reason] += 1
            return
        self.receive(message)


def damaged(frame, rng):
    bytes_ = bytearray(frame)
    for _ in range(rng.randint(1, 3)):
        bytes_[rng.randrange(len(bytes_))] ^= rng.randint(1, 255)
    return bytes(bytes_)
