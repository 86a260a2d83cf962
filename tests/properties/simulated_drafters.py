"""Drafters over simulated links: one that drafts as ours do, and one that does whatever could hurt."""

import random
from dataclasses import dataclass
from hashlib import blake2b

from harness import cores as core

from fuzz.frames import WILD_IDS, Tape, frame_of
from fuzz.oracle import N_VOCAB, Memory, row
from specmesh.core import events as ev
from specmesh.core.prefix import Prefix
from specmesh.core.sampling.proposal import Proposal, ProposalSampler
from specmesh.core.sampling.sampler import Sampler
from specmesh.core.verifier.accept import uses_proposals
from specmesh.wire import messages as m
from specmesh.wire.codec import encode


@dataclass(frozen=True)
class Drafter:
    """A drafter to attach: how often it is right, or how it misbehaves; it dies after `life` seconds."""

    accuracy: float = 0.8
    hostile: bool = False
    silent: bool = False
    seconds: float = 0.005
    life: float = float("inf")
    n_ctx: int = 4096
    n_batch: int = 6
    can_trim: bool = True


class HonestDrafter:
    """A drafter with a model that takes time: one thing at a time, frames whenever they come."""

    def __init__(self, world, setup, session, params):
        self.world, self.setup, self.session = world, setup, session
        self.core = core.Drafter(
            session,
            setup.n_ctx,
            setup.n_batch,
            world.round_trip,
            params.sampling,
            can_trim=setup.can_trim,
        )
        self.proposes = uses_proposals(params.sampling)
        self.memory = Memory(setup.n_ctx, world.end_bias)
        self.sampler = Sampler(params.sampling)
        self.busy, self.alive, self.learned = False, True, []
        self.up = self.down = None

    def receive(self, message):
        if isinstance(message, m.Truth | m.Sync | m.Nack) and message.session == self.session:
            self.perform(self.core.receive(message, self.world.clock.now))
            self.turn()

    def turn(self):
        if not self.alive or self.busy:
            return
        now = self.world.clock.now
        step, effects = self.core.next_step(now)
        self.perform(effects)
        if step is None:
            return
        assert 0 < len(step.ids) <= self.setup.n_batch
        self.memory.trim(step.position)
        self.memory.append(step.ids)
        guess, proposal = self.guess() if step.guess else (None, None)
        self.busy = True
        self.world.clock.at(
            now + self.setup.seconds * step.guess, lambda: self.finish(step, guess, proposal)
        )

    def finish(self, step, guess, proposal):
        self.busy = False
        if self.alive:
            self.perform(self.core.finish(step, guess, proposal, self.world.clock.now))
            self.turn()

    def guess(self):
        """The target's own choice, as often as this drafter is right; now and then nothing. Of a probabilistic text a
        sample, and what it is of."""
        held = self.memory.held
        if self.proposes:
            return self.proposed(held)
        right = self.sampler.after(held[0 : len(held)]).choose(self.memory.logits(), len(held))
        luck = blake2b(b"luck %d" % held.crc, digest_size=2).digest()
        if luck[0] < 256 * self.setup.accuracy:
            return right, None
        return None if luck[1] < 16 else (right + 1 + luck[1] % (N_VOCAB - 1)) % N_VOCAB, None

    def proposed(self, prefix):
        """A draft after a prefix, always the same there, and its proposal: the less accurate the drafter is, the less
        it is the target's distribution; sampled as drafters do, or from two tokens in thirds, or certain."""
        ids, blur = prefix[0 : len(prefix)], (1 - self.setup.accuracy) * 2
        logits = row(prefix.crc, end_bias=self.world.end_bias) + blur * row(
            prefix.crc ^ 1, end_bias=0.0
        )
        sampler, luck = self.sampler.after(ids), random.Random(prefix.crc ^ self.world.seed)
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
    """Sends whatever could hurt: any bytes, replays, NACK floods; drafts for any place, impossible, long, wrong, with
    distributions that they were not sampled from, or that are none."""

    def __init__(self, world, setup, session, _):
        self.world, self.setup, self.session = world, setup, session
        self.alive, self.said, self.learned = True, [b""], []
        self.up = self.down = None
        if not setup.silent:
            world.clock.at(world.clock.now, self.turn)

    def receive(self, message):
        """It knows the text as it is."""

    def turn(self):
        if self.alive:
            for _ in range(self.world.rng.randint(1, 3)):
                self.say()
            self.world.clock.at(self.world.clock.now + self.setup.seconds, self.turn)

    def say(self):
        rng, served = self.world.rng, self.world.sessions[self.session]
        truth = Prefix((*served.prompt, *served.shown))
        place, ids = (
            (self.session, len(truth), truth.crc),
            rng.choices(range(N_VOCAB), k=rng.choice((1, 3, 40, 400))),
        )
        untrue = frame_of(Tape(rng.randbytes(99)), truth, self.session, len(truth))
        wrong, impossible = (
            m.Draft(*place, tuple(said)) for said in (ids, [*ids[:3], rng.choice(WILD_IDS)])
        )
        any_bytes, replayed = rng.randbytes(rng.randrange(60)), rng.choice(self.said)
        frame = rng.choice((*[untrue] * 3, encode(wrong), encode(impossible), any_bytes, replayed))
        self.said.append(frame)
        self.up.send_raw(frame)
