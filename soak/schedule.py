"""What will happen, from a seed: the faults of a pair, and what its clients ask for."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

MEAN_GAP_S = 6.0
"""Seconds between two faults of one lane, on average, beside those that the faults themselves take."""

WAITING = 0.75
"""Share of clients that wait for a daemon that goes away."""

SETTLE_S = 1.0
"""Seconds between two faults of one lane, at least."""


class Kind(StrEnum):
    KILL = "kill"
    STOP = "stop"
    PARTITION = "partition"
    RESET = "reset"
    DELAY = "delay"


class Lane(StrEnum):
    """Whom. The faults of one lane follow each other, those of different lanes overlap as it happens."""

    VERIFIER = "verifier"
    DRAFTER = "drafter"
    NETWORK = "network"


SPANS: dict[Kind, tuple[float, float]] = {
    Kind.KILL: (0.0, 2.0),
    Kind.STOP: (0.1, 6.0),
    Kind.PARTITION: (0.1, 8.0),
    Kind.RESET: (0.0, 0.0),
    Kind.DELAY: (1.0, 10.0),
}
"""Seconds that a fault lasts, at least and at most: until the process is started or goes on, or the network heals."""

KILLS: dict[Lane, tuple[Kind, ...]] = {
    Lane.VERIFIER: (Kind.KILL, Kind.KILL, Kind.STOP),
    Lane.DRAFTER: (Kind.KILL, Kind.KILL, Kind.STOP),
    Lane.NETWORK: (Kind.PARTITION, Kind.RESET, Kind.DELAY),
}
"""Everything: for the pair whose processes come and go."""

NO_KILLS: dict[Lane, tuple[Kind, ...]] = {
    lane: tuple(kind for kind in kinds if kind != Kind.KILL) for lane, kinds in KILLS.items()
}
"""For the pair that is there all the time, whose memory is watched."""


@dataclass(frozen=True, slots=True)
class Fault:
    """It begins `at` seconds after the start and lasts so many."""

    at: float
    lane: Lane
    kind: Kind
    seconds: float

    @property
    def until(self) -> float:
        return self.at + self.seconds


def faults(seed: str, seconds: float, kinds: dict[Lane, tuple[Kind, ...]]) -> list[Fault]:
    """The faults of a pair within so many seconds, in order; each is over by then."""
    found: list[Fault] = []
    for lane, choices in kinds.items():
        rng = random.Random(f"{seed} {lane}")
        now = SETTLE_S + rng.expovariate(1 / MEAN_GAP_S)
        while True:
            kind = rng.choice(choices)
            fault = Fault(now, lane, kind, rng.uniform(*SPANS[kind]))
            if fault.until > seconds:
                break
            found.append(fault)
            now = fault.until + SETTLE_S + rng.expovariate(1 / MEAN_GAP_S)
    return sorted(found, key=lambda fault: fault.at)


@dataclass(frozen=True, slots=True)
class Order:
    """What a client asks for: which text by its number, how much of it, where and how; when it leaves, if it does.
    waits: whether it waits for a daemon that goes away, and goes on then."""

    text: int
    max_tokens: int
    at: Lane
    draft_n: int | None
    leaves_after: int | None
    pause_s: float
    waits: bool = True


def orders(seed: str, texts: int, longest: int) -> Iterator[Order]:
    """What one client asks for, one after the other, without end."""
    rng = random.Random(seed)
    while True:
        max_tokens = min(int(rng.expovariate(3 / longest)) + 1, longest)
        yield Order(
            text=rng.randrange(texts),
            max_tokens=max_tokens,
            at=rng.choice((Lane.VERIFIER, Lane.DRAFTER)),
            draft_n=rng.choice((None, None, None, 0, 1, 4, 8)),
            leaves_after=rng.randrange(max_tokens) if rng.random() < 0.1 else None,
            pause_s=rng.choice((0.0, 0.0, 0.05, rng.expovariate(2.0))),
            waits=rng.random() < WAITING,
        )


def excuses(fault: Fault, at: Lane) -> bool:
    """Whether a fault may cost a client at this daemon its answer. Delays may not, and at the verifier only the end of
    its own process may."""
    if at is Lane.VERIFIER:
        return (fault.lane, fault.kind) == (Lane.VERIFIER, Kind.KILL)
    return fault.kind is not Kind.DELAY


def excused(
    faults_: Sequence[Fault], at: Lane, begun: float, ended: float, recovery_s: float
) -> bool:
    """Whether a client that asked from `begun` to `ended` was hit by a fault, or came before all was well again."""
    return any(
        excuses(fault, at) and fault.at <= ended and begun <= fault.until + recovery_s
        for fault in faults_
    )
