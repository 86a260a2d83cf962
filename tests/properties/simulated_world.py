"""A verifier with its drafters in simulated time, and what must be so at its end."""

import random
from collections import Counter
from dataclasses import dataclass, field

from harness import cores as core
from simulated_drafters import HonestDrafter, HostileDrafter
from simulated_link import QUIET, Clock, Faults, Link

from fuzz.oracle import END, N_VOCAB, PROMPT, Memory, alone
from specmesh.core import events as ev
from specmesh.core import verifier_events as vev
from specmesh.wire import messages as m

STEP = 0.034
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
        self.memory, self.prompt, self.params, self.drafters = memory, prompt, params, list(drafters)
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
        first = 1 + 1000 * self.starts
        self.core = core.Verifier(self.n_ctx, N_VOCAB, frozenset({END}), self.n_batch, 8, self.seen, first)
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
        served = self.sessions[key] = Served(TargetMemory(self.n_ctx, self.end_bias), prompt, params, drafters)
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
        self.perform(self.core.attach(key, served.drafter, now, known, rated=self.rng.random() < 0.5))
        if setup.life != float("inf"):
            self.clock.at(now + setup.life, lambda: self.attach(key))

    def made(self, key, setup):
        kind = HostileDrafter if setup.hostile or setup.silent else HonestDrafter
        drafter = kind(self, setup, key, self.sessions[key].params)
        drafter.up = Link(self, lambda message: self.receive(key, message, drafter), self.faults, self.lose_up)
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
                case vev.Committed(session=key, emit=ev.Emit(ids, accepted, drafts)):
                    served = self.sessions[key]
                    assert served.reason is None
                    assert accepted <= len(drafts)
                    assert ids[:accepted] == tuple(token for token in drafts[:accepted] if token != END)
                    served.shown.extend(ids)
                    served.rounds.append((self.clock.now, len(drafts), accepted))
                case vev.SessionEnded(session=key, reason=reason):
                    assert self.sessions[key].reason is None
                    self.sessions[key].reason = reason

    def run(self, limit=60_000):
        self.clock.run(lambda: all(served.reason is not None for served in self.sessions.values()), limit)
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
