"""A soak's schedule from a seed: the faults of a pair, and the requests of its clients."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

MEAN_GAP_S = 6.0
"""Seconds from the end of a fault to the next one of its lane, on average."""

WAITING = 0.75
"""Share of clients that wait for a daemon that goes away."""

LEAVING = 0.1
"""Share of clients that close their connection before the end of the text."""

SETTLE_S = 1.0
"""Seconds between two faults of one lane, at least."""


class Kind(StrEnum):
    KILL = "kill"
    STOP = "stop"
    PARTITION = "partition"
    RESET = "reset"
    DELAY = "delay"


class Lane(StrEnum):
    """The victim of a fault. Faults of one lane never overlap, those of different lanes may."""

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
"""Seconds that a fault lasts, at least and at most.

It ends when the process is started or goes on, or when the network heals.
"""

NO_KILLS: dict[Lane, tuple[Kind, ...]] = {
    Lane.VERIFIER: (Kind.STOP,),
    Lane.DRAFTER: (Kind.STOP,),
    Lane.NETWORK: (Kind.PARTITION, Kind.RESET, Kind.DELAY),
}
"""The faults of the pair that stays, whose memory is watched."""

MOSTLY_KILLS = (Kind.KILL, Kind.KILL, Kind.STOP)
KILLS = NO_KILLS | {Lane.VERIFIER: MOSTLY_KILLS, Lane.DRAFTER: MOSTLY_KILLS}
"""All faults, for the pair whose processes come and go."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of one victim."""

    at: float  # seconds from the start of the soak to its begin
    lane: Lane
    kind: Kind
    seconds: float

    @property
    def until(self) -> float:
        return self.at + self.seconds


def faults(seed: str, seconds: float, kinds: dict[Lane, tuple[Kind, ...]]) -> list[Fault]:
    """Return the faults of a pair in order; each ends within so many seconds."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """One request of a client."""

    text: int  # the number of the text
    max_tokens: int
    at: Lane  # the daemon that is asked
    draft_n: int | None = None
    leaves_after: int | None = None  # number of ids after which the client closes the connection
    pause_s: float = 0.0  # until the client's next request
    waits: bool = True  # the client waits for a daemon that goes away, and goes on then


def orders(seed: str, texts: int, longest: int) -> Iterator[Order]:
    """Yield the requests of one client, without end."""
    rng = random.Random(seed)
    while True:
        max_tokens = min(int(rng.expovariate(3 / longest)) + 1, longest)
        yield Order(
            text=rng.randrange(texts),
            max_tokens=max_tokens,
            at=rng.choice((Lane.VERIFIER, Lane.DRAFTER)),
            draft_n=rng.choice((None, None, None, 0, 1, 4, 8)),
            leaves_after=_leaves_after(rng, max_tokens),
            pause_s=rng.choice((0.0, 0.0, 0.05, rng.expovariate(2.0))),
            waits=rng.random() < WAITING,
        )


def _leaves_after(rng: random.Random, max_tokens: int) -> int | None:
    if rng.random() < LEAVING:
        return rng.randrange(max_tokens)
    return None


def excuses(fault: Fault, at: Lane) -> bool:
    """Return True if a fault may cost a client at this daemon its answer.

    Delays may not. At the verifier only the end of its own process may.
    """
    if at is Lane.VERIFIER:
        return fault.lane is Lane.VERIFIER and fault.kind is Kind.KILL
    return fault.kind is not Kind.DELAY


def excused(
    faults_: Sequence[Fault], at: Lane, begun: float, ended: float, recovery_s: float
) -> bool:
    """Return True if a request from `begun` to `ended` met a fault, or the recovery from one."""
    for fault in faults_:
        overlaps = fault.at <= ended and begun <= fault.until + recovery_s
        if overlaps and excuses(fault, at):
            return True
    return False
