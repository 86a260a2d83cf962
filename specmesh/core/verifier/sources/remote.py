"""What a session has of drafts beyond its text, and what those tell that came too late to be verified."""

from specmesh.core import events as ev
from specmesh.core.draft_length.controller import DraftLengthController
from specmesh.core.prefix import Prefix, common_length
from specmesh.core.sampling.constraint import Constraint
from specmesh.core.sampling.proposal import Proposal, SampledDraft, unflattened
from specmesh.core.statistics.counters import RoundCounts
from specmesh.wire import messages as m

MOST_HELD = 192  # most drafts in hand, whatever a peer sends


class DraftBuffer:
    """A chain of drafts beyond `prefix`, which is the session's and grows before `moved` is called. Each draft is known
    by the CRC-32 of the whole prefix before it, which a DRAFT frame carries: drafts of a rejected chain cannot follow
    the next one. tokens: the chain, to be read only. counts: drafts that came too late, did not fit or were forbidden
    are stale there. cut: the drafter goes on with what the grammar forbids, until it hears the next truth."""

    def __init__(
        self, session: int, prefix: Prefix, n_vocab: int, constraint: Constraint | None,
        draft_length: DraftLengthController, counts: RoundCounts,
    ) -> None:  # fmt: skip
        self.cut = False
        self._session, self._counts = session, counts
        self._prefix, self._n_vocab, self._constraint, self._draft_length = (
            prefix,
            n_vocab,
            constraint,
            draft_length,
        )
        self._chain = Prefix()  # goes on from the whole prefix, as soon as it holds any
        self.tokens = self._chain.ids
        self._proposals: list[Proposal | None] = []  # what each was sampled from
        self._judged = len(
            prefix
        )  # up to here it is known whether drafts were accepted, or there were none
        self._nacked = float("-inf")
        self._orphaned: float | None = None  # since when drafts come that hang on nothing here

    def offers(self, drafts: tuple[int, ...]) -> tuple[SampledDraft, ...]:
        """Return these drafts with their proposals, where they are here, and the one after them if there is one."""
        here = common_length(drafts, self.tokens)
        known = list(map(SampledDraft, self.tokens, self._proposals))
        rest = map(SampledDraft, drafts[here:]) if here < len(drafts) else known[here : here + 1]
        return (*known[:here], *rest)

    def moved(self, ids: tuple[int, ...], tested: int, *, over: bool) -> None:
        """Note that `ids` were committed by a step that compared `tested` drafts. over: nothing more may follow."""
        base = len(self._prefix.ids) - len(ids)
        if tested:
            self._judged = base + tested
        elif self.tokens:  # they came when the step had begun
            self._judge(base, tuple(self.tokens))
        if self.tokens and self.tokens[: len(ids)] == list(ids):
            self._chain.drop(len(ids))
            del self._proposals[: len(ids)]
        elif self.tokens:
            self.forget()
        self.cut = False
        if not over and self.tokens and self._constraint is not None:
            self._prune(self._constraint)

    def forget(self) -> None:
        """Drop all drafts."""
        self._chain.restart(self._prefix.crc)
        self._proposals.clear()

    def take(self, drafts: m.Draft | m.DraftProbs, now: float) -> list[ev.VerifierEffect]:
        length, base, crc, ids = len(self._prefix.ids), drafts.base, drafts.prefix_crc, drafts.ids
        proposals = (
            ()
            if isinstance(drafts, m.Draft)
            else unflattened((drafts.sizes, drafts.support, drafts.weights))
        )
        if not self._possible(ids, proposals):
            self._counts.stale_drafts += len(ids)
            return []
        known = base > length or self._prefix.holds(base, crc)
        if known and base < length:
            self._judge(base, ids)
        if not known or not self._insert(base, crc, ids, proposals):
            self._counts.stale_drafts += len(ids)
            if base > length:
                return self._orphan(now)
            # Overtaken by steps that did not wait: it is alive, and a client's own draft_n is worth waiting for.
            if known:
                self._draft_length.estimate.alive()
            return []
        self._orphaned = None
        self._draft_length.estimate.arrived(
            length, self._draft_length.draft_n, base + len(ids), now
        )
        if self._constraint is not None:
            self._prune(self._constraint)
        return []

    def _possible(self, ids: tuple[int, ...], proposals: tuple[Proposal | None, ...]) -> bool:
        """Whether drafts are ids, and sampled from what is said."""
        n_vocab = self._n_vocab
        if ids and not 0 <= min(ids) <= max(ids) < n_vocab:
            return False
        if not proposals:
            return True
        fits = all(
            one is None or one.fits(token, n_vocab)
            for token, one in zip(ids, proposals, strict=False)
        )
        return fits and len(proposals) == len(ids)

    def _insert(
        self, base: int, crc: int, ids: tuple[int, ...], proposals: tuple[Proposal | None, ...]
    ) -> bool:
        """Let the chain go on so; return False where the ids follow nothing here or contradict what is committed. A
        draft that is here already keeps its first proposal."""
        at = base - len(self._prefix.ids)
        if at > 0 and not self._chain.holds(at, crc):
            return False
        if at < 0:
            said = self._prefix.ids[base : base + len(ids)]
            if common_length(ids, said) < len(said):
                return False
            ids, proposals, at = ids[len(said) :], proposals[len(said) :], 0
        agreed = common_length(ids, self.tokens[at:]) if at < len(self.tokens) else 0
        if agreed < len(ids):
            if at + agreed < len(self.tokens):
                self._truncate(at + agreed)
            if not self.tokens:
                self.forget()
            new = ids[agreed : MOST_HELD - at]
            self._chain.extend(new)
            self._proposals += (
                proposals[agreed : agreed + len(new)] if proposals else (None,) * len(new)
            )
        return True

    def _truncate(self, length: int) -> None:
        self._chain.truncate(length)
        del self._proposals[length:]

    def _prune(self, constraint: Constraint) -> None:
        """Drop drafts that the grammar forbids: unverified, so no rejection, but it counts that a chain ended."""
        dropped = len(self.tokens) - constraint.count_allowed(self.tokens)
        if dropped:
            self._truncate(len(self.tokens) - dropped)
            self._counts.stale_drafts += dropped
            self.cut = True
            self._draft_length.judged(right=False)

    def _judge(self, base: int, ids: tuple[int, ...]) -> None:
        """Learn from drafts that no step verified how often drafts are accepted: the text knows by now. Each is built
        on those before it, so the first wrong one ends what they tell."""
        known = max(min(self._judged, len(self._prefix)) - base, 0)
        if tuple(ids[:known]) != tuple(self._prefix[base : base + len(ids[:known])]):
            return
        said = self._prefix[base + known : base + len(ids)]
        for position, (token, true) in enumerate(
            zip(ids[known:], said, strict=False), base + known
        ):
            self._judged = position + 1
            self._draft_length.judged(right=token == true)
            if token != true:
                return

    def _orphan(self, now: float) -> list[ev.VerifierEffect]:
        """Take drafts that build on drafts not here: of a rejected chain in flight, which ends within a round trip, or
        after a lost frame; then NACK says where to continue."""
        self._orphaned = now if self._orphaned is None else self._orphaned
        quiet = max(m.NACK_INTERVAL, 2 * self._draft_length.round_trip)
        if now - max(self._orphaned, self._nacked) < quiet:
            return []
        self._nacked = now
        return [m.Nack(self._session, len(self._prefix), self._prefix.crc)]


