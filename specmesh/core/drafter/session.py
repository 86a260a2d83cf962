"""One session at the drafter: its state, its next row, and the frames that it takes.

`chain` has its text and its drafts, `reading` the sequences of the draft model that hold them.
Nothing here can change the text, only how soon the verifier has it.

A frame's ids meet the chain in one of four ways. With the committed ids a b and the chain c d e:

| TRUTH after a b | meaning | what stays of the chain |
|---|---|---|
| c d | c was accepted, and the verifier's own next token is d, as drafted | e |
| c d e f | all were accepted; f is the bonus token | nothing; f is committed |
| c x | d was rejected; x is the recovered token | nothing; the slot is cut before d |
| b ... | the frame is late, or was sent again | all, if it agrees with what is known |

A frame that starts further on, or has another CRC, means that something was lost: NACK asks for
the text from here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from specmesh.core import events as ev
from specmesh.core.drafter.chain import DraftChain
from specmesh.core.drafter.reading import TextReading
from specmesh.core.drafter.window import WindowReader, Windows
from specmesh.core.kv_slots import KVSlot, KVSlots
from specmesh.core.prefix import common_length
from specmesh.core.sampling.constraint import Constraint, DraftConstraint, Grammar
from specmesh.core.sampling.proposal import ProposalSampler
from specmesh.core.sampling.sampler import Sampler
from specmesh.core.states import state_after
from specmesh.core.verifier.accept import uses_proposals
from specmesh.errors import SpecmeshError
from specmesh.wire import messages as m

CHUNK = 128  # most ids of a prompt in a step, so that sessions take turns


class DraftingState(Enum):
    """The state of a session at the drafter.

    - WAITING: it has no KV slot.
    - DRAFTING: it has one. It may share steps with other sessions.
    - SUSPECTED: it has no slot, because a step failed that it shared.
    - ON_TRIAL: it has a slot again. It shares no step until it has drafted.
    - UNDRAFTABLE: a step of its own failed. Nothing is drafted for it any more.
    """

    WAITING = "waiting"
    DRAFTING = "drafting"
    SUSPECTED = "suspected"
    ON_TRIAL = "on trial"
    UNDRAFTABLE = "undraftable"


class DraftingEvent(Enum):
    """An event that changes the state."""

    SLOT_GIVEN = "slot given"
    SLOT_TAKEN = "slot taken"
    DRAFTED = "drafted"
    SHARED_STEP_FAILED = "shared step failed"
    OWN_STEP_FAILED = "own step failed"


DRAFTING_STATES: Mapping[DraftingState, Mapping[DraftingEvent, DraftingState]] = {
    DraftingState.WAITING: {DraftingEvent.SLOT_GIVEN: DraftingState.DRAFTING},
    DraftingState.DRAFTING: {
        DraftingEvent.SLOT_TAKEN: DraftingState.WAITING,
        DraftingEvent.SHARED_STEP_FAILED: DraftingState.SUSPECTED,
        DraftingEvent.OWN_STEP_FAILED: DraftingState.UNDRAFTABLE,
    },
    DraftingState.SUSPECTED: {DraftingEvent.SLOT_GIVEN: DraftingState.ON_TRIAL},
    DraftingState.ON_TRIAL: {
        DraftingEvent.DRAFTED: DraftingState.DRAFTING,
        DraftingEvent.SLOT_TAKEN: DraftingState.SUSPECTED,
        DraftingEvent.OWN_STEP_FAILED: DraftingState.UNDRAFTABLE,
    },
    DraftingState.UNDRAFTABLE: {},
}
"""The state that follows each event, in each state."""


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """Limits of the draft model's steps.

    windows: of texts. n_batch: ids in a step.
    batches: a step may have rows of several sequences.
    """

    windows: Windows
    n_batch: int
    batches: bool = False

    def reader(self) -> WindowReader:
        """Return a reader of these windows."""
        return WindowReader(self.windows, min(CHUNK, self.n_batch))


class DrafterSession:
    """One session.

    opened: as its verifier has opened it.
    chain: its text and its drafts.
    reading: the sequences that it reads them in.
    grammar: its grammar, until somebody compiles it. constraint: drafts keep to it from then on.
    """

    def __init__(
        self, opened: ev.OpenSession, reader: WindowReader, slots: KVSlots, round_trip: float
    ) -> None:
        """Begin without text and slot; reader, slots: shared by all sessions."""
        self.opened = opened
        self.state = DraftingState.WAITING
        self.grammar = opened.grammar
        self.constraint: DraftConstraint | None = None
        self.chain = DraftChain(opened.session, round_trip)
        self.reading = TextReading(self.chain, reader, slots)
        self._chunk = reader.chunk
        self._sampler = Sampler(opened.params)
        self._samples = uses_proposals(opened.params)
        # One sampler does for every position.
        self._plain = not self._sampler.looks_back and not self._samples

    def advance(self, event: DraftingEvent) -> None:
        """Change the state. Raise InvalidTransition if it has no such event."""
        self.state = state_after(DRAFTING_STATES, "drafter's session", self.state, event)

    # --- its grammar

    def take_grammar(self) -> Grammar | None:
        """Return the grammar, which the caller has compiled; None if it was taken before."""
        grammar = self.grammar
        self.grammar = None
        return grammar

    def constrain(self, constraint: Constraint) -> None:
        """Keep drafts to the compiled grammar from now on."""
        self.constraint = DraftConstraint(constraint, self.opened.end_ids)

    # --- the next row

    def plan(self, room: int | None = None) -> ev.DraftRow | None:
        """Return the session's row of the next step; None if it needs none.

        The row brings the ids that the slot lacks, then drafts.

        room: ids that the others of the step leave, which only a row that drafts may join.
        """
        chain = self.chain
        reading = self.reading
        slot = reading.slot
        if not chain.draft_n:
            return None
        assert slot is not None, "only a session with a slot has rows"
        if not slot.length:
            reading.begin(slot)
        # Not even the committed ids fit. `attend` moves the window first.
        if chain.n_truth > reading.room:
            return None
        ids = chain.ids
        drafts = len(ids) < chain.limit
        spare = reading.spare
        if spare is not None and (not drafts or reading.piece_is_due()):
            return self._plan_piece(spare) if room is None else None
        begin = slot.end
        # A row without drafts reads committed ids only, since others may be rejected. The last one
        # is left for the row that drafts: its logits show the next id.
        end = len(ids) if drafts else chain.n_truth - 1
        if end <= begin:
            return None
        # Too much for one row: the chain waits until the slot has caught up.
        if end - begin > self._chunk:
            drafts = False
            end = begin + self._chunk
        if slot.stops and slot.part_end(end) < end:
            drafts = False
            end = slot.part_end(end)
        # A row joins others only if it hardly makes their step longer.
        if room is not None and (not drafts or end - begin > room):
            return None
        sampler: Sampler | None = None
        draft_n = 1
        # The sampler is the same at each position, so the engine makes several drafts in one step.
        # Others need to see each draft before the next one is chosen.
        if drafts and self._plain and self.constraint is None:
            sampler = self._sampler
            draft_n = chain.burst()
        elif drafts:
            sampler = self._sampler_at(end)
        return self._row(slot, begin, end, sampler, draft_n)

    def _plan_piece(self, spare: KVSlot) -> ev.DraftRow | None:
        """Return a row that reads on in the next window; None if all is read."""
        begin = spare.end
        end = self.reading.piece_end(spare)
        return self._row(spare, begin, end) if end > begin else None

    def _row(
        self, slot: KVSlot, begin: int, end: int, sampler: Sampler | None = None, draft_n: int = 1
    ) -> ev.DraftRow:
        """Return the row that brings the ids between two positions of the text."""
        return ev.DraftRow(
            key=self.opened.key,
            seq=slot.seq,
            position=slot.length,
            text_position=begin,
            ids=tuple(self.chain.ids[begin:end]),
            sampler=sampler,
            draft_n=draft_n,
            bos=0 if slot.length else slot.bos,
        )

    def _sampler_at(self, end: int) -> Sampler:
        """Return the sampler of the id at this position."""
        sampler = self._sampler
        if sampler.looks_back:
            sampler = sampler.after(self.chain.before(end, sampler.looks_back))
        constraint = self.constraint
        if constraint is not None and constraint.exhausted is None:
            place = end - self.opened.n_prompt
            try:
                return constraint.sampler(
                    sampler, place, lambda count: self.chain.before(end, count)
                )
            except SpecmeshError:
                self.constraint = None  # drafts go on without it
        if self._samples:
            return ProposalSampler(sampler, self.chain.known.crc_at(end))
        return sampler

    def drafted(
        self, row: ev.DraftRow, tokens: Sequence[int], started: float, ended: float
    ) -> list[m.Draft | m.DraftProbs]:
        """Take the drafts of a row, as far as the chain was not cut meanwhile."""
        chain = self.chain
        slot = self.reading.slot
        assert slot is not None, "a slot stays while its step runs"
        # It was of the spare sequence, or of one that the session has left.
        if row.seq != slot.seq:
            self.reading.read_piece(row, ended - started)
            return []
        if row.position != slot.length:
            return []  # the ids before the row were cut meanwhile, or the slot could not go back
        begin = row.text_position
        ids = (*row.ids, *tokens)
        # The last draft is appended by the next row, unless the model had no more after it.
        appended = len(ids)
        if len(tokens) == row.draft_n:
            appended -= 1
        known = tuple(chain.ids[begin : begin + len(ids)])
        agreed = len(known)
        if known != ids[:agreed]:
            agreed = common_length(ids, known)
        slot.length += row.bos + appended
        if agreed < max(len(known), len(row.ids)):  # the chain was corrected meanwhile
            if agreed < appended:
                self.reading.cut_to(slot, begin + agreed)
            return []
        sampler = row.sampler
        if sampler is not None:
            self.reading.draft_rows += 1
        if tokens:
            proposal = sampler.proposal if isinstance(sampler, ProposalSampler) else None
            # Without those that were committed meanwhile.
            chain.append(ids[agreed:], len(tokens), ended - started, proposal)
            if len(tokens) < row.draft_n:
                chain.end_at(len(chain.ids))  # the model has no more
        elif sampler is not None and slot.end == len(chain.ids):
            chain.end_at(slot.end)  # the model has no draft
        return chain.send(ended)

    # --- frames of the verifier

    def handle(self, frame: m.Truth | m.Sync | m.Nack, now: float) -> Sequence[ev.DrafterEffect]:
        """Take a frame of the verifier."""
        if isinstance(frame, m.Nack):
            return self.chain.send_again(frame, now)
        return self._grow(frame, now)

    def _grow(self, truth: m.Truth | m.Sync, now: float) -> Sequence[ev.DrafterEffect]:
        """Let the committed text grow; ask for it again if the frame does not continue it."""
        chain = self.chain
        base = truth.base
        ids = truth.ids
        sync = isinstance(truth, m.Sync)
        if ids and (min(ids) < 0 or max(ids) >= self.opened.n_vocab):
            return chain.nack(now)
        if not chain.known.holds(base, truth.prefix_crc):
            return chain.nack(now)
        end = base + len(ids)
        n_truth = chain.n_truth
        agreed = base + common_length(ids, chain.ids[base:end])
        if agreed < min(end, n_truth) and not sync:
            return chain.nack(now)  # of two texts for one position, one was damaged on its way
        # A frame that ends before the frontier has nothing new; one at the frontier may have a new
        # draft_n.
        if agreed == end < n_truth:
            return []  # the frame is late
        # The last id is the target's own choice, even if the chain has it: no draft was accepted
        # there.
        accepted = max(min(agreed, end - 1) - n_truth, 0)
        if not sync:
            # One draft was compared and refused. Those behind it were never looked at, and prove
            # nothing.
            rejected = 1 if n_truth <= agreed < min(end, len(chain.ids)) else 0
            self.reading.end_round(accepted, rejected=rejected)
            if accepted + rejected:
                chain.judge(accepted, rejected=rejected)
        effects: list[ev.DrafterEffect] = []
        if agreed < end:
            self.reading.cut(agreed)
            chain.replace(agreed, ids[agreed - base :])
        effects += chain.commit(truth, accepted)
        chain.set_limit(self.reading.room)
        effects += chain.send(now)
        return effects
