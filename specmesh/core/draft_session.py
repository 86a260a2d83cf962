"""One session at the drafter: the truth as last heard, the own chain of guesses beyond it, and what to run next.

The chain goes on past what was asked for, assuming acceptance, up to a credit that covers the round trip. A correction
cuts it; what still agrees stays. Nothing here can change the text, only how soon the verifier has it.
"""

from dataclasses import dataclass
from math import ceil, inf, log

from specmesh.core import events as ev
from specmesh.core.accept import uses_proposals
from specmesh.core.prefix import Prefix, common_length
from specmesh.core.sampling.constraint import DraftConstraint
from specmesh.core.sampling.proposal import Proposal, ProposalSampler
from specmesh.core.sampling.sampler import Sampler
from specmesh.errors import SpecmeshError

MAX_CREDIT = 48  # most drafts beyond the truth, whatever the verifier asks for
COALESCE = 1.5e-3  # seconds a finished draft may wait for company: frames cost more than ids
COALESCE_AHEAD = 2.5e-3  # the same for those beyond what was asked for
LEAST_USE = 0.01  # probability below which a draft is not worth its bytes
PRIOR_DRAFTS, PRIOR_RATE = 6.0, 0.75  # drafts that count as judged from the start, and the share of them that stood
KEEP = 0.5 ** (1 / 16)  # what a round still counts after the next one
FIRST_CHUNK = 8
# a long prompt is taken in by chunks of about this long, begun with FIRST_CHUNK ids: between them the drafter listens,
# and a slow machine must not look dead
CHUNK_SECONDS = 0.1
NACK_INTERVAL = 0.1  # seconds between two NACKs for the same gap


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """What a step of the draft model can be. batches: of rows of several sequences."""

    n_ctx: int
    n_batch: int
    batches: bool = False


