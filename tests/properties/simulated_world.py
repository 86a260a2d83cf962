"""A verifier and its drafters in simulated time, over links that lose, delay and damage frames."""

import heapq
import random
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, count

from harness import cores as core
from harness.reference import decode, no_drafts
from harness.truth import chosen_by
from hypothesis import strategies as st
from simulated_drafters import Drafter, HonestDrafter, HostileDrafter

from fuzz.frames import decoded
from fuzz.oracle import END, PROMPT, Memory, row
from specmesh.core.draft_sources import DRAFT_SOURCES
from specmesh.core.prefix import crc_of
from specmesh.core.rounds import Round
from specmesh.core.sampling.sampler import Penalties, SamplingParams
from specmesh.core.sampling.strategy import Strategy
from specmesh.core.session_params import SessionParams
from specmesh.core.verifier import events as vev
from specmesh.wire import messages as m
from specmesh.wire.codec import encode


class Clock:
    """Runs actions at their times. events: how many it has run."""

    def __init__(self):
        self.now = 0.0
        self.events = 0
        self._queue = []
        self._order = count()

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
    """Probabilities per frame; others may overtake a late one, within LATE_S."""

    drop: float = 0.0
    double: float = 0.0
    late: float = 0.0
    damage: float = 0.0


QUIET = Faults()


class Link:
    """One direction: delivers frames to `receive` after half a round trip, with faults.

    lose: kinds of frames that are lost.
    """

    def __init__(self, world, receive, faults, lose=()):
        self.world = world
        self.receive = receive
        self.faults = faults
        self.lose = lose
        self.open = True

    def send(self, message):
        self.send_raw(encode(message))

    def send_raw(self, frame):
        world = self.world
        faults = QUIET if world.quiet else self.faults
        dropped = world.rng.random() < faults.drop
        if dropped or (not world.quiet and frame[3:4] in self.lose):
            world.seen["lost"] += 1
            return
        doubled = world.rng.random() < faults.double
        for _ in range(2 if doubled else 1):
            self._schedule(frame, faults)

    def _schedule(self, frame, faults):
        world = self.world
        rng = world.rng
        arrival = world.clock.now + world.round_trip / 2
        if rng.random() < faults.late:
            arrival += rng.random() * LATE_S
        if frame and rng.random() < faults.damage:
            frame = damaged(frame, rng)
        world.clock.at(arrival, lambda: self._deliver(frame))

    def _deliver(self, frame):
        if not self.open:
            return
        message = decoded(frame, self.world.seen)
        if message is not None:
            self.receive(message)


def damaged(frame, rng):
    changed = bytearray(frame)
    for _ in range(rng.randint(1, 3)):
        changed[rng.randrange(len(changed))] ^= rng.randint(1, 255)
    return bytes(changed)


# --- a verifier with its drafters

STEP = 0.034
LATE_S = 0.3
FOREVER = float("inf")


class TargetMemory(Memory):
    """The target's memory of a session, which can go back into the last step only.

    last_step: position at which that began.
    """

    last_step = 0

    def run(self, span):
        """Carry out a span of a step; return a row of logits per id, or None."""
        assert span.position == len(self.held) or span.position > self.last_step
        self.trim(span.position)
        if not span.logits:
            self.append(span.ids)
            return None
        self.last_step = span.position
        return self.rows(span.ids)


class Served:
    """One session: its target's memory, its drafters and the text of its client.

    predicted: ids that its client has predicted.
    drafter, second: those that it has; drafters: those that come; past: those that are gone.
    rounds: the time, the drafts and the accepted drafts of each.
    reason: why it ended; None before.
    """

    def __init__(self, memory, prompt, params, drafters, predicted):
        self.memory = memory
        self.predicted = predicted
        self.prompt = prompt
        self.params = params
        self.drafters = list(drafters)
        self.drafter = self.second = self.reason = None
        self.shown = []
        self.rounds = []
        self.past = []
        self.steps = 0

    @property
    def accepted(self):
        """Return the number of accepted drafts."""
        return sum(accepted for _, _, accepted in self.rounds)

    def drop_drafter(self):
        """Have the first drafter gone, with all frames on their way."""
        if self.drafter is not None:
            self.drafter.alive = self.drafter.down.open = self.drafter.up.open = False
            self.past.append(self.drafter)
        self.drafter = None


