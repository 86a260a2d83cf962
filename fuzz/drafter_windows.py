"""A drafter's core with windows under a script of frames, steps, time and new turns of its texts.

It never raises and stays bounded. Its sequences hold a text from its beginning, or a window of it.
From the verifier's own frames it learns the verifier's text, and it drafts up to the end of it.
"""

from collections import Counter

from fuzz.frames import Tape, decoded, frame_of
from fuzz.oracle import N_VOCAB
from specmesh.core import events as ev
from specmesh.core.draft_length import MAX_LEAD
from specmesh.core.drafter.core import DrafterCore
from specmesh.core.drafter.session import DrafterSession, DraftLimits
from specmesh.core.drafter.window import Windows, slack
from specmesh.core.kv_contents import ANY_LENGTH
from specmesh.core.kv_reuse import KVReuse
from specmesh.core.kv_slots import KVSlot, KVSlots
from specmesh.core.prefix import Prefix
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.wire import messages as m

SIZES = (16, 64, 24, 40)
SESSIONS = 2
LENGTH = 3000
TEXT = tuple([1 + crc % (N_VOCAB - 1) for crc in map(Prefix(range(LENGTH)).crc_at, range(LENGTH))])
BOS = -1  # in the memory of the draft model
ROUND_TRIPS = (0.0, 0.0003, 0.02, 0.5)


def run(data: bytes) -> Counter[str]:
    """Play the input as a script, then let each session draft to the end of its text."""
    world = _World(Tape(data))
    while world.tape.left:
        world.turn()
    world.end()
    return world.seen