class DrafterSession:
    """asked: its n_vocab bounds the ids a peer may name. round_trip: to the verifier, in seconds.

    seq: its sequence in the draft model's memory, if any, which holds `held` ids. guided: drafts keep to its grammar.
    undraftable: drafting for it has failed.
    """

    def __init__(self, asked: ev.DraftFor, limits: DraftLimits, *, round_trip: float = 0.0) -> None:
        self.asked, self._limits = asked, limits
        self.seq: int | None = None
        self.grammar = asked.grammar  # until others are told to compile it
        self.guided: DraftConstraint | None = None
        self.undraftable = False
        self._grammar_error: str | None = None
        self._sampler = Sampler(asked.params)
        self._samples = uses_proposals(asked.params)  # and says from what
        self._plain = not self._sampler.looks_back and not self._samples  # one sampler does for every position
        self.draft_n = 0
        self._round_trip = round_trip
        self.drafted = 0
        self.draft_seconds = 0.0
        self._chunk = min(FIRST_CHUNK, limits.n_batch)
        self._known = Prefix()  # the truth, then the chain
        self._ids = self._known.ids
        self._proposals: dict[int, Proposal] = {}  # by position, what drafts beyond the truth were sampled from
        self.n_truth = 0
        self._learned = 0  # how much of the truth has been reported
        self.held = 0  # ids in the draft model's memory
        self._sent = 0  # the chain up to here is at the verifier
        self._unsent_since: float | None = None
        self._stuck = False  # the model has no guess after the newest id
        self._nacked: tuple[float, int] = (float("-inf"), -1)
        self._accepted = self._judged = 0.0  # drafts, of rounds long ago less
        self._judge(0, corrected=False)
        self._most = 0  # ids of truth and chain up to which drafts are worth having

    @property
    def truth(self) -> tuple[int, ...]:
        return tuple(self._ids[: self.n_truth])

    def handle(self, event: ev.Told | ev.Nacked, now: float) -> list[ev.DrafterEffect]:
        return self._told(event, now) if isinstance(event, ev.Told) else self._asked(event.base, event.crc, now)

    def plan(self, room: int | None = None) -> ev.DraftRow | None:
        """What the draft model should do next: take in what it has not seen, then guess. None: nothing, as where no
        drafts are asked for. room: ids that others leave in their step, which only a guess may join."""
        ids, held = self._ids, self.held
        if not self.draft_n:
            return None
        drafts = len(ids) < self._most and not self._stuck
        missing = (len(ids) if drafts else self.n_truth - 1) - held
        if missing <= 0 or self.n_truth > self._limits.n_ctx:
            return None
        guess = drafts and missing <= self._chunk
        if room is not None and not (guess and missing <= room):
            return None
        assert self.seq is not None, "only who has a sequence has a plan"
        end = held + min(missing, self._chunk)
        sampler = self._sampler if self._plain and self.guided is None else self._sampler_at(end)
        return ev.DraftRow(self.asked.key, self.seq, held, tuple(ids[held:end]), sampler if guess else None)

    def _sampler_at(self, end: int) -> Sampler:
        """Return what chooses the id at this position."""
        sampler, back = self._sampler, self._sampler.looks_back
        if back:
            sampler = sampler.after(self._before(end, back))
        if self.guided is not None:
            try:
                return self.guided.sampler(sampler, end - self.asked.n_prompt, lambda count: self._before(end, count))
            except SpecmeshError as error:
                self._grammar_error = str(error)
        return ProposalSampler(sampler, self._known.crc_at(end)) if self._samples else sampler

    def _before(self, end: int, most: int) -> list[int]:
        return self._ids[0 if most < 0 else max(end - most, 0) : end]

    def give_up_grammar(self) -> str | None:
        """Draft without the grammar where it has failed or taken too long; return why, once."""
        why = None
        if self.guided is not None and (why := self._grammar_error or self.guided.exhausted) is not None:
            self.guided = None
        return why

    def set_round_trip(self, seconds: float) -> None:
        self._round_trip = seconds
        self._set_most()

    # --- the truth

    def _told(self, event: ev.Told, now: float) -> list[ev.DrafterEffect]:
        ids, known = event.ids, self._ids
        impossible = ids and (min(ids) < 0 or max(ids) >= self.asked.n_vocab)
        if impossible or not self._known.holds(event.base, event.crc):
            return self._nack(now)
        end = event.base + len(ids)
        agreed = event.base + common_length(ids, known[event.base : end])
        if agreed < min(end, self.n_truth) and not event.sync:
            return self._nack(now)  # two truths about one position: one was damaged on its way
        if end < self.n_truth and agreed == end:
            return []  # old news
        self.draft_n = min(event.draft_n, MAX_CREDIT)
        accepted = max(min(agreed, end - 1) - self.n_truth, 0)
        if not event.sync:
            self._judge(accepted, corrected=self.n_truth <= agreed < min(end, len(known)))
        effects = list[ev.DrafterEffect]()
        if agreed < end:
            effects = self._cut(agreed)
            self._known.extend(ids[agreed - event.base :])
        self.n_truth = end
        if self._proposals:
            self._proposals = {at: one for at, one in self._proposals.items() if at >= end}
        self._sent = max(self._sent, end)
        self._stuck = False
        self._set_most()
        return effects + self._learn(accepted, sync=event.sync) + self._send()

    def _cut(self, length: int) -> list[ev.DrafterEffect]:
        self._known.truncate(length)
        self._proposals = {at: one for at, one in self._proposals.items() if at < length}
        self._sent = min(self._sent, length)
        self.n_truth = min(self.n_truth, length)
        self._unsent_since = None
        if self.held <= length:
            return []
        self.held = length
        return [ev.Trim(length)]

    def _learn(self, accepted: int, *, sync: bool) -> list[ev.DrafterEffect]:
        new = tuple(self._ids[self._learned : self.n_truth])
        if not new:
            return []
        self._learned = self.n_truth
        return [ev.Learned(new, min(accepted, len(new)), sync)]

    def _nack(self, now: float) -> list[ev.DrafterEffect]:
        if self._nacked[1] == self.n_truth and now - self._nacked[0] < NACK_INTERVAL:
            return []
        self._nacked = (now, self.n_truth)
        return [ev.Nacked(self.n_truth, self._known.crc_at(self.n_truth))]

    def _asked(self, base: int, crc: int, now: float) -> list[ev.DrafterEffect]:
        if base < self.n_truth or not self._known.holds(base, crc):
            return self._nack(now)
        self._sent = base
        return self._send()

    # --- the chain

    def _set_most(self) -> None:
        asked = self.draft_n > 0 and self.n_truth > 0
        self._most = min(self.n_truth + self._credit(), self._limits.n_ctx) if asked else 0

    def _credit(self) -> int:
        """Drafts worth having beyond the truth: this step's, those of the next, and those that a round trip hides."""
        interval = self.draft_seconds / self.drafted if self.drafted else self._round_trip
        hidden = ceil(self._round_trip / interval) if interval > 0 else 0
        ahead = min(2 * self.draft_n + 1 + hidden, MAX_CREDIT)
        return max(min(ahead, self._reach), self.draft_n)

    def _judge(self, accepted: int, *, corrected: bool) -> None:
        """Note how many drafts stood, and how long a chain may be while its last draft has a chance to."""
        if accepted or corrected:
            self._accepted = self._accepted * KEEP + accepted
            self._judged = self._judged * KEEP + accepted + corrected
        rate = (self._accepted + PRIOR_DRAFTS * PRIOR_RATE) / (self._judged + PRIOR_DRAFTS)
        self._reach = ceil(log(LEAST_USE) / log(rate))

    def predicted(self, row: ev.DraftRow, token: int | None, started: float, now: float) -> list[ev.DrafterEffect]:
        """Note what the model took in, as far as it belongs to the chain still, and let that grow by its guess."""
        if row.position != self.held:
            return []  # what it follows was cut, further than it was to be or meanwhile
        count, known = len(row.ids), tuple(self._ids[row.position : row.position + len(row.ids)])
        if count == self._chunk:
            self._chunk = self._next_chunk(now - started)
        if row.ids != known:
            self.held += common_length(row.ids, known)
            return [ev.Trim(self.held)]
        self.held += count
        if self.held < self.n_truth:
            return []
        if token is None:
            self._stuck = row.sampler is not None and self.held == len(self._ids)
            return self._send() if self._stuck else []
        self.drafted += 1
        self.draft_seconds += now - started
        if isinstance(row.sampler, ProposalSampler) and row.sampler.proposal is not None:
            self._proposals[len(self._ids)] = row.sampler.proposal
        self._known.extend((token,))
        if self._unsent_since is None:
            self._unsent_since = started
        return self._send(now)

    def _next_chunk(self, seconds: float) -> int:
        if seconds > 2 * CHUNK_SECONDS:
            return max(self._chunk // 2, 1)
        return min(self._chunk * 2, self._limits.n_batch) if seconds < CHUNK_SECONDS / 2 else self._chunk

    def _send(self, now: float = inf) -> list[ev.DrafterEffect]:
        """Send what is not sent: all that the next step wants, or beyond it more than a step consumes, or what has
        waited for COALESCE by `now`; at once where no drafts are worth having beyond."""
        base, end, wanted = max(self._sent, self.n_truth), len(self._ids), self.n_truth + self.draft_n
        few, wait = (end < wanted, COALESCE) if base < wanted else (end - base <= self.draft_n, COALESCE_AHEAD)
        if few and end < self._most and now - (self._unsent_since or 0.0) < wait:
            return []
        self._unsent_since = None
        if base >= end:
            return []
        self._sent = end
        sampled = tuple(self._proposals.get(at) for at in range(base, end)) if self._proposals else ()
        return [ev.Drafted(base, self._known.crc_at(base), tuple(self._ids[base:end]), sampled)]
