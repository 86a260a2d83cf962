"""A drafter's session under a script of frames, drafts and time.

It never raises and stays bounded. From the verifier's own frames, in any order and repeated, it
learns the verifier's text.
"""

from collections import Counter
from collections.abc import Sequence

from fuzz.frames import Tape, decoded, frame_of
from fuzz.oracle import N_VOCAB, Memory, alone
from specmesh.core import events as ev
from specmesh.core.draft_length import MAX_LEAD
from specmesh.core.drafter.session import DrafterSession
from specmesh.core.drafter.window import WindowReader, Windows
from specmesh.core.kv_orders import KVCut
from specmesh.core.kv_slots import KVSlots
from specmesh.core.prefix import Prefix
from specmesh.core.sampling.proposal import Proposal, ProposalSampler, unflattened
from specmesh.core.sampling.sampler import Sampler, SamplingParams
from specmesh.core.session_params import SessionParams
from specmesh.wire import messages as m

SESSION = 7
ROUND_TRIPS = (0.0, 0.0003, 0.02, 0.5)
OPENED = ev.OpenSession(
    key=ev.SessionKey(0, SESSION),
    session=SESSION,
    n_vocab=N_VOCAB,
    n_prompt=0,
    params=SamplingParams(),
)
TEXT = alone(SessionParams(SamplingParams(temperature=1.0, seed=11), 24), 64)[0]


def run(data: bytes) -> Counter[str]:
    world = _World(Tape(data))
    while world.tape.left:
        world.turn()
    world.end()
    return world.seen


