"""A verifier with its drafters in simulated time, over links that drop, delay, duplicate, reorder and corrupt frames;
what must be so at its end, and worlds as hypothesis draws them."""

import heapq
import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import count

from harness import cores as core
from hypothesis import strategies as st
from simulated_drafters import Drafter, HonestDrafter, HostileDrafter

from fuzz.frames import decoded
from fuzz.oracle import END, PROMPT, Memory, alone
from specmesh.core.sampling.sampler import Penalties, SamplingParams
from specmesh.core.sampling.strategy import Strategy
from specmesh.core.session_params import SessionParams
from specmesh.core.verifier import events as vev
from specmesh.wire import messages as m
from specmesh.wire.codec import encode


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
    """Probabilities per frame; a late frame is delayed by up to LATE_S and so overtaken by others."""

    drop: float = 0.0
    double: float = 0.0
    late: float = 0.0
    damage: float = 0.0


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
            late = rng.random() * LATE_S if rng.random() < faults.late else 0.0
            sent = damaged(frame, rng) if frame and rng.random() < faults.damage else frame
            world.clock.at(
                world.clock.now + world.round_trip / 2 + late, lambda sent=sent: self.deliver(sent)
            )

    def deliver(self, frame):
        if self.open and (message := decoded(frame, self.world.seen)) is not None:
            self.receive(message)


def damaged(frame, rng):
    bytes_ = bytearray(frame)
    for _ in range(rng.randint(1, 3)):
        bytes_[rng.randrange(len(bytes_))] ^= rng.randint(1, 255)
    return bytes(bytes_)


# --- a verifier with its drafters

STEP, LATE_S = 0.034, 0.3
FRAMES = m.Draft | m.DraftProbs | m.Nack


class TargetMemory(Memory):
    """What the target holds of a session; its engine can be asked back into the last step only."""

    last_step = 0  # where it began

    def run(self, span):
        """Carry out a span of a step; one row of logits per id where they are wanted."""
        assert span.position == len(self.held) or span.position > self.last_step
        self.trim(span.position)
        if not span.logits:
            self.append(span.ids)
            return None
        self.last_step = span.position
        return self.rows(span.ids)


class Served:
    """One session: its target's memory, its drafters and what its client got."""

    def __init__(self, memory, prompt, params, drafters):
        self.memory, self.prompt, self.params, self.drafters = (
            memory,
            prompt,
            params,
            list(drafters),
        )
        self.drafter = self.second = self.reason = None
        self.shown, self.rounds, self.past, self.steps = [], [], [], 0


