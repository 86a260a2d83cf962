"""A verifier of real VerifierSessions with its drafters, in simulated time, and what must be so at its end."""

import random
from collections import Counter
from dataclasses import dataclass, field

from simulated_drafters import HonestDrafter, HostileDrafter
from simulated_link import QUIET, Clock, Faults, Link
from simulated_models import END, N_VOCAB, Memory, alone

from specmesh.core import events as ev
from specmesh.core.acceptance import RollingAcceptance
from specmesh.core.arrivals import Arrivals
from specmesh.core.costs import StepCosts
from specmesh.core.policy import solve
from specmesh.core.prefix import Prefix
from specmesh.core.scheduler import Idle, Scheduler
from specmesh.core.second import Second, rescues
from specmesh.core.session_params import TargetLimits
from specmesh.core.standby import Standby
from specmesh.core.verifier_session import VerifierSession
from specmesh.daemons.draft_frames import drafted
from specmesh.wire import messages as m

STEP = 0.034
PROMPT = (3, 1, 4, 1, 5, 9, 2, 6)
SYNC_CHUNK = 5


class Served:
    """One session at the verifier, its memory and what its client got."""

    def __init__(self, session, memory, prompt, params, drafters):
        self.session, self.memory = session, memory
        self.prompt, self.params, self.drafters = prompt, params, list(drafters)
        self.down = None
        self.drafter = None
        self.standby, self.second, self.second_down = None, None, None
        self.beside = False  # the second drafts, too
        self.shown, self.reason = [], None
        self.rounds = []
        self.past = []
        self.wait_until = None
        self.given_up = False
        self.steps = 0