@dataclass(kw_only=True)
class World:
    """A verifier with its sessions and drafters, in simulated time.

    faulty: seconds between which the links have faults.
    lose_down, lose_up: kinds of frames that are lost then.
    row: time of another row in a step, as a share of the step.
    waited: seconds in which the target did nothing.
    """

    seed: int = 0
    faults: Faults = QUIET
    round_trip: float = 0.002
    n_ctx: int = 512
    n_batch: int = 24
    faulty: tuple[float, float] = (0.0, FOREVER)
    lose_down: tuple[bytes, ...] = ()
    lose_up: tuple[bytes, ...] = ()
    row: float = 0.02
    end_bias: float = -3.5
    clock: Clock = field(default_factory=Clock)
    sessions: dict[int, Served] = field(default_factory=dict)
    seen: Counter = field(default_factory=Counter)

    def __post_init__(self):
        self.rng = random.Random(self.seed)
        self.starts = 0
        self.waited = 0.0
        self.start()

    def start(self):
        self.core = core.Verifier(self.n_ctx, self.n_batch, self.seen, first=1 + 1000 * self.starts)
        self.starts += 1
        self.stepping = False
        self.idle_since = None
        self.later = []

    def restart(self):
        """Kill the verifier and start it anew; clients resume with the ids that they have."""
        resumed = [served for served in self.sessions.values() if served.reason is None]
        self.sessions = {
            key: served for key, served in self.sessions.items() if served.reason is not None
        }
        for served in resumed:
            served.drop_drafter()
            served.drafter, served.second = served.second, None
            served.drop_drafter()
            served.memory = TargetMemory(self.n_ctx, self.end_bias)
        self.start()
        for served in resumed:
            key = self.core.open(
                served.prompt,
                served.params,
                self.clock.now,
                said=tuple(served.shown),
                predicted=served.predicted,
            )
            self.sessions[key] = served
            self.attach(key)
        self.seen["restarts"] += 1
        self.clock.at(self.clock.now, self.turn)

    @property
    def quiet(self):
        begin, end = self.faulty
        return not begin <= self.clock.now < end

    def open(self, params, drafters, prompt=PROMPT, predicted=()):
        key = self.core.open(prompt, params, self.clock.now, predicted=predicted)
        memory = TargetMemory(self.n_ctx, self.end_bias)
        served = self.sessions[key] = Served(memory, prompt, params, drafters, predicted)
        self.attach(key)
        self.clock.at(self.clock.now, self.turn)
        return served

    def open_all(self, sessions):
        """Open sessions of (parameters, drafters), each with a prompt of its own."""
        for number, (params, attached) in enumerate(sessions, 1):
            self.open(params, attached, (*PROMPT, number))

    def attach(self, key):
        """Hand the session to its next drafter, after the step that runs."""
        if self.stepping:
            self.later.append(lambda: self.attach(key))
            return
        served = self.sessions.get(key)
        now = self.clock.now
        if served is None:
            return
        if served.drafter is not None:
            served.drop_drafter()
            self.perform(self.core.detach(key, now))
        if served.reason is not None or not served.drafters:
            return
        setup = served.drafters.pop(0)
        served.drafter = self.drafter_of(key, setup)
        round_trip = self.round_trip if self.rng.random() < 0.7 else None
        rated = self.rng.random() < 0.5
        self.perform(self.core.attach(key, served.drafter, now, round_trip, rated=rated))
        if setup.life < FOREVER:
            self.clock.at(now + setup.life, lambda: self.attach(key))

    def drafter_of(self, key, setup):
        kind = HostileDrafter if setup.hostile or setup.silent else HonestDrafter
        drafter = kind(self, setup, key, self.sessions[key].params)
        drafter.up = Link(
            self, lambda message: self.receive(key, message, drafter), self.faults, self.lose_up
        )
        drafter.down = Link(self, drafter.receive, self.faults, self.lose_down)
        return drafter

    def share(self, key, setup, swaps):
        """Have another drafter too, which changes places with the first every `swaps` seconds."""
        self.sessions[key].second = self.drafter_of(key, setup)
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
        """Take a frame from one of this session's drafters."""
        drafting = isinstance(message, m.Draft | m.DraftProbs | m.Nack)
        if not drafting or message.session != key or key not in self.sessions:
            return
        sender = sender or self.sessions[key].drafter
        self.perform(self.core.receive(sender, message, self.clock.now))
        self.turn()

    def turn(self):
        if self.stepping:
            return
        now = self.clock.now
        step = self.core.next_step(now)
        if self.idle_since is None:
            self.idle_since = now
        if not isinstance(step, core.Step):
            if step.until < FOREVER:
                self.clock.at(step.until, self.turn)
            return
        self.waited += now - self.idle_since
        self.idle_since = None
        self.stepping = True
        assert 0 < step.rows <= self.n_batch
        rows = []
        for span in step.spans:
            served = self.sessions[span.seq]
            served.steps += span.logits
            rows.append(served.memory.run(span))
        seconds = STEP * (1 + self.row * (step.rows - 1))
        started = self.starts
        self.clock.at(now + seconds, lambda: self.finish(step, rows, seconds, started))

    def finish(self, step, rows, seconds, started):
        """End a step, unless the verifier was killed since it began."""
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
                case vev.ToClient(_, Round() as done):
                    self.commit(self.sessions[done.session], done)
                case vev.ToClient(_, vev.SessionEnded() as end):
                    assert self.sessions[end.session].reason is None
                    self.sessions[end.session].reason = end.reason

    def commit(self, served, done):
        assert served.reason is None
        assert done.accepted <= len(done.drafts)
        accepted = [token for token in done.drafts[: done.accepted] if token != END]
        assert [*done.text.ids[: done.accepted]] == accepted
        for drafts in done.by_source:
            assert drafts.source == "table" or served.params.drafts_by(drafts.source)
        served.shown.extend(done.text.ids)
        served.rounds.append((self.clock.now, len(done.drafts), done.accepted))

    def run(self, limit=60_000):
        def over():
            return all(served.reason is not None for served in self.sessions.values())

        self.clock.run(over, limit)
        return self