@dataclass
class World:
    """A verifier with its sessions and drafters, in simulated time. waited: seconds in which its target did nothing."""

    seed: int = 0
    faults: Faults = QUIET
    round_trip: float = 0.002
    n_ctx: int = 512
    n_batch: int = 24
    faulty: tuple[float, float] = (0.0, float("inf"))
    lose_down: tuple[bytes, ...] = ()
    lose_up: tuple[bytes, ...] = ()
    row: float = 0.02
    end_bias: float = -3.5
    clock: Clock = field(default_factory=Clock)
    sessions: dict[int, Served] = field(default_factory=dict)
    seen: Counter = field(default_factory=Counter)

    def __post_init__(self):
        self.rng = random.Random(self.seed)
        self.starts, self.waited = 0, 0.0
        self.start()

    def start(self):
        self.core = core.Verifier(self.n_ctx, self.n_batch, self.seen, first=1 + 1000 * self.starts)
        self.starts, self.stepping, self.idle_since, self.later = self.starts + 1, False, None, []

    def restart(self):
        """Kill the verifier, with what was on its way, and start it anew: clients ask again with the ids they have."""
        before = {key: served for key, served in self.sessions.items() if served.reason is None}
        for key, served in before.items():
            for drafter in (served.drafter, served.second):
                if drafter is not None:
                    drafter.alive = drafter.down.open = drafter.up.open = False
                    served.past.append(drafter)
            served.drafter = served.second = None
            served.memory = TargetMemory(self.n_ctx, self.end_bias)
            del self.sessions[key]
        self.start()
        for served in before.values():
            key = self.core.open(served.prompt, served.params, self.clock.now, tuple(served.shown))
            self.sessions[key] = served
            self.attach(key)
        self.seen["restarts"] += 1
        self.clock.at(self.clock.now, self.turn)

    @property
    def quiet(self):
        return not self.faulty[0] <= self.clock.now < self.faulty[1]

    def open(self, params, drafters, prompt=PROMPT):
        key = self.core.open(prompt, params, self.clock.now)
        served = self.sessions[key] = Served(
            TargetMemory(self.n_ctx, self.end_bias), prompt, params, drafters
        )
        self.attach(key)
        self.clock.at(self.clock.now, self.turn)
        return served

    def attach(self, key):
        """Hand the session to the next drafter; the one before is gone, with what it still had on its way. A step that
        runs ends first."""
        if self.stepping:
            self.later.append(lambda: self.attach(key))
            return
        served, now = self.sessions.get(key), self.clock.now
        if served is None:
            return
        if served.drafter is not None:
            served.drafter.alive = served.drafter.down.open = served.drafter.up.open = False
            served.past.append(served.drafter)
            served.drafter = None
            self.perform(self.core.detach(key, now))
        if served.reason is not None or not served.drafters:
            return
        setup = served.drafters.pop(0)
        served.drafter = self.made(key, setup)
        known = self.round_trip if self.rng.random() < 0.7 else None
        self.perform(
            self.core.attach(key, served.drafter, now, known, rated=self.rng.random() < 0.5)
        )
        if setup.life != float("inf"):
            self.clock.at(now + setup.life, lambda: self.attach(key))

    def made(self, key, setup):
        kind = HostileDrafter if setup.hostile or setup.silent else HonestDrafter
        drafter = kind(self, setup, key, self.sessions[key].params)
        drafter.up = Link(
            self, lambda message: self.receive(key, message, drafter), self.faults, self.lose_up
        )
        drafter.down = Link(self, drafter.receive, self.faults, self.lose_down)
        return drafter

    def share(self, key, setup, swaps):
        """Have another drafter too: the session goes from the one to the other every `swaps` seconds."""
        self.sessions[key].second = self.made(key, setup)
        self.clock.at(self.clock.now + swaps, lambda: self.swap(key, swaps))

    def swap(self, key, swaps):
        if self.stepping:
            self.later.append(lambda: self.swap(key, swaps))
            return
        served = self.sessions.get(key)
        if served is None or served.reason is not None or served.second is None:
            return
        served.drafter, served.second = served.second, served.drafter
        self.perform(self.core.move(key, served.drafter, self.clock.now))
        self.seen["swaps"] += 1
        if served.second is not None:
            self.clock.at(self.clock.now + swaps, lambda: self.swap(key, swaps))

    def receive(self, key, message, sender=None):
        """A frame from one of this session's drafters."""
        if not isinstance(message, FRAMES) or message.session != key or key not in self.sessions:
            return
        sender = sender or self.sessions[key].drafter
        self.perform(self.core.receive(sender, message, self.clock.now))
        if not self.stepping:
            self.turn()

    def turn(self):
        if self.stepping:
            return
        now = self.clock.now
        step = self.core.next_step(now)
        if not isinstance(step, core.Step):
            self.idle_since = now if self.idle_since is None else self.idle_since
            if step.until < float("inf"):
                self.clock.at(step.until, self.turn)
            return
        self.waited += 0.0 if self.idle_since is None else now - self.idle_since
        self.idle_since, self.stepping = None, True
        assert 0 < step.rows <= self.n_batch
        for span in step.spans:
            self.sessions[span.seq].steps += span.logits
        rows = [self.sessions[span.seq].memory.run(span) for span in step.spans]
        seconds, started = STEP * (1 + self.row * (step.rows - 1)), self.starts
        self.clock.at(now + seconds, lambda: self.finish(step, rows, seconds, started))

    def finish(self, step, rows, seconds, started):
        if started != self.starts:
            return
        self.stepping = False
        self.finished(step, rows, seconds)
        later, self.later = self.later, []
        for act in later:
            act()
        self.turn()

    def finished(self, step, rows, seconds):
        self.perform(self.core.finish(rows, seconds, self.clock.now))

    def perform(self, effects):
        for effect in effects:
            match effect:
                case core.Send(message, peer):
                    if peer is not None:
                        peer.down.send(message)
                case vev.Committed(session=key, round=done):
                    ids, accepted, drafts = done.text_ids, done.accepted, done.drafts
                    served = self.sessions[key]
                    assert served.reason is None
                    assert accepted <= len(drafts)
                    assert ids[:accepted] == tuple(
                        token for token in drafts[:accepted] if token != END
                    )
                    served.shown.extend(ids)
                    served.rounds.append((self.clock.now, len(drafts), accepted))
                case vev.SessionEnded(session=key, reason=reason):
                    assert self.sessions[key].reason is None
                    self.sessions[key].reason = reason

    def run(self, limit=60_000):
        self.clock.run(
            lambda: all(served.reason is not None for served in self.sessions.values()), limit
        )
        return self