class _Text:
    """A text that the verifier sends: from turn to turn it goes on.

    number, key: of its session. truth: all of its ids. begun: so many were sent.
    learned: ids that its session has learned.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.key = ev.SessionKey(0, number)
        self.truth = Prefix((number, *TEXT))
        self.begun = 0
        self.learned: list[int] = []


class _World:
    """Sessions of one draft model, its sequences, and the texts that were learned."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.now = 0.0
        self.seen = Counter[str]()
        flags = tape.byte()
        self.honest = bool(flags & 1)
        self.can_trim = not flags & 2
        self.endless = flags & 12 == 12
        spares = flags >> 4 & 1
        size = tape.choice(SIZES)
        self.n_ctx = size + slack(size)
        self.n_batch = tape.choice((6, 64, 1))
        windows = Windows(
            n_ctx=self.n_ctx,
            size=size,
            bos=flags >> 5 & 1,
            endless=self.endless,
            spares=spares,
        )
        reuse: KVReuse = "cut"
        room = self.n_ctx
        if not self.can_trim:
            reuse = "whole"
        if self.endless:
            reuse = "whole"
            room = ANY_LENGTH
        self.slots = KVSlots(SESSIONS, reuse, room, guests=spares, n_ctx=self.n_ctx)
        limits = DraftLimits(windows, self.n_batch, batches=True)
        self.core = DrafterCore(limits, self.slots)
        self.spares = spares
        self.bos = windows.bos
        self.memories: list[list[int]] = [[] for _ in range(SESSIONS + spares)]
        self.texts = [_Text(number) for number in range(1, SESSIONS + 1)]
        self.core.handle(ev.UpstreamChanged(0, tape.choice(ROUND_TRIPS), speaks=True), 0.0)
        for text in self.texts:
            self.open(text)

    # --- the script

    def turn(self) -> None:
        tape = self.tape
        self.now += (tape.byte() ** 2) * 1e-5
        text = tape.choice(self.texts)
        match tape.byte() % 16:
            case 0 | 1 | 2 | 3 | 4 | 5:
                for _ in range(1 + tape.byte() % 4):
                    self.work()
            case 6 | 7 | 8 | 9:
                self.tell(text)
            case 10:
                self.rounds(text)
            case 11 if not self.honest:
                frontier = self.session(text).chain.n_truth
                self.hear(text, frame_of(tape, text.truth, text.number, frontier))
            case 12 if not self.honest:
                self.hear(text, tape.take(tape.byte()))
            case 13:
                self.refuse(text)
            case 14:
                self.begin_turn(text)
            case _:
                self.leap(text)

    def open(self, text: _Text) -> None:
        """Open the session of a text, of which so much is the prompt."""
        opened = ev.OpenSession(
            key=text.key,
            session=text.number,
            n_vocab=N_VOCAB,
            n_prompt=text.begun,
            params=SamplingParams(),
        )
        text.learned = []
        self.did(self.core.handle(opened, self.now))

    def begin_turn(self, text: _Text) -> None:
        """End the session of a text; begin another one on it, which may go on in its window."""
        self.did(self.core.handle(ev.CloseSession(text.key), self.now))
        before = self.slots.snapshot().hits
        self.open(text)
        self.handle(text, self.sync(text, 0, text.begun))
        self.work()
        slot = self.session(text).reading.slot
        if self.slots.snapshot().hits > before and slot is not None and slot.start:
            self.seen["window of an earlier turn"] += 1

    def tell(self, text: _Text) -> None:
        """Send a stretch of a text, new or old."""
        tape = self.tape
        n_truth = self.session(text).chain.n_truth
        base = min(tape.choice((n_truth, n_truth, text.begun, 0, tape.byte())), LENGTH)
        end = min(base + tape.byte() % 16, LENGTH)
        draft_n = tape.choice((4, 16, 4, 1, 255, 0))
        accepted = (end - base) // 2
        place = text.number, base, text.truth.crc_at(base)
        self.handle(text, m.Truth(*place, self.ids(text, base, end), draft_n, accepted=accepted))

    def rounds(self, text: _Text) -> None:
        """Let the text grow by rounds in which the draft model is lucky in turns, or always."""
        count = self.tape.byte() % 32
        step = 1 + self.tape.byte() % 8
        script = self.tape
        pattern = b""
        if script.byte() & 1:
            pattern = script.take(4)
        self.tape = Tape(pattern * 99)
        for _ in range(count):
            self.work()
            self.work()
            base = self.session(text).chain.n_truth
            end = min(base + step, LENGTH)
            place = text.number, base, text.truth.crc_at(base)
            ids = self.ids(text, base, end)
            self.handle(text, m.Truth(*place, ids, draft_n=4, accepted=max(len(ids) - 1, 0)))
            self.now += 0.005
        self.tape = script

    def leap(self, text: _Text) -> None:
        """Send as much as a drafter has missed that comes late, or comes back."""
        base = self.session(text).chain.n_truth
        self.handle(text, self.sync(text, base, min(base + self.tape.byte(), LENGTH)))

    def sync(self, text: _Text, base: int, end: int) -> m.Sync:
        ids = self.ids(text, base, end)
        return m.Sync(text.number, base, text.truth.crc_at(base), ids, draft_n=4)

    def ids(self, text: _Text, base: int, end: int) -> tuple[int, ...]:
        text.begun = max(text.begun, end)
        return tuple(text.truth[base:end])

    def refuse(self, text: _Text) -> None:
        """Send a NACK with the right checksum, or another."""
        known = self.session(text).chain.known
        base = max(len(known) - self.tape.byte() % 8, 0)
        if self.tape.byte() & 1:
            crc = known.crc_at(base)
        else:
            crc = self.tape.number(4)
        self.handle(text, m.Nack(text.number, base, crc))

    def hear(self, text: _Text, frame: bytes) -> None:
        """Take a frame from the verifier, as the drafter's loop does."""
        message = decoded(frame, self.seen)
        if isinstance(message, m.Truth | m.Sync | m.Nack):
            self.handle(text, message)

    # --- the draft model

    def work(self) -> bool:
        """Run a step of the draft model, while frames come; return False if there is none."""
        step = self.core.next_step(self.now)
        if isinstance(step, ev.Wait):
            return False
        held = dict[int, int]()
        for cut in step.cuts:
            memory = self.memories[cut.seq]
            assert cut.length <= len(memory), "a cut cannot add ids"
            if not self.can_trim and cut.length < len(memory):
                memory.clear()
            del memory[cut.length :]
            held[cut.seq] = len(memory)
        assert sum(len(row.ids) for row in step.rows) <= self.n_batch
        assert len({row.seq for row in step.rows}) == len(step.rows)
        drafts: list[tuple[int, ...]] = []
        for row in step.rows:
            if row.position == len(self.memories[row.seq]):
                drafts.append(self.drafts(row))
            else:
                drafts.append(())  # the model could not go back so far, which the core learns now
        began = self.now
        self.now += self.tape.byte() * 1e-3
        for _ in range(self.tape.byte() % 4):
            self.tell(self.tape.choice(self.texts))
        self.did(self.core.finish(step, ev.DraftedRows(held, drafts), began, self.now))
        return True

    def drafts(self, row: ev.DraftRow) -> tuple[int, ...]:
        """Append a row's ids to its sequence; return the model's drafts after them."""
        memory = self.memories[row.seq]
        memory += (BOS,) * row.bos
        memory += row.ids
        self.check_memory(row)
        if row.sampler is None:
            self.seen["read"] += 1
            return ()
        if row.text_position > row.position:
            self.seen["drafts of a window"] += 1
        place = row.text_position + len(row.ids)
        truth = self.texts[row.key.number - 1].truth
        found: list[int] = []
        while len(found) < row.draft_n:
            luck = self.tape.byte()
            if luck == 255:
                break
            memory += found[-1:]
            draft = luck % N_VOCAB
            if luck < 160:
                draft = truth.ids[min(place + len(found), LENGTH)]
            found.append(draft)
        if len(found) < row.draft_n:
            memory += found[-1:]
        assert self.endless or len(memory) <= self.n_ctx, "the model's memory is full"
        return tuple(found)

    def check_memory(self, row: ev.DraftRow) -> None:
        """Check that a sequence holds consecutive ids of its text, behind a BOS if need be."""
        memory = self.memories[row.seq]
        assert self.endless or len(memory) <= self.n_ctx, "the model's memory is full"
        end = row.text_position + len(row.ids)
        begins_with_bos = memory[0] == BOS
        window = memory[begins_with_bos:]
        assert BOS not in window, "a BOS in the middle"
        start = end - len(window)
        assert begins_with_bos == (start > 0 and self.bos == 1)
        known = self.core.sessions()[row.key].chain.known
        assert window == known[start:end], "not what the text has there"

    # --- what must hold

    def session(self, text: _Text) -> DrafterSession:
        return self.core.sessions()[text.key]

    def handle(self, text: _Text, frame: m.Truth | m.Sync | m.Nack) -> None:
        self.did(self.core.handle(ev.FrameReceived(text.key, frame), self.now))

    def did(self, effects: list[ev.CoreEffect]) -> None:
        for effect in effects:
            if isinstance(effect, ev.WorkReport):
                continue
            key, wanted = effect
            self.perform(self.texts[key.number - 1], wanted)
        for text in self.texts:
            if text.key in self.core.sessions():
                self.check(text)
        self.check_slots()

    def perform(self, text: _Text, effect: ev.SessionEffect) -> None:
        self.seen[type(effect).__name__] += 1
        match effect:
            case m.Draft(_, base, crc, ids):
                chain = self.session(text).chain
                assert ids
                assert chain.n_truth <= base
                assert crc == chain.known.crc_at(base)
                assert list(ids) == chain.known[base : base + len(ids)]
            case m.Nack(_, base, crc):
                chain = self.session(text).chain
                assert (base, crc) == (chain.n_truth, chain.known.crc_at(base))
            case ev.Learned(ids, accepted):
                assert 0 <= accepted <= len(ids)
                text.learned.extend(ids)
            case _:
                pass

    def check(self, text: _Text) -> None:
        chain = self.session(text).chain
        assert len(chain.known) - chain.n_truth <= MAX_LEAD
        assert 0 <= chain.draft_n <= MAX_LEAD
        if self.honest:
            assert list(chain.truth) == text.truth[: chain.n_truth], "not the verifier's text"
            assert text.learned == text.truth[: chain.n_truth]

    def check_slots(self) -> None:
        """Check that each sequence is free, or that of one session, which it suits."""
        taken: list[KVSlot] = []
        for session in self.core.sessions().values():
            reading = session.reading
            slots = [slot for slot in (reading.slot, reading.spare) if slot is not None]
            taken += slots
            for slot in slots:
                assert slot.end <= len(session.chain.known)
                assert self.endless or slot.length <= self.n_ctx
        assert len({slot.seq for slot in taken}) == len(taken)
        assert self.slots.free == len(self.memories) - len(taken)

    def end(self) -> None:
        """Send more of each text: it is drafted for up to the limit of its chain, then no more."""
        self.seen["takeover"] += self.core.windows().takeovers
        if not self.honest:
            return
        self.tape = Tape(b"")
        for text in self.texts:
            self.now += 1.0
            base = self.session(text).chain.n_truth
            self.handle(text, self.sync(text, base, min(base + 300, LENGTH)))
        for _ in range(LENGTH):
            if not self.work():
                break
        assert isinstance(self.core.next_step(self.now), ev.Wait), "it works without end"
        for text in self.texts:
            chain = self.session(text).chain
            assert len(chain.known) == chain.limit > chain.n_truth, "it does not draft"
            self.did(self.core.handle(ev.CloseSession(text.key), self.now))
        assert self.slots.free == len(self.memories)
