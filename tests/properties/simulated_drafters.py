"""Drafters over simulated links: an honest one that drafts as ours do, and a hostile one."""

import random
from dataclasses import dataclass
from hashlib import blake2b

from harness import cores as core

from fuzz.frames import WILD_IDS, Tape, frame_of
from fuzz.oracle import N_VOCAB, row
from specmesh.core import events as ev
from specmesh.core.drafter.window import Windows
from specmesh.core.prefix import Prefix
from specmesh.core.sampling.proposal import Proposal, ProposalSampler
from specmesh.core.sampling.sampler import Sampler
from specmesh.core.verifier.accept import uses_proposals
from specmesh.wire import messages as m
from specmesh.wire.codec import encode


@dataclass(frozen=True, kw_only=True)
class Drafter:
    """A drafter to attach.

    accuracy: how often it is right.
    hostile, silent: it sends anything, or nothing.
    seconds: that a draft takes.
    life: seconds until it dies.
    window: ids that it reads of a text that does not fit; 0: it reads whole texts only. A window
        is read in 1/16 of a draft's time for each id.
    endless: its model is recurrent, so a sequence may have any length.
    """

    accuracy: float = 0.8
    hostile: bool = False
    silent: bool = False
    seconds: float = 0.005
    life: float = float("inf")
    n_ctx: int = 4096
    n_batch: int = 6
    can_trim: bool = True
    window: int = 0
    endless: bool = False

    @property
    def windows(self):
        """Return the windows that it reads, with BOS and spare sequences, or None."""
        if not self.window:
            return None
        return Windows(n_ctx=self.n_ctx, size=self.window, bos=1, endless=self.endless, spares=2)


class HonestDrafter:
    """A drafter whose model does one thing at a time, while frames come whenever they come."""

    def __init__(self, world, setup, session, params):
        self.world = world
        self.setup = setup
        self.session = session
        self.core = core.Drafter(
            session,
            setup.n_ctx,
            setup.n_batch,
            world.round_trip,
            params.sampling,
            can_trim=setup.can_trim,
            windows=setup.windows,
            n_prompt=len(world.sessions[session].prompt),
        )
        self.proposes = uses_proposals(params.sampling)
        self.end_bias = world.end_bias
        self.sampler = Sampler(params.sampling)
        self.busy = False
        self.alive = True
        self.learned = []
        self.up = self.down = None

    def receive(self, message):
        if isinstance(message, m.Truth | m.Sync | m.Nack) and message.session == self.session:
            self.perform(self.core.receive(message, self.world.clock.now))
            self.turn()

    def turn(self):
        if not self.alive or self.busy:
            return
        clock = self.world.clock
        step, effects = self.core.next_step(clock.now)
        self.perform(effects)
        if step is None:
            return
        assert 0 < len(step.ids) <= self.setup.n_batch
        token = proposal = None
        if step.wants_draft:
            token, proposal = self.draft_after(step.text)
        self.busy = True
        drafts = step.wants_draft + len(step.ids) / 16 * step.window
        end = clock.now + self.setup.seconds * drafts
        clock.at(end, lambda: self.finish(step, token, proposal))

    def finish(self, step, token, proposal):
        self.busy = False
        if self.alive:
            self.perform(self.core.finish(step, token, proposal, self.world.clock.now))
            self.turn()

    def draft_after(self, held):
        """Return a draft, or now and then none, and the proposal that it is a sample of."""
        if self.proposes:
            return self.proposed(held)
        right = self.sampler.after(held[0 : len(held)]).choose(self.logits(held), len(held))
        luck, other = blake2b(b"luck %d" % held.crc, digest_size=2).digest()
        if luck < 256 * self.setup.accuracy:
            return right, None
        if other < 16:
            return None, None
        return (right + 1 + other % (N_VOCAB - 1)) % N_VOCAB, None

    def logits(self, prefix):
        return row(prefix.crc, end_bias=self.end_bias)

    def proposed(self, prefix):
        """Return a draft after a prefix, always the same there, and its proposal.

        The less accurate the drafter is, the less its distribution is the target's. A draft is
        sampled as drafters do, or from two tokens in thirds, or it is certain.
        """
        blur = (1 - self.setup.accuracy) * 2
        noise = row(prefix.crc ^ 1, end_bias=0.0)
        logits = self.logits(prefix) + blur * noise
        sampler = self.sampler.after(prefix[0 : len(prefix)])
        luck = random.Random(prefix.crc ^ self.world.seed)
        form = luck.randrange(8)
        if form > 1:
            sampler = ProposalSampler(sampler, prefix.crc)
            return sampler.choose(logits, len(prefix)), sampler.proposal
        likeliest = sampler.likeliest(logits, 2)[0].tolist()
        if form == 0 or len(likeliest) < 2:
            return likeliest[0], None
        return luck.choices(likeliest, (2, 1))[0], Proposal(tuple(likeliest), (2, 1))

    def perform(self, effects):
        for effect in effects:
            match effect:
                case ev.Learned(ids):
                    self.learned.extend(ids)
                case core.Send(message):
                    self.world.seen[f"{type(message).__name__} of a drafter"] += 1
                    self.up.send(message)


class HostileDrafter:
    """Sends any bytes, replays, and drafts for any place that are impossible, long or wrong.

    Their distributions are none, or others than they were sampled from.
    """

    def __init__(self, world, setup, session, _):
        self.world = world
        self.setup = setup
        self.session = session
        self.alive = True
        self.sent = [b""]
        self.learned = []
        self.up = self.down = None
        if not setup.silent:
            world.clock.at(world.clock.now, self.turn)

    def receive(self, message):
        """Do nothing: it reads the text in the world."""

    def turn(self):
        if self.alive:
            for _ in range(self.world.rng.randint(1, 3)):
                self.attack()
            self.world.clock.at(self.world.clock.now + self.setup.seconds, self.turn)

    def attack(self):
        rng = self.world.rng
        served = self.world.sessions[self.session]
        truth = Prefix((*served.prompt, *served.shown))
        place = (self.session, len(truth), truth.crc)
        wrong = rng.choices(range(N_VOCAB), k=rng.choice((1, 3, 40, 400)))
        untrue = frame_of(Tape(rng.randbytes(99)), truth, self.session, len(truth))
        impossible = [*wrong[:3], rng.choice(WILD_IDS)]
        drafts = [encode(m.Draft(*place, tuple(ids))) for ids in (wrong, impossible)]
        any_bytes = rng.randbytes(rng.randrange(60))
        replayed = rng.choice(self.sent)
        frame = rng.choice((untrue, untrue, untrue, *drafts, any_bytes, replayed))
        self.sent.append(frame)
        self.up.send_raw(frame)
