"""One session at the drafter: the committed text, a chain of drafts beyond it, and its next row.

The chain assumes that its drafts are accepted. It goes on past the drafts that were asked for, as
far as covers the round trip. A recovered token cuts it, and what still agrees stays. Nothing here
can change the text, only how soon the verifier has it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import ceil, log

from specmesh.core import events as ev
from specmesh.core.draft_length import MAX_LEAD
from specmesh.core.drafter.window import Piece, WindowReader, Windows
from specmesh.core.kv_slots import KVBegin, KVCut, KVSlot
from specmesh.core.prefix import Prefix, common_length
from specmesh.core.sampling.constraint import DraftConstraint
from specmesh.core.sampling.proposal import Proposal, ProposalSampler, flattened
from specmesh.core.sampling.sampler import Sampler
from specmesh.core.verifier.accept import uses_proposals
from specmesh.errors import InvalidTransition, SpecmeshError
from specmesh.wire import messages as m

BURST = 1e-3
"""Seconds that one step may go on drafting, while frames wait.

Simulated with drafts of 0.3 ms and steps of 3 ms, 1.5e-3 made texts 8 % slower; 6e-4 made them 8 %
faster, with more calls and frames.
"""
FRAME_INTERVAL = 1.5e-3
"""Seconds between two frames of drafts that are asked for.

