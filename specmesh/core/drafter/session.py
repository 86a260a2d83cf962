"""One session at the drafter: the truth as last heard, the own chain of drafts beyond it, and what to run next.

The chain goes on past what was asked for, assuming acceptance, as far as covers the round trip. A recovered token cuts
it; what still agrees stays. Nothing here can change the text, only how soon the verifier has it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log

from specmesh.core import events as ev
from specmesh.core.draft_length import MAX_LEAD
from specmesh.core.prefix import Prefix, common_length
from specmesh.core.sampling.constraint import DraftConstraint
from specmesh.core.sampling.proposal import Proposal, ProposalSampler, flattened
from specmesh.core.sampling.sampler import Sampler
from specmesh.core.verifier.accept import uses_proposals
from specmesh.errors import SpecmeshError
from specmesh.wire import messages as m

# Seconds that one step may go on drafting, and hear nothing. Simulated with drafts of 0.3 ms and steps of 3 ms, 1.5e-3
# made texts 8 % slower, 6e-4 8 % faster, with more calls and frames.
BURST = 1e-3
# Seconds between two frames of drafts that are asked for, and of those ahead of them: a frame costs more than ids, a
# slow link has room for few, and a verifier has limits. With 1e-3 a busy machine's texts took 130 bytes a token.
FRAME_INTERVAL, AHEAD_INTERVAL = 1.5e-3, 2.5e-3
LEAST_USE = 0.01  # probability below which a draft is not worth its bytes
PRIOR_DRAFTS, PRIOR_RATE = (
    6.0,
    0.75,
)  # drafts that count as judged from the start, and the share of them accepted
KEEP = 0.5 ** (1 / 16)  # what a round still counts after the next one
CHUNK = 128  # most ids of a prompt that are taken in at once: sessions take turns in between


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """What a step of the draft model can be. batches: of rows of several sequences."""

    n_ctx: int
    n_batch: int
    batches: bool = False


class DrafterSession:
    """opened: its n_vocab bounds the ids a peer may name. round_trip: to the verifier, in seconds. seq: its sequence in
    the draft model's memory, if any. That holds `fed` ids, of which the first `held` are the session's still; the rest
    is to be cut. guided: drafts keep to its grammar. undraftable: drafting for it has failed; alone: it did beside
    others, so none joins until it has drafted."""

    def __init__(
        self, opened: ev.DraftFor, limits: DraftLimits, *, round_trip: float = 0.0
    ) -> None:
        self.opened, self._limits = opened, limits
        self.seq: int | None = None
        self.grammar = opened.grammar  # until others are asked to compile it
        self.guided: DraftConstraint | None = None
        self.undraftable = self.alone = False
        self._sampler = Sampler(opened.params)
        self._samples = uses_proposals(opened.params)  # and says from what
        self._plain = (
            not self._sampler.looks_back and not self._samples
        )  # one sampler does for every position
        self.draft_n = 0
        self._round_trip = round_trip
        self.draft_tokens = 0
        self.draft_seconds = 0.0
        self._interval = 0.0  # seconds of a draft, as of late
        self._chunk = min(CHUNK, limits.n_batch)
        self.known = Prefix()  # the truth, then the chain
        self._ids = self.known.ids
        self._proposals: dict[
            int, Proposal
        ] = {}  # by position, what drafts beyond the truth were sampled from
        self.n_truth = 0
        self._learned = 0  # how much of the truth has been reported
        self.fed = self.held = 0
        self._sent = 0  # the chain up to here is at the verifier
        self._sent_at = float("-inf")
        self._stuck = False  # the model has no draft after the newest id
        self._nacked: tuple[float, int] = (float("-inf"), -1)
        self._accepted = self._judged = 0.0  # drafts, of rounds long ago less
        self._judge(0, corrected=False)
        self._most = 0  # ids of truth and chain up to which drafts are worth having

    @property
    def truth(self) -> tuple[int, ...]:
        return tuple(self._ids[: self.n_truth])

    def handle(self, said: m.Truth | m.Sync | m.Nack, now: float) -> list[ev.DrafterEffect]:
        return self._send_again(said, now) if isinstance(said, m.Nack) else self._grow(said, now)

    def plan(self, room: int | None = None) -> ev.DraftRow | None:
        """What the draft model should do next: take in what it has not seen, then draft. None: nothing, as where no
        drafts are asked for. room: ids that others leave in their step, which only a draft may join."""
        ids, held = self._ids, self.held
        if not self.draft_n:
            return None
        drafts = len(ids) < self._most and not self._stuck
        missing = (len(ids) if drafts else self.n_truth - 1) - held
        if missing <= 0 or self.n_truth > self._limits.n_ctx:
            return None
        draft = drafts and missing <= self._chunk
        if room is not None and not (draft and missing <= room):
            return None
        assert self.seq is not None, "only who has a sequence has a plan"
        end = held + min(missing, self._chunk)
        if not draft:
            return ev.DraftRow(self.opened.key, self.seq, held, tuple(ids[held:end]), None)
        if self._plain and self.guided is None:
            return ev.DraftRow(
                self.opened.key,
                self.seq,
                held,
                tuple(ids[held:end]),
                self._sampler,
                self._in_a_row(),
            )
        return ev.DraftRow(
            self.opened.key, self.seq, held, tuple(ids[held:end]), self._sampler_at(end)
        )

    def _in_a_row(self) -> int:
        """Drafts that the model makes before it hears anything: those asked for, or those beyond them, but no longer
        than BURST."""
        asked, ahead = self.n_truth + self.draft_n - len(self._ids), self._most - len(self._ids)
        in_time = int(BURST / self._interval) if self._interval else 1
        return max(min(asked if asked > 0 else ahead, ahead, in_time), 1)

    def _sampler_at(self, end: int) -> Sampler:
        """Return what chooses the id at this position."""
        sampler, back = self._sampler, self._sampler.looks_back
        if back:
            sampler = sampler.after(self._before(end, back))
        if self.guided is not None and self.guided.exhausted is None:
            try:
                return self.guided.sampler(
                    sampler, end - self.opened.n_prompt, lambda count: self._before(end, count)
                )
            except SpecmeshError:
                self.guided = None  # drafts go on without
        return ProposalSampler(sampler, self.known.crc_at(end)) if self._samples else sampler

    def _before(self, end: int, most: int) -> list[int]:
        return self._ids[0 if most < 0 else max(end - most, 0) : end]

    def set_round_trip(self, seconds: float) -> None:
        self._round_trip = seconds
        self._set_most()

    # --- the truth

    def _grow(self, truth: m.Truth | m.Sync, now: float) -> list[ev.DrafterEffect]:
        base, ids, known, sync = truth.base, truth.ids, self._ids, isinstance(truth, m.Sync)
        impossible = ids and (min(ids) < 0 or max(ids) >= self.opened.n_vocab)
        if impossible or not self.known.holds(base, truth.prefix_crc):
            return self._nack(now)
        end = base + len(ids)
        agreed = base + common_length(ids, known[base:end])
        if agreed < min(end, self.n_truth) and not sync:
            return self._nack(now)  # two truths about one position: one was damaged on its way
        if end < self.n_truth and agreed == end:
            return []  # old news
        self.draft_n = min(truth.draft_n, MAX_LEAD)
        right = max(min(agreed, end - 1) - self.n_truth, 0)
        if not sync:
            self._judge(right, corrected=self.n_truth <= agreed < min(end, len(known)))
        if agreed < end:
            self._cut(agreed)
            self.known.extend(ids[agreed - base :])
        self.n_truth = end
        if self._proposals:
            self._proposals = {at: one for at, one in self._proposals.items() if at >= end}
        self._sent = max(self._sent, end)
        self._stuck = False
        self._set_most()
        return self._learn(truth, right) + self._send(now)

    def _cut(self, length: int) -> None:
        self.known.truncate(length)
        self._proposals = {at: one for at, one in self._proposals.items() if at < length}
        self._sent = min(self._sent, length)
        self.n_truth = min(self.n_truth, length)
        self.held = min(self.held, length)

    def _learn(self, truth: m.Truth | m.Sync, own: int) -> list[ev.DrafterEffect]:
        new = tuple(self._ids[self._learned : self.n_truth])
        if not new:
            return []
        self._learned = self.n_truth
        if isinstance(truth, m.Sync):
            return [ev.Learned(new, sync=True)]
        return [ev.Learned(new, min(truth.accepted, len(new)), own)]

    def _nack(self, now: float) -> list[ev.DrafterEffect]:
        if self._nacked[1] == self.n_truth and now - self._nacked[0] < m.NACK_INTERVAL:
            return []
        self._nacked = (now, self.n_truth)
        return [m.Nack(self.opened.session, self.n_truth, self.known.crc_at(self.n_truth))]

    def _send_again(self, nack: m.Nack, now: float) -> list[ev.DrafterEffect]:
        if nack.base < self.n_truth or not self.known.holds(nack.base, nack.prefix_crc):
            return self._nack(now)
        self._sent = nack.base
        return self._send(now)

    # --- the chain

    def _set_most(self) -> None:
        drafts = self.draft_n > 0 and self.n_truth > 0
        self._most = min(self.n_truth + self._wanted_lead(), self._limits.n_ctx) if drafts else 0

    def _wanted_lead(self) -> int:
        """Drafts worth having beyond the truth: this step's, those of the next, and those that a round trip hides."""
        interval = self._interval or self._round_trip
        hidden = ceil(self._round_trip / interval) if interval > 0 else 0
        return max(min(2 * self.draft_n + 1 + hidden, MAX_LEAD, self._reach), self.draft_n)

    def _judge(self, accepted: int, *, corrected: bool) -> None:
        """Note how many drafts were accepted, and how long a chain may be while its last draft has a chance to."""
        if accepted or corrected:
            self._accepted = self._accepted * KEEP + accepted
            self._judged = self._judged * KEEP + accepted + corrected
        rate = (self._accepted + PRIOR_DRAFTS * PRIOR_RATE) / (self._judged + PRIOR_DRAFTS)
        self._reach = ceil(log(LEAST_USE) / log(rate))

    def cut_to(self, length: int) -> None:
        """Note that the model's memory was cut, to so many ids, or fewer than were asked for."""
        self.fed, self.held = length, min(self.held, length)

    def predicted(
        self, row: ev.DraftRow, tokens: Sequence[int], started: float, now: float
    ) -> list[ev.DrafterEffect]:
        """Note what the model took in, as far as it belongs to the chain still, and let that grow by its drafts."""
        if row.position != self.fed:
            return []  # the memory could not be cut there, and was not fed
        made = (*row.ids, *tokens)
        self.fed += len(made) - (
            len(tokens) == row.draft_n
        )  # the last draft is fed next time, unless none followed it
        if row.position != self.held:
            return []  # what it follows was cut meanwhile
        known = self._ids[self.held : self.held + len(made)]
        agreed = common_length(made, known)
        self.held = min(self.held + agreed, self.fed)
        if agreed < max(len(known), len(row.ids)):
            return []  # corrected meanwhile
        if not tokens:
            self._stuck = row.sampler is not None and self.held == len(self._ids)
            return self._send(now)
        self.draft_tokens += len(tokens)
        self.draft_seconds += now - started
        interval = (now - started) / len(tokens)
        self._interval += (interval - self._interval) / 8 if self._interval else interval
        self.held, new = self.fed, made[agreed:]  # without what was learned meanwhile
        if new and isinstance(row.sampler, ProposalSampler) and row.sampler.proposal is not None:
            self._proposals[len(self._ids)] = row.sampler.proposal
        self.known.extend(new)
        self._stuck = len(tokens) < row.draft_n
        return self._send(now)

    def _send(self, now: float) -> list[ev.DrafterEffect]:
        """Send what is not sent: at once where it is all that the next step wants, else once in FRAME_INTERVAL,
        or in AHEAD_INTERVAL where it is beyond that."""
        base, end, wanted = (
            max(self._sent, self.n_truth),
            len(self._ids),
            self.n_truth + self.draft_n,
        )
        more = end < self._most and not self._stuck and not base < wanted <= end
        if base >= end or (
            more and now - self._sent_at < (FRAME_INTERVAL if base < wanted else AHEAD_INTERVAL)
        ):
            return []
        self._sent, self._sent_at = end, now
        place = self.opened.session, base, self.known.crc_at(base), tuple(self._ids[base:end])
        if self._proposals:
            return [
                m.DraftProbs(
                    *place, *flattened([self._proposals.get(at) for at in range(base, end)])
                )
            ]
        return [m.Draft(*place)]