@dataclass
class World:
    """A verifier with its sessions and drafters, in simulated time."""

    seed: int = 0
    faults: Faults = QUIET
    round_trip: float = 0.002
    n_ctx: int = 512
    n_batch: int = 24
    faulty: tuple[float, float] = (0.0, float("inf"))
    lose_down: tuple[bytes, ...] = ()
    lose_up: tuple[bytes, ...] = ()
    io_during_steps: bool = True
    row: float = 0.02
    end_bias: float = -3.5
    clock: Clock = field(default_factory=Clock)
    sessions: dict[int, Served] = field(default_factory=dict)
    seen: Counter = field(default_factory=Counter)

    def __post_init__(self):
        self.rng = random.Random(self.seed)
        self.costs, self.acceptance = StepCosts(), RollingAcceptance()
        self.costs.record_pause(0.0, drafting=False)
        self.scheduler = Scheduler(self.n_batch, self.costs, prefill_rows=8)
        self.limits = TargetLimits(self.n_ctx, N_VOCAB, frozenset({END}), max_drafts=8, trees=True)
        self.stepping, self.inbox, self.alarm = False, [], None

    @property
    def quiet(self):
        return not self.faulty[0] <= self.clock.now < self.faulty[1]

    def open(self, params, drafters, prompt=PROMPT):
        session = VerifierSession(prompt, params, self.limits, self.costs, self.acceptance, self.clock.now)
        memory = Memory(self.n_ctx, self.end_bias)
        served = self.sessions[len(self.sessions) + 1] = Served(session, memory, prompt, params, drafters)
        self.attach(len(self.sessions))
        self.clock.at(self.clock.now, self.turn)
        return served

    def attach(self, key):
        """Hand the session to the next drafter; the one before is gone, with what it still had on its way."""
        served = self.sessions[key]
        if served.drafter is not None:
            served.drafter.alive = served.down.open = served.drafter.up.open = False
            served.past.append(served.drafter)
            served.drafter = None
            self.perform(key, served.session.handle(ev.Detached(), self.clock.now))
            assert served.reason is not None or not served.session.attached
        if served.reason is not None or not served.drafters:
            return
        setup = served.drafters.pop(0)
        cls = HostileDrafter if setup.hostile or setup.silent else HonestDrafter
        drafter = served.drafter = cls(self, setup, key, served.params)
        drafter.up = Link(self, lambda message: self.receive(key, message, drafter), self.faults, self.lose_up)
        served.down = Link(self, drafter.receive, self.faults, self.lose_down)
        arrivals = Arrivals()
        if self.rng.random() < 0.7:
            arrivals.record_round_trip(self.round_trip)
        acceptance = RollingAcceptance() if self.rng.random() < 0.5 else None
        self.perform(key, served.session.attach(arrivals, acceptance))
        if setup.life != float("inf"):
            self.clock.at(self.clock.now + setup.life, lambda: self.attach(key))

    def stand_by(self, key, setup, swaps=float("inf"), *, beside=False):
        """Have a drafter follow the session, or draft beside the one that drafts; the two change places every `swaps`
        seconds."""
        served = self.sessions[key]
        served.beside = beside
        cls = HostileDrafter if setup.hostile or setup.silent else HonestDrafter
        second = served.second = cls(self, setup, key, served.params)
        second.up = Link(self, lambda message: self.receive(key, message, second), self.faults, self.lose_up)
        served.second_down = Link(self, second.receive, self.faults, self.lose_down)
        served.standby = Standby(served.session.prefix, self.clock.now, rejections=served.session.rejections)
        self.tell_standby(key, served.standby.begin(self.clock.now))
        if swaps != float("inf"):
            self.clock.at(self.clock.now + swaps, lambda: self.swap(key, swaps))

    def assist(self, served):
        """Have the second drafter draft, as far as the session lets it."""
        session = served.session
        wanted = served.beside and served.standby is not None and session.may_be_assisted
        if wanted != session.assisted:
            trusted = rescues()
            for _ in range(8):
                trusted.record(1, 1)
            session.assist(Second(RollingAcceptance(), trusted) if wanted else None)
        if served.standby is not None:
            served.standby.draft_n = session.draft_n if wanted else 0

    def swap(self, key, swaps):
        """The one that stands by drafts from now on; with nobody to relieve, nobody stands by."""
        served, now = self.sessions[key], self.clock.now
        if served.reason is not None or served.second is None:
            return
        relieved, told, known = served.drafter, served.session.told, served.standby.told
        served.drafter, served.second = served.second, relieved
        served.down, served.second_down = served.second_down, served.down
        self.perform(key, served.session.attach(Arrivals(), RollingAcceptance(), known=known, proven=True))
        self.seen["swaps"] += 1
        served.standby = None
        if relieved is not None:
            served.standby = Standby(served.session.prefix, now, told, served.session.rejections)
            self.tell_standby(key, served.standby.begin(now))
            self.clock.at(now + swaps, lambda: self.swap(key, swaps))

    def tell_standby(self, key, effect):
        served = self.sessions[key]
        match effect:
            case ev.SendTruth(base, crc, ids, draft_n):
                assert draft_n == 0 or served.beside
                served.second_down.send(m.Truth(key, base, crc, ids, draft_n))
            case ev.SendSync():
                assert effect.draft_n == 0 or served.beside
                self.send_sync(key, effect, served.second_down)

    def heard_standby(self, key, message):
        standby = self.sessions[key].standby
        match message:
            case m.Shadow(_, base, crc, ids):
                shown = standby.shadowed(ev.Shadowed(base, crc, ids), self.round_trip, self.clock.now)
                self.seen["guesses shown"] += len(shown.right)
                assert shown.interval is None or shown.interval >= 0
            case m.Nack(_, base, crc):
                self.tell_standby(key, standby.nacked(base, crc, self.clock.now))
            case m.Draft(_, base, crc, ids, branch) if standby.draft_n:
                event = ev.Drafted(base, crc, ids, branch, second=True)
                assert self.sessions[key].session.handle(event, self.clock.now) == []
                self.seen["drafts beside"] += 1
            case _:
                pass

    def receive(self, key, message, sender=None):
        if self.stepping and not self.io_during_steps:
            self.inbox.append((key, message, sender))
            return
        if message.session != key:
            return
        if sender is not None and sender is self.sessions[key].second:
            self.heard_standby(key, message)
            return
        match message:
            case m.Draft(_, base, crc, ids, branch):
                event = ev.Drafted(base, crc, ids, branch)
            case m.DraftProbs():
                event = drafted(message)
            case m.Shadow(_, base, crc, ids):
                event = ev.Shadowed(base, crc, ids)
            case m.Nack(_, base, crc):
                event = ev.Nacked(base, crc)
            case _:
                return
        served = self.sessions[key]
        self.perform(key, served.session.handle(event, self.clock.now))
        self.assist(served)
        assert served.session._drafts.nodes <= 256
        served.given_up = False
        if not self.stepping:
            self.turn()

    def turn(self):
        """Begin the next step, or sleep until a deadline."""
        if self.stepping:
            return
        now = self.clock.now
        step = self.scheduler.next_step({key: served.session for key, served in self.sessions.items()}, now)
        if isinstance(step, Idle):
            self.note_waits(now)
            if step.until is not None:
                assert step.until > now, "asked to sleep into the past"
                self.clock.at(step.until, self.turn)
            return
        assert step.parts
        assert step.rows <= self.n_batch
        results = []
        for key, part in step.parts:
            served = self.sessions[key]
            if isinstance(part, ev.Verify):
                served.session.begin(now)
                served.given_up = served.wait_until is not None and now >= served.wait_until
                served.wait_until = None
                served.steps += 1
            results.append((key, part, served.memory.run(part)))
        seconds = STEP * (1 + self.row * (step.rows - 1))
        if step.pure:
            self.costs.record(step.rows, seconds)
        self.stepping = True
        self.clock.at(now + seconds, lambda: self.finish(results, seconds))

    def note_waits(self, now):
        """A session waits once per step, until a deadline that does not move; never after one was missed."""
        for served in self.sessions.values():
            if served.session.finished is None:
                plan = served.session.plan(now)
                assert isinstance(plan, ev.Wait)
                assert not served.given_up, "waits again for a drafter that has said nothing since"
                assert served.wait_until in (None, plan.until), "the deadline moves"
                served.wait_until = plan.until
                self.seen["waits"] += 1

    def finish(self, results, seconds):
        self.stepping = False
        for key, part, logits in results:
            if isinstance(part, ev.Prefill):
                event = ev.Prefilled(len(part.ids))
            else:
                event = ev.Stepped(part.drafts, logits, seconds, side=part.side)
            session = self.sessions[key].session
            self.happened(key, event)
            self.assist(self.sessions[key])
            if self.sessions[key].standby is not None:
                self.tell_standby(key, self.sessions[key].standby.follow(self.clock.now))
            inputs = session.unsolved(self.clock.now)
            if inputs is not None:
                session.pacing.adopt(solve(inputs, session.pacing.policy))
        inbox, self.inbox = self.inbox, []
        for key, message, sender in inbox:
            self.receive(key, message, sender)
        self.turn()

    def happened(self, key, event):
        self.perform(key, self.sessions[key].session.handle(event, self.clock.now))

    def perform(self, key, effects):
        served = self.sessions[key]
        for effect in effects:
            match effect:
                case ev.SendTruth(base, crc, ids, draft_n):
                    served.down.send(m.Truth(key, base, crc, ids, draft_n))
                case ev.SendSync():
                    self.seen["syncs"] += 1
                    self.send_sync(key, effect)
                case ev.SendNack(base, crc):
                    self.seen["verifier nacks"] += 1
                    served.down.send(m.Nack(key, base, crc))
                case ev.Trim(length, aside=True):
                    assert length > served.memory.begun
                    served.memory.go_aside(length)
                case ev.Trim(length):
                    assert length > served.memory.begun, "engines can be asked back into the last step only"
                    served.memory.trim(length)
                case ev.Emit(ids=ids, accepted=accepted, drafts=drafts):
                    self.seen["aside"] += effect.side_drafted
                    self.seen["stood aside"] += effect.side_accepted
                    assert served.reason is None
                    assert accepted <= len(drafts)
                    assert ids[:accepted] == tuple(token for token in drafts[:accepted] if token != END)
                    served.shown.extend(ids)
                    served.rounds.append((self.clock.now, len(drafts), accepted))
                case ev.Finish(reason):
                    assert served.reason is None
                    served.reason = reason

    def send_sync(self, key, sync, down=None):
        served = self.sessions[key]
        down = down or served.down
        prefix = Prefix(served.session.prefix[0 : sync.base])
        assert prefix.crc == sync.crc
        for start in range(0, max(len(sync.ids), 1), SYNC_CHUNK):
            chunk = sync.ids[start : start + SYNC_CHUNK]
            down.send(m.Sync(key, len(prefix), prefix.crc, chunk, sync.draft_n))
            prefix.extend(chunk)

    def run(self, limit=60_000):
        self.clock.run(lambda: all(served.reason is not None for served in self.sessions.values()), limit)
        return self


def targets_own(world, served):
    return alone(served.prompt, served.params, world.n_ctx, world.end_bias)


def check(world, expected=targets_own):
    """The oracle: every session ended with what the target alone says, and drafters were told nothing else."""
    for served in world.sessions.values():
        shown, reason = expected(world, served)
        assert served.reason == reason, f"ended with {served.reason}"
        assert served.shown == shown
        truth = (*served.prompt, *shown, END)
        for drafter in (*served.past, served.drafter, served.second):
            if drafter is not None and world.faults.damage == 0:
                assert tuple(drafter.learned) == truth[: len(drafter.learned)]