@lru_cache(4096)
def reference_text(params, prompt, n_ctx, end_bias):
    """Return the ids that the reference shows after a prompt, and the reason of the end."""

    def target(ids):
        return row(crc_of(ids), end_bias=end_bias)

    steps = decode(target, no_drafts, 0, prompt, chosen_by(params.sampling))
    shown = []
    for token in chain.from_iterable(steps):
        if token == END:
            break
        shown.append(token)
        if len(shown) == params.max_tokens or len(prompt) + len(shown) == n_ctx:
            return shown, "length"
    return shown, "stop"


def targets_own(world, key):
    served = world.sessions[key]
    return reference_text(served.params, served.prompt, world.n_ctx, world.end_bias)


EDITS = st.sampled_from(["right", "nothing", "wrong", "repeated", "edited", "cut"])


def predicted_text(kind, params, prompt, world):
    """Return a prediction of a session's text in `world`; kind: one of EDITS."""
    text, _ = reference_text(params, prompt, world.n_ctx, world.end_bias)
    middle = len(text) // 2
    match kind:
        case "right":
            return text
        case "wrong":
            return text[::-1]
        case "repeated":
            return text[:9] * 9
        case "edited":
            return [*text[: middle - 2], 7, 7, 7, *text[middle:]]
        case "cut":
            return text[middle:]
        case _:
            return ()


def check(world, expected=targets_own):
    """Assert that each session has the target's own text, and that its drafters learned it."""
    for key, served in world.sessions.items():
        shown, reason = expected(world, key)
        assert served.reason == reason
        assert tuple(served.shown) == tuple(shown)
        truth = (*served.prompt, *shown, END)
        for drafter in (*served.past, served.drafter, served.second):
            if drafter is not None and world.faults.damage == 0:
                assert tuple(drafter.learned) == truth[: len(drafter.learned)]


# --- strategies of hypothesis

share = st.sampled_from([0.0, 0.05, 0.3])
PENALTIES = [Penalties(), Penalties(1.5, 0.5, 0.5, 4), Penalties(frequency=1.0, window=-1)]


def sampled(strategy):
    return st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.3, 1.0]),
        top_k=st.sampled_from([0, 5]),
        top_p=st.sampled_from([1.0, 0.9]),
        seed=st.integers(0, 2**64 - 1),
        penalties=st.sampled_from(PENALTIES),
        strategy=st.just(strategy),
    )


OF_DRAFTERS = {
    "accuracy": [0.0, 0.5, 0.8, 1.0],
    "hostile": [False, False, False, True],
    "silent": [False, False, False, True],
    "seconds": [0.001, 0.008, 0.05, 0.3],
    "life": [float("inf"), 0.1, 0.7],
    "n_ctx": [4096, 30, 120],
    "window": [0, 0, 16, 24],
    "n_batch": [1, 6, 64],
    "can_trim": [True, False],
}
drafters = st.builds(
    Drafter,
    endless=st.sampled_from([False, False, True]),
    **{name: st.sampled_from(values) for name, values in OF_DRAFTERS.items()},
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
        draft_sources=st.none() | st.sets(st.sampled_from(DRAFT_SOURCES)).map(tuple),
    )


session_params = params_of(st.just(SamplingParams()) | sampled(Strategy.DETERMINISTIC))
probabilistic = params_of(sampled(Strategy.PROBABILISTIC))
