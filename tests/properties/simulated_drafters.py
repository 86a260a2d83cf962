"""Drafters over simulated links: one that drafts as ours do, and one that does whatever could hurt."""

import random
from dataclasses import dataclass
from hashlib import blake2b

from harness import cores as core

from fuzz.oracle import N_VOCAB, Memory, row
from specmesh.core import events as ev
from specmesh.core.accept import uses_proposals
from specmesh.core.prefix import Prefix
from specmesh.core.sampling.proposal import Proposal, ProposalSampler
from specmesh.core.sampling.sampler import Sampler
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
            session, N_VOCAB, setup.n_ctx, setup.n_batch, world.round_trip, params.sampling, can_trim=setup.can_trim
        )
        self.proposes = uses_proposals(params.sampling)
        self.memory = Memory(setup.n_ctx, world.end_bias)
        self.sampler = Sampler(params.sampling)
        self.busy, self.learned = False, []
        self.alive = True
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
        took = self.setup.seconds if step.guess else 0.0
        self.world.clock.at(now + took, lambda: self.finish(step, guess, proposal))

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
        logits = row(prefix.crc, end_bias=self.world.end_bias) + blur * row(prefix.crc ^ 1, end_bias=0.0)
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
    """Sends whatever could hurt: any bytes, impossible ids, long and wrong drafts, NACK floods, replays."""

    def __init__(self, world, setup, session, _):
        self.world, self.setup, self.session = world, setup, session
        self.alive = True
        self.up = self.down = None
        self.heard, self.said = [], []
        self.learned = []
        if not setup.silent:
            world.clock.at(world.clock.now, self.turn)

    def receive(self, message):
        self.heard.append(message)

    def turn(self):
        if self.alive:
            for _ in range(self.world.rng.randint(1, 3)):
                self.say()
            self.world.clock.at(self.world.clock.now + self.setup.seconds, self.turn)

    def say(self):
        rng, session = self.world.rng, self.session
        truth = [h for h in self.heard[-3:] if isinstance(h, m.Truth | m.Sync)]
        known = Prefix()
        if truth and rng.random() < 0.7:
            last = rng.choice(truth)
            base, crc = last.base, last.prefix_crc
            if rng.random() < 0.5:
                known.extend(last.ids)
        else:
            base, crc = rng.choice([0, 1, 9, 40, 2**32 - 1]), rng.choice([0, rng.getrandbits(32)])
        guesses = (rng.randrange(N_VOCAB) for _ in range(rng.choice([0, 1, 3, 40, 400])))
        ids = (*known[0 : len(known)], *guesses)
        kind = rng.randrange(9)
        if kind == 0:
            frame = rng.randbytes(rng.randrange(60))
        elif kind == 1:
            impossible = rng.choice([-1, -(2**31), N_VOCAB, 2**31 - 1])
            frame = encode(m.Draft(session, base, crc, (*ids, impossible)))
        elif kind == 2:
            frame = encode(m.Nack(session, base, crc))
        elif kind == 3 and self.said:
            frame = rng.choice(self.said)
        elif kind > 6:
            frame = encode(self.lie(base, crc, ids))
        else:
            frame = encode(m.Draft(session, base, crc, ids))
        self.said.append(frame)
        self.up.send_raw(frame)

    def lie(self, base, crc, ids):
        """Drafts with distributions that they were not sampled from, or that are none."""
        rng = self.world.rng
        tokens = [rng.sample(range(N_VOCAB), rng.randrange(4)) for _ in ids]
        if rng.random() < 0.7:
            tokens = [some and list(dict.fromkeys((token, *some))) for token, some in zip(ids, tokens, strict=True)]
        if rng.random() < 0.1 and tokens:
            wild = [[-1], [N_VOCAB], [2**31 - 1, *ids[:1]], [*ids[:1], *ids[:1]]]
            tokens[rng.randrange(len(tokens))] = rng.choice(wild)
        support = tuple(token for some in tokens for token in some)
        weights = tuple(rng.choice([1, 1, 7, 65535, *([0] if rng.random() < 0.02 else [])]) for _ in support)
        return m.DraftProbs(self.session, base, crc, ids, tuple(map(len, tokens)), support, weights)