def targets_own(world, key):
    served = world.sessions[key]
    return alone(served.params, world.n_ctx, prompt=served.prompt, end_bias=world.end_bias)[1:]


def check(world, expected=targets_own):
    """The oracle: every session ended with what the target alone says, and drafters were told nothing else."""
    for key, served in world.sessions.items():
        shown, reason = expected(world, key)
        assert served.reason == reason, f"ended with {served.reason}"
        assert tuple(served.shown) == tuple(shown)
        truth = (*served.prompt, *shown, END)
        for drafter in (*served.past, served.drafter, served.second):
            if drafter is not None and world.faults.damage == 0:
                assert tuple(drafter.learned) == truth[: len(drafter.learned)]


# --- worlds, drafters and sampling as hypothesis draws them

share = st.sampled_from([0.0, 0.05, 0.3])


def sampled(strategy):
    return st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.3, 1.0]),
        top_k=st.sampled_from([0, 5]),
        top_p=st.sampled_from([1.0, 0.9]),
        seed=st.integers(0, 2**64 - 1),
        penalties=st.sampled_from(
            [Penalties(), Penalties(1.5, 0.5, 0.5, 4), Penalties(frequency=1.0, window=-1)]
        ),
        strategy=st.just(strategy),
    )


OF_DRAFTERS = {
    "accuracy": [0.0, 0.5, 0.8, 1.0],
    "hostile": [False, False, False, True],
    "silent": [False, False, False, True],
    "seconds": [0.001, 0.008, 0.05, 0.3],
    "life": [float("inf"), 0.1, 0.7],
    "n_ctx": [4096, 30],
    "n_batch": [1, 6, 64],
    "can_trim": [True, False],
}
drafters = st.builds(
    Drafter, **{name: st.sampled_from(values) for name, values in OF_DRAFTERS.items()}
)


def worlds_of(kind):
    return st.builds(
        kind,
        seed=st.integers(0, 2**32),
        faults=st.builds(Faults, drop=share, double=share, late=share, damage=share),
        round_trip=st.sampled_from([0.0, 0.0003, 0.02, 0.1, 0.5]),
        n_ctx=st.sampled_from([512, 40, 10]),
        n_batch=st.sampled_from([9, 24]),
        row=st.sampled_from([0.0, 0.02, 1.0]),
    )


def params_of(sampling):
    return st.builds(
        SessionParams,
        sampling=sampling,
        max_tokens=st.sampled_from([1, 2, 30, 80]),
        draft_n=st.sampled_from([None, None, 0, 1, 4, 30]),
    )


session_params = params_of(st.just(SamplingParams()) | sampled(Strategy.DETERMINISTIC))
probabilistic = params_of(sampled(Strategy.PROBABILISTIC))