IDLE_INTERVAL = 1.0  # seconds between two TRUTHs to a drafter that is not asked for drafts
# and what one may tell besides, before another step's: it has a byte for accepted drafts, the grammar's own among them
MOST_IDS, MOST_ACCEPTED = m.MAX_TOKENS // 2, 200
# seconds between two SYNCs, at least: each is as long as the prefix, and a peer can ask without end
SYNC_INTERVAL = 0.01


class TruthSender:
    def __init__(self, session: int, prefix: Prefix, draft_length: DraftLengthController) -> None:
        self._session, self._prefix, self._draft_length = session, prefix, draft_length
        self._unsent: int | None = None  # from where TRUTH has not been sent yet
        self._accepted = 0  # drafts among the ids that have not been sent yet
        self._synced = self._at = float("-inf")
        self._drafting = False  # drafts were wanted when a frame was last sent

    def begin(self) -> list[m.Sync]:
        self._unsent, self._accepted = None, 0
        return self._sync(0)

    def grown(self, base: int, accepted: int, now: float, *, idle: bool) -> list[m.Truth]:
        """Return TRUTH from `base`, or from the end of what was last sent. idle: nothing is drafted, so it may come
        late: a frame wakes two processes, which may need the cores of the verifier's steps."""
        base, ids = base if self._unsent is None else self._unsent, self._prefix.ids
        self._accepted += accepted
        small = len(ids) - base < MOST_IDS and self._accepted < MOST_ACCEPTED
        if idle and not self._drafting and now < self._at + IDLE_INTERVAL and small:
            self._unsent = base
            return []
        accepted, self._unsent, self._accepted, self._at = self._accepted, None, 0, now
        self._drafting = not idle and not self._draft_length.probing
        crc, new = self._prefix.crc_at(base), tuple(ids[base:])
        return [m.Truth(self._session, base, crc, new, self._draft_length.draft_n, accepted)]

    def nacked(self, nack: m.Nack, now: float) -> list[m.Sync]:
        if now - self._synced < min(
            m.NACK_INTERVAL, max(SYNC_INTERVAL, self._draft_length.round_trip)
        ):
            return []
        self._synced = now
        return self._sync(nack.base if self._prefix.holds(nack.base, nack.prefix_crc) else 0)

    def _sync(self, base: int) -> list[m.Sync]:
        """The prefix from `base` on, in as many frames as it needs."""
        prefix, draft_n, end = self._prefix, self._draft_length.draft_n, len(self._prefix)
        self._drafting = draft_n > 0 and not self._draft_length.probing
        parts = range(base, max(end, base + 1), m.MAX_TOKENS)
        return [
            m.Sync(
                self._session, at, prefix.crc_at(at), tuple(prefix[at : at + m.MAX_TOKENS]), draft_n
            )
            for at in parts
        ]