A frame costs more than its ids, a slow link has room for few, and a verifier has limits. With 1e-3
a busy machine's texts took 130 bytes a token.
"""
AHEAD_INTERVAL = 2.5e-3  # seconds between two frames of drafts beyond those asked for
LEAST_USE = 0.01  # probability below which a draft is not worth its bytes
PRIOR_DRAFTS = 6.0  # drafts that count as judged from the start
PRIOR_RATE = 0.75  # share of them that count as accepted
KEEP = 0.5 ** (1 / 16)  # weight of a round once another has followed
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


class WindowNeed(Enum):
    """A change of the sequence that a session reads its text in.

    - ANEW: its own is to be emptied, and to begin with a new window.
    - SPARE: a spare one is to be given to it, for the next window.
    - TAKEOVER: the spare one takes over.
    """

    ANEW = "anew"
    SPARE = "spare"
    TAKEOVER = "takeover"


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """Limits of the draft model's steps.

    n_ctx: cells of a sequence. n_batch: ids in a step.
    batches: a step may have rows of several sequences.
    windows: of texts; by default they are read whole, up to `n_ctx` ids.
    """

    n_ctx: int
    n_batch: int
    batches: bool = False
    windows: Windows | None = None

    def reader(self) -> WindowReader:
        """Return a reader of these windows."""
        windows = self.windows or Windows(n_ctx=self.n_ctx)
        return WindowReader(windows, self.chunk)

    @property
    def chunk(self) -> int:
        """Return the most ids of a step that drafts nothing, so that sessions take turns."""
        return min(CHUNK, self.n_batch)


class DrafterSession:
    """One session.

    opened: as its verifier has opened it.
    slot: its KV slot, if it has one. The slot holds ids of `known`: the first, or a window.
    spare: the slot of the next window, while that is read.
    grammar: its grammar, until somebody compiles it. constraint: drafts keep to it from then on.
    known: the committed ids, then the chain. n_truth: how many are committed.
    draft_n: drafts wanted for the verifier's next step.
    draft_tokens, draft_seconds: drafts made, and the seconds of the steps that made them.
    round_trip: to the verifier, in seconds.
    """

    def __init__(
        self,
        opened: ev.OpenSession,
        limits: DraftLimits,
        *,
        round_trip: float = 0.0,
        reader: WindowReader | None = None,
    ) -> None:
        """Begin without text and slot; reader: of all sessions, unless it is the only one."""
        self.opened = opened
        self.state = DraftingState.WAITING
        self.slot: KVSlot | None = None
        self.spare: KVSlot | None = None
        self.grammar = opened.grammar
        self.constraint: DraftConstraint | None = None
        self.known = Prefix()
        self.n_truth = 0
        self.draft_n = 0
        self.draft_tokens = 0
        self.draft_seconds = 0.0
        self.round_trip = round_trip
        self._ids = self.known.ids
        self._chunk = limits.chunk
        self._reader = reader or limits.reader()
        self._windows = self._reader.windows
        self._piece_is_next = False  # of the next window, else drafts
        self._pieces = 0  # of windows, since the last round
        self._draft_rows = 0  # since the last round
        self._sampler = Sampler(opened.params)
        self._samples = uses_proposals(opened.params)
        # One sampler does for every position.
        self._plain = not self._sampler.looks_back and not self._samples
        # What drafts of the chain were sampled from, by position.
        self._proposals: dict[int, Proposal] = {}
        self._interval = 0.0  # recent seconds of a draft
        self._learned = 0  # committed ids that were reported
        self._sent = 0  # the verifier has the chain up to here
        self._sent_at = float("-inf")
        self._nacked_at = float("-inf")
        self._nacked_length = -1
        # Drafts of recent rounds.
        self._accepted = 0.0
        self._judged = 0.0
        self._judge(0, corrected=False)
        self._limit = 0  # ids of text and chain, as long as drafts are worth having

    @property
    def truth(self) -> tuple[int, ...]:
        """Return the committed ids."""
        return tuple(self._ids[: self.n_truth])

    def advance(self, event: DraftingEvent) -> None:
        """Change the state; raise InvalidTransition if it knows no such event."""
        following = DRAFTING_STATES[self.state].get(event)
        if following is None:
            raise InvalidTransition("drafter's session", self.state, event)
        self.state = following

    def handle(self, frame: m.Truth | m.Sync | m.Nack, now: float) -> list[ev.DrafterEffect]:
        """Take a frame of the verifier."""
        if isinstance(frame, m.Nack):
            return self._send_again(frame, now)
        return self._grow(frame, now)

    # --- the sequences that it reads its text in

    def take(self, slot: KVSlot) -> list[KVCut]:
        """Take a slot, perhaps with ids of the text; empty it if it is no good beginning."""
        self.slot = slot
        cuts: list[KVCut] = []
        if slot.length and not self._windows.suits(slot, self.n_truth):
            cuts.append(_emptied(slot))
        self._set_limit()
        return cuts

    def begin_of(self, slot: KVSlot) -> KVBegin:
        """Return the place in the text at which a slot begins."""
        return KVBegin(slot.start, slot.bos, self.known.crc_at(slot.start))

    def window_need(self) -> WindowNeed | None:
        """Return the change that is due before the next row; None for none.

        A window is read anew if its session has heard nothing for long, or if it is full and no
        sequence was there for the next one.
        """
        slot = self.slot
        if slot is None or not self._windows.size:
            return None
        if not slot.length:
            return WindowNeed.TAKEOVER if self.spare is not None else None
        windows = self._windows
        if windows.is_behind(slot, self.n_truth):
            return WindowNeed.ANEW
        if self.spare is not None:
            read = len(self._ids) - self.spare.end <= self._piece(self.spare).ids
            return WindowNeed.TAKEOVER if read else None
        if self.n_truth >= windows.limit(slot):
            return WindowNeed.ANEW
        return WindowNeed.SPARE if windows.is_due(slot, self.n_truth) else None

    def begin_anew(self) -> KVCut:
        """Empty the slot, for a new window."""
        slot = self.slot
        assert slot is not None, "only a session with a slot has windows"
        if not self._windows.is_behind(slot, self.n_truth):
            self._pieces += 1  # drafts wait for it
        return _emptied(slot)

    def begin_spare(self, spare: KVSlot) -> None:
        """Begin to read the next window in a spare sequence."""
        self.spare = spare
        self._windows.begin_next(spare, self.n_truth)

    def take_over(self) -> None:
        """Go on in the spare sequence. The one before is the spare one then."""
        before = self.slot
        self.slot = self.spare
        self.spare = before
        self._reader.takeovers += 1
        self._set_limit()

    def _piece(self, spare: KVSlot) -> Piece:
        """Return the next piece of a window that is read in a spare sequence."""
        slot = self.slot
        assert slot is not None, "only a session with a slot has a spare one"
        length = len(self._ids)
        return self._reader.piece(
            rest=length - spare.end,
            room=self._windows.limit(slot) - length,
            drafts=self._burst() + 1,
            seconds=max(BURST, self._interval),
        )

    # --- the next row

    def plan(self, room: int | None = None) -> ev.DraftRow | None:
        """Return the session's row of the next step; None if it needs none.

        The row brings the ids that the slot lacks, then drafts.

        room: ids that the others of the step leave, which only a row that drafts may join.
        """
        slot = self.slot
        if not self.draft_n:
            return None
        assert slot is not None, "only a session with a slot has rows"
        if not slot.length:
            self._reader.begin(slot, self.n_truth)
            self._set_limit()
        if self.n_truth > self._windows.limit(slot):
            return None
        drafts = len(self._ids) < self._limit
        spare = self.spare
        if spare is not None and (not drafts or self._prefers_piece(spare)):
            return self._plan_piece(spare) if room is None else None
        ids = self._ids
        begin = slot.end
        end = len(ids) if drafts else self.n_truth - 1
        if end <= begin:
            return None
        if end - begin > self._chunk:
            drafts = False
            end = begin + self._chunk
        if room is not None and (not drafts or end - begin > room):
            return None
        sampler: Sampler | None = None
        draft_n = 1
        if drafts and self._plain and self.constraint is None:
            sampler = self._sampler
            draft_n = self._burst()
        elif drafts:
            sampler = self._sampler_at(end)
        return self._row(slot, end, sampler, draft_n)

    def _prefers_piece(self, spare: KVSlot) -> bool:
        """Return True if the next window is read on before more is drafted.

        Drafts and pieces take turns, once the drafts are made that the next step wants, or where
        the window would not be read in time.
        """
        if not self._piece_is_next:
            return False
        has_wanted = len(self._ids) >= self.n_truth + self.draft_n
        return has_wanted or self._piece(spare).urgent

    def _plan_piece(self, spare: KVSlot) -> ev.DraftRow | None:
        """Return a row that reads on in the next window; None if all is read."""
        end = min(spare.end + self._piece(spare).ids, len(self._ids))
        if end <= spare.end:
            return None
        return self._row(spare, end)

    def _row(
        self, slot: KVSlot, end: int, sampler: Sampler | None = None, draft_n: int = 1
    ) -> ev.DraftRow:
        """Return the row that brings the ids up to a position of the text."""
        begin = slot.end
        return ev.DraftRow(
            key=self.opened.key,
            seq=slot.seq,
            position=slot.length,
            text_position=begin,
            ids=tuple(self._ids[begin:end]),
            sampler=sampler,
            draft_n=draft_n,
            bos=0 if slot.length else slot.bos,
        )

    def _burst(self) -> int:
        """Return how many drafts a step makes: those asked for, or else those ahead of them.

        Together they take no longer than BURST.
        """
        length = len(self._ids)
        ahead = self._limit - length
        wanted = self.n_truth + self.draft_n - length
        if wanted <= 0:
            wanted = ahead
        in_time = int(BURST / self._interval) if self._interval else 1
        return max(min(wanted, ahead, in_time), 1)

    def _sampler_at(self, end: int) -> Sampler:
        """Return the sampler of the id at this position."""
        sampler = self._sampler
        if sampler.looks_back:
            sampler = sampler.after(self._before(end, sampler.looks_back))
        constraint = self.constraint
        if constraint is not None and constraint.exhausted is None:
            place = end - self.opened.n_prompt
            try:
                return constraint.sampler(sampler, place, lambda count: self._before(end, count))
            except SpecmeshError:
                self.constraint = None  # drafts go on without it
        if self._samples:
            return ProposalSampler(sampler, self.known.crc_at(end))
        return sampler

    def _before(self, end: int, count: int) -> list[int]:
        """Return the last ids before a position: at most `count`, or all if that is negative."""
        if count < 0:
            return self._ids[:end]
        return self._ids[max(end - count, 0) : end]

    # --- the committed text

    def _grow(self, truth: m.Truth | m.Sync, now: float) -> list[ev.DrafterEffect]:
        base = truth.base
        ids = truth.ids
        sync = isinstance(truth, m.Sync)
        if ids and (min(ids) < 0 or max(ids) >= self.opened.n_vocab):
            return self._nack(now)
        if not self.known.holds(base, truth.prefix_crc):
            return self._nack(now)
        end = base + len(ids)
        agreed = base + common_length(ids, self._ids[base:end])
        if agreed < min(end, self.n_truth) and not sync:
            return self._nack(now)  # of two texts for one position, one was damaged on its way
        if agreed == end < self.n_truth:
            return []  # the frame is late
        accepted = max(min(agreed, end - 1) - self.n_truth, 0)
        if not sync:
            corrected = self.n_truth <= agreed < min(end, len(self._ids))
            self._judge(accepted, corrected=corrected)
            self._count_round()
        self.draft_n = min(truth.draft_n, MAX_LEAD)
        effects: list[ev.DrafterEffect] = []
        if agreed < end:
            effects += self._cut(agreed)
            self.known.extend(ids[agreed - base :])
        self.n_truth = end
        if self._proposals:
            self._forget_proposals(end, len(self._ids))
        self._sent = max(self._sent, end)
        self._set_limit()
        effects += self._learn(truth, accepted)
        effects += self._send(now)
        return effects

    def _cut(self, length: int) -> list[ev.DrafterEffect]:
        """Keep the first ids of text and chain."""
        self.known.truncate(length)
        if self._proposals:
            self._forget_proposals(0, length)
        self._sent = min(self._sent, length)
        self.n_truth = min(self.n_truth, length)
        effects: list[ev.DrafterEffect] = []
        for slot in (self.slot, self.spare):
            if slot is not None and slot.end > length:
                effects.append(_cut_to(slot, length))
        if self.spare is not None and not self.spare.length:
            self._windows.begin_next(self.spare, length)
        return effects

    def _count_round(self) -> None:
        """Note a round that had no drafts because a window was read."""
        in_hand = len(self._ids) - self.n_truth
        if self.draft_n and self._pieces and not self._draft_rows and not in_hand:
            self._reader.held_up += 1
        self._pieces = 0
        self._draft_rows = 0
        self._piece_is_next = False

    def _forget_proposals(self, begin: int, end: int) -> None:
        """Keep the proposals of the positions begin .. end - 1."""
        for position in list(self._proposals):
            if not begin <= position < end:
                del self._proposals[position]

    def _learn(self, truth: m.Truth | m.Sync, own: int) -> list[ev.DrafterEffect]:
        """Report the committed ids that were not reported."""
        new = tuple(self._ids[self._learned : self.n_truth])
        if not new:
            return []
        self._learned = self.n_truth
        if isinstance(truth, m.Sync):
            return [ev.Learned(new, sync=True)]
        return [ev.Learned(new, min(truth.accepted, len(new)), own)]

    def _nack(self, now: float) -> list[ev.DrafterEffect]:
        if self._nacked_length == self.n_truth and now - self._nacked_at < m.NACK_INTERVAL:
            return []
        self._nacked_at = now
        self._nacked_length = self.n_truth
        return [m.Nack(self.opened.session, self.n_truth, self.known.crc_at(self.n_truth))]

    def _send_again(self, nack: m.Nack, now: float) -> list[ev.DrafterEffect]:
        if nack.base < self.n_truth or not self.known.holds(nack.base, nack.prefix_crc):
            return self._nack(now)
        self._sent = nack.base
        return self._send(now)

    # --- the chain

    def _set_limit(self) -> None:
        self._limit = 0
        if self.draft_n > 0 and self.n_truth > 0:
            self._limit = self.n_truth + self._wanted_lead()
            if self.slot is not None:
                self._limit = min(self._limit, self._windows.limit(self.slot))

    def _wanted_lead(self) -> int:
        """Return how many drafts are worth having: the next two steps', and a round trip's."""
        interval = self._interval or self.round_trip
        hidden = ceil(self.round_trip / interval) if interval > 0 else 0
        lead = min(2 * self.draft_n + 1 + hidden, MAX_LEAD, self._reach)
        return max(lead, self.draft_n)

    def _judge(self, accepted: int, *, corrected: bool) -> None:
        """Note a round, and how long a chain may be before its last draft has no chance."""
        if accepted or corrected:
            rejected = 1 if corrected else 0
            if self.slot is not None:
                self._reader.judge(self.slot, self.n_truth, accepted=accepted, rejected=rejected)
            self._accepted = self._accepted * KEEP + accepted
            self._judged = self._judged * KEEP + accepted + rejected
        rate = (self._accepted + PRIOR_DRAFTS * PRIOR_RATE) / (self._judged + PRIOR_DRAFTS)
        self._reach = ceil(log(LEAST_USE) / log(rate))

    def drafted(
        self, row: ev.DraftRow, tokens: Sequence[int], started: float, ended: float
    ) -> list[ev.DrafterEffect]:
        """Take the drafts of a row, as far as the chain was not cut meanwhile."""
        slot = self.slot
        assert slot is not None, "a slot stays while its step runs"
        if row.seq != slot.seq:
            return self._read_piece(row, ended - started)
        if row.position != slot.length:
            return []  # the ids before the row were cut meanwhile, or the slot could not go back
        begin = row.text_position
        ids = (*row.ids, *tokens)
        # The last draft is appended by the next row, unless the model had no more after it.
        appended = len(ids)
        if len(tokens) == row.draft_n:
            appended -= 1
        known = self._ids[begin : begin + len(ids)]
        agreed = common_length(ids, known)
        slot.length += row.bos
        if agreed < max(len(known), len(row.ids)):  # the chain was corrected meanwhile
            slot.length += appended
            return [_cut_to(slot, begin + agreed)] if agreed < appended else []
        slot.length += appended
        if row.sampler is not None:
            self._draft_rows += 1
            self._piece_is_next = True
        if not tokens:
            if row.sampler is not None and slot.end == len(self._ids):
                self._limit = slot.end  # the model has no draft
            return self._send(ended)
        self.draft_tokens += len(tokens)
        self.draft_seconds += ended - started
        interval = (ended - started) / len(tokens)
        self._interval += (interval - self._interval) / 8 if self._interval else interval
        new = ids[agreed:]  # without those that were committed meanwhile
        if new and isinstance(row.sampler, ProposalSampler) and row.sampler.proposal is not None:
            self._proposals[len(self._ids)] = row.sampler.proposal
        self.known.extend(new)
        if len(tokens) < row.draft_n:
            self._limit = len(self._ids)  # the model has no more
        return self._send(ended)

    def _read_piece(self, row: ev.DraftRow, seconds: float) -> list[ev.DrafterEffect]:
        """Take a row that read on in the next window."""
        self._piece_is_next = False
        self._pieces += 1
        self._reader.read(len(row.ids), seconds)
        spare = self.spare
        if spare is None or row.seq != spare.seq:
            return []
        begin = row.text_position
        if (row.position, begin) != (spare.length, spare.end):  # the window was moved meanwhile
            return [KVCut(spare.seq, spare.length)]
        spare.length += row.bos + len(row.ids)
        agreed = common_length(row.ids, self._ids[begin : begin + len(row.ids)])
        return [_cut_to(spare, begin + agreed)] if agreed < len(row.ids) else []

    def _send(self, now: float) -> list[ev.DrafterEffect]:
        """Send the drafts that were not sent.

        - At once if they are all that the next step wants, or no more are made.
        - Else once in FRAME_INTERVAL, or in AHEAD_INTERVAL if the next step has what it wants.
        """
        base = max(self._sent, self.n_truth)
        end = len(self._ids)
        if base >= end:
            return []
        wanted = self.n_truth + self.draft_n
        completes = base < wanted <= end
        if end < self._limit and not completes:
            interval = FRAME_INTERVAL if base < wanted else AHEAD_INTERVAL
            if now - self._sent_at < interval:
                return []
        self._sent = end
        self._sent_at = now
        draft = m.Draft(
            self.opened.session, base, self.known.crc_at(base), tuple(self._ids[base:end])
        )
        if not self._proposals:
            return [draft]
        proposals = [self._proposals.get(position) for position in range(base, end)]
        sizes, support, weights = flattened(proposals)
        return [
            m.DraftProbs(
                session=draft.session,
                base=base,
                prefix_crc=draft.prefix_crc,
                ids=draft.ids,
                sizes=sizes,
                support=support,
                weights=weights,
            )
        ]


def _cut_to(slot: KVSlot, end: int) -> KVCut:
    """Have a slot end at a position of the text; it is empty if it begins there."""
    if end <= slot.start:
        return _emptied(slot)
    slot.length = end - slot.start + slot.bos
    return KVCut(slot.seq, slot.length)


def _emptied(slot: KVSlot) -> KVCut:
    slot.length = 0
    return KVCut(slot.seq, 0)