class _World:
    """A session, its draft model's memory, and the text that it learned."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.now = 0.0
        self.seen = Counter[str]()
        flags = tape.byte()
        self.honest = bool(flags & 1)
        self.samples = bool(flags & 2)
        n_ctx = tape.choice((96, 96, 20, 1))
        self.n_batch = tape.choice((6, 64, 1))
        self.can_trim = bool(tape.byte() & 1)
        self.slots = KVSlots(1, "cut", 0)
        reader = WindowReader(Windows(n_ctx=n_ctx), self.n_batch)
        self.session = DrafterSession(OPENED, reader, self.slots, tape.choice(ROUND_TRIPS))
        self.slot = self.slots.acquire((), 0, cached=False)
        self.session.reading.take(self.slot)
        self.truth = Prefix(TEXT)
        self.memory = Memory(n_ctx)
        self.learned: list[int] = []
        self.made: dict[int, Proposal] = {}
        self.heard = 0

    # --- the script

    def turn(self) -> None:
        self.now += (self.tape.byte() ** 2) * 1e-5
        match self.tape.byte() % 16:
            case 0 | 1 | 2 | 3 | 4 | 5:
                self.work()
            case 6 | 7 | 8 | 9:
                self.tell()
            case 10 | 11 | 12 if not self.honest:
                self.hear(frame_of(self.tape, self.truth, SESSION, self.session.chain.n_truth))
            case 13 if not self.honest:
                self.hear(self.tape.take(self.tape.byte()))
            case 14:
                self.refuse()
            case _:
                self.session.chain.round_trip = self.tape.choice(ROUND_TRIPS)

    def refuse(self) -> None:
        """Send a NACK with the right checksum, or another."""
        known = self.session.chain.known
        base = self.tape.byte() % (len(known) + 2)
        if self.tape.byte() & 1:
            self.handle(m.Nack(SESSION, base, known.crc_at(min(base, len(known)))))
        else:
            self.handle(m.Nack(SESSION, base, self.tape.number(4)))

    def tell(self) -> None:
        """Send a stretch of the verifier's text, new or old."""
        tape = self.tape
        base = min(tape.choice((self.session.chain.n_truth, self.heard, 0, tape.byte())), len(TEXT))
        ids = TEXT[base : base + tape.byte() % 16]
        self.heard = base + len(ids)
        draft_n = tape.choice((4, 0, 1, 16, 255))
        place = SESSION, base, self.truth.crc_at(base)
        if tape.byte() & 1:
            self.handle(m.Sync(*place, ids, draft_n))
        else:
            self.handle(m.Truth(*place, ids, draft_n, accepted=len(ids) // 2))

    def hear(self, frame: bytes) -> None:
        """Take a frame from the verifier, as the drafter's loop does."""
        message = decoded(frame, self.seen)
        if isinstance(message, m.Truth | m.Sync | m.Nack):
            self.handle(message)
        elif message is not None:
            self.seen["no event"] += 1

    def work(self) -> None:
        """Do one unit of drafting: the model takes ids in, and drafts."""
        plan = self.session.plan()
        if plan is None:
            return
        held = len(self.memory.held)
        assert 0 < len(plan.ids) <= self.n_batch
        known = self.session.chain.known[held : held + len(plan.ids)]
        assert list(plan.ids) == known, "not where the memory ends"
        self.memory.append(plan.ids)
        began = self.now
        drafts: list[int] = []
        sampler: ProposalSampler | None = None
        if plan.sampler is not None:
            drafts = self.drafts_of(plan.draft_n)
            sampler = ProposalSampler(Sampler(SamplingParams()), 0)
            if self.samples and len(drafts) == 1:
                sampler.proposal = self.proposal(drafts[0])
        self.memory.trim(held)
        self.now += self.tape.byte() * 1e-3
        for _ in range(self.tape.byte() % 4):
            self.tell()
        if len(self.memory.held) == held:  # a cut of the meantime is made after the step
            self.memory.append((*plan.ids, *drafts[:-1]))
        used = sampler if plan.sampler is not None else None
        row = plan._replace(sampler=used)
        self.did(self.session.drafted(row, drafts, began, self.now))

    def drafts_of(self, most: int) -> list[int]:
        """Return the model's next ids, at most so many, each after the others."""
        found: list[int] = []
        while len(found) < most:
            draft = self.draft()
            if draft is None:
                break
            self.memory.append(found[-1:])
            found.append(draft)
        return found

    def draft(self) -> int | None:
        luck = self.tape.byte()
        if luck == 255:
            return None
        if luck < 160:
            return TEXT[min(len(self.memory.held), len(TEXT) - 1)]
        return luck % N_VOCAB

    def proposal(self, draft: int) -> Proposal | None:
        """Return the distribution of a draft, another one for each position; sometimes None."""
        if self.tape.byte() == 0:
            return None
        at = len(self.memory.held)
        self.made[at] = Proposal((draft, (draft + 1) % N_VOCAB), (1 + at, 1))
        return self.made[at]

    # --- what must hold

    def handle(self, event: m.Truth | m.Sync | m.Nack) -> None:
        self.did(self.session.handle(event, self.now))

    def did(self, effects: Sequence[ev.DrafterEffect]) -> None:
        self.cut()
        self.perform(effects)
        session = self.session
        assert len(session.chain.known) - session.chain.n_truth <= MAX_LEAD
        assert 0 <= session.chain.draft_n <= MAX_LEAD
        held = len(self.memory.held)
        assert self.memory.held[0:held] == session.chain.known[0:held]
        if self.honest:
            assert session.chain.known[0 : session.chain.n_truth] == list(
                TEXT[: session.chain.n_truth]
            ), "not the verifier's text"

    def cut(self) -> None:
        """Carry out the cuts that the session has ordered."""
        for order in self.slots.orders():
            self.seen[type(order).__name__] += 1
            assert isinstance(order, KVCut)
            self.memory.trim(order.length if self.can_trim else 0)
            self.slot.length = len(self.memory.held)

    def perform(self, effects: Sequence[ev.DrafterEffect]) -> None:
        assert len(effects) <= 4
        known = self.session.chain.known
        for effect in effects:
            self.seen[type(effect).__name__] += 1
            match effect:
                case m.Draft(_, base, crc, ids) | m.DraftProbs(_, base, crc, ids):
                    assert ids
                    proposals: Sequence[Proposal | None] = ()
                    if isinstance(effect, m.DraftProbs):
                        proposals = unflattened((effect.sizes, effect.support, effect.weights))
                    assert len(proposals) in (0, len(ids) * self.samples)
                    for at, one in enumerate(proposals, base):
                        assert one is None or one == self.made[at], (
                            "the distribution of another draft"
                        )
                    self.seen["sampled"] += any(proposals)
                    assert self.session.chain.n_truth <= base
                    assert (crc, list(ids)) == (known.crc_at(base), known[base : base + len(ids)])
                case m.Nack(_, base, crc):
                    assert (base, crc) == (self.session.chain.n_truth, known.crc_at(base))
                case ev.Learned(ids, accepted):
                    assert 0 <= accepted <= len(ids)
                    assert ids
                    self.seen["accepted"] += accepted
                    self.learned.extend(ids)

    def end(self) -> None:
        """Send all of the text once more: the session then has learned exactly that."""
        if not self.honest:
            return
        self.now += 1.0
        self.handle(m.Sync(SESSION, 0, 0, TEXT, 4))
        assert tuple(self.learned) == TEXT
        for _ in range(len(TEXT) + 2 * MAX_LEAD):
            self.work()
        assert self.session.plan() is None, "it drafts without end"
