"""What a session has of drafts beyond its text, and what those tell that came too late to be verified."""

from collections.abc import Iterable
from itertools import zip_longest

from specmesh.core import events as ev
from specmesh.core.draft_length.controller import DraftLengthController
from specmesh.core.prefix import Prefix, common_length, extend_crc
from specmesh.core.sampling.constraint import SessionConstraint
from specmesh.core.sampling.proposal import SampledDraft

NACK_INTERVAL = 0.1  # seconds between two NACKs, or two answers to NACKs, of one session
MOST_HELD = 192  # most drafts in hand, whatever a peer sends


class DraftBuffer:
    """A chain of drafts beyond `prefix`, which is the session's and grows before `moved` is called.

    Each draft is known by the CRC-32 of the whole prefix before it, which a DRAFT frame carries: drafts of a rejected
    chain cannot follow the next one. stale: drafts that came too late, did not fit or were forbidden. cut: the drafter
    goes on with what the grammar forbids, until it hears the next truth."""

    def __init__(
        self, prefix: Prefix, n_vocab: int, constraint: SessionConstraint, pacing: DraftLengthController
    ) -> None:
        self.stale = 0
        self.cut = False
        self._prefix, self._n_vocab, self._constraint, self._pacing = prefix, n_vocab, constraint, pacing
        self._chain = list[SampledDraft]()
        self._crcs = [prefix.crc]  # of all ids before each draft, and after the last one
        self._forgotten = False
        self._judged = len(prefix)  # up to here it is known whether drafts stood, or there were none
        self._nacked = float("-inf")
        self._orphaned: float | None = None  # since when drafts come that hang on nothing here

    def __len__(self) -> int:
        return len(self._chain)

    def forget(self, *, stepping: bool) -> None:
        """Drop all drafts, and what those of a running step were sampled from: the same drafts may come of another
        distribution."""
        self._chain, self._crcs = [], [self._prefix.crc]
        self._forgotten = stepping

    def chain(self, most: int) -> tuple[int, ...]:
        return _tokens(self._chain[:most])

    def offers(self, drafts: tuple[int, ...]) -> tuple[SampledDraft, ...]:
        """Return these drafts with their proposals, where they are here, and the one after them if there is one."""
        if self._forgotten:
            return tuple(map(SampledDraft, drafts))
        here = common_length(drafts, _tokens(self._chain))
        rest = map(SampledDraft, drafts[here:]) if here < len(drafts) else self._chain[here : here + 1]
        return (*self._chain[:here], *rest)

    def take(self, event: ev.Drafted | ev.Shadowed, now: float) -> list[ev.VerifierEffect]:
        if isinstance(event, ev.Drafted):
            return self._drafted(event, now)
        self._shadowed(event, now)
        return []

    def moved(self, ids: tuple[int, ...], tested: int, *, over: bool) -> None:
        """Note that `ids` were committed by a step that compared `tested` drafts. over: nothing more may follow."""
        if tested:
            self._judged = len(self._prefix) - len(ids) + tested
        if self.chain(len(ids)) == ids:
            del self._chain[: len(ids)], self._crcs[: len(ids)]
        else:
            self._chain, self._crcs = [], [self._prefix.crc]
        self._forgotten = self.cut = False
        if not over:
            self._prune()

    def _drafted(self, event: ev.Drafted, now: float) -> list[ev.VerifierEffect]:
        if not self._possible(event):
            self.stale += 1
            return []
        known = self._prefix.holds(event.base, event.crc)
        if event.base > len(self._prefix):
            if not self._insert(event, known=known):
                return self._orphan(now)
        else:
            if known:
                self._judge(event.base, event.ids, chain=True)
            if not self._insert(event, known=known):
                self.stale += 1
                # Overtaken by steps that did not wait: it is alive, and a client's own draft_n is worth waiting for.
                if known:
                    self._pacing.alive()
                return []
        self._orphaned = None
        self._pacing.arrived(len(self._prefix), event.base + len(event.ids), now)
        self._prune()
        return []

    def _possible(self, event: ev.Drafted) -> bool:
        """Whether its ids are ids, and sampled from what it says."""
        n_vocab, proposals = self._n_vocab, event.proposals
        fits = all(one is None or one.fits(token, n_vocab) for token, one in zip(event.ids, proposals, strict=False))
        return fits and len(proposals) in (0, len(event.ids)) and all(0 <= token < n_vocab for token in event.ids)

    def _insert(self, event: ev.Drafted, *, known: bool) -> bool:
        """Let the chain go on as told; False where the ids follow nothing here or contradict what is committed.
        `known`: the prefix before `base` is ours. A draft that is here already keeps its first proposal."""
        at = event.base - len(self._prefix)
        if at > 0:
            known = at < len(self._crcs) and self._crcs[at] == event.crc
        said = self._prefix[event.base : event.base + len(event.ids)]
        if not known or common_length(event.ids, said) < len(said):
            return False
        told = [SampledDraft(*one) for one in zip_longest(event.ids[len(said) :], event.proposals[len(said) :])]
        at = max(at, 0)
        agreed = common_length(_tokens(told), _tokens(self._chain[at:]))
        if agreed < len(told):
            self._truncate(at + agreed)
            for offer in told[agreed : MOST_HELD - at]:
                self._chain.append(offer)
                self._crcs.append(extend_crc(self._crcs[-1], offer.token))
        return True

    def _truncate(self, length: int) -> None:
        del self._chain[length:], self._crcs[length + 1 :]

    def _prune(self) -> None:
        """Drop drafts that the grammar forbids: unverified, so no rejection, but it counts that a chain ended."""
        if not self._constraint:
            return
        dropped = len(self) - self._constraint.count_allowed(_tokens(self._chain))
        if dropped:
            self._truncate(len(self) - dropped)
            self.stale += dropped
            self.cut = True
            self._pacing.judged(right=False)

    def _shadowed(self, event: ev.Shadowed, now: float) -> None:
        if self._prefix.holds(event.base, event.crc):
            self._judge(event.base, event.ids, chain=False)
            self._pacing.shadowed(event.base + len(event.ids), max(len(event.ids), 1), now)
        else:
            self.stale += 1

    def _judge(self, base: int, ids: tuple[int, ...], *, chain: bool) -> None:
        """Learn from guesses that no step verified how often drafts stand: the text knows by now.

        chain: each is built on those before it, so the first wrong one ends what they tell."""
        known = max(min(self._judged, len(self._prefix)) - base, 0)
        if chain and tuple(ids[:known]) != tuple(self._prefix[base : base + len(ids[:known])]):
            return
        said = self._prefix[base + known : base + len(ids)]
        for position, (token, true) in enumerate(zip(ids[known:], said, strict=False), base + known):
            self._judged = position + 1
            self._pacing.judged(right=token == true)
            if chain and token != true:
                return

    def _orphan(self, now: float) -> list[ev.VerifierEffect]:
        """Count a draft that builds on drafts not here: of a rejected chain in flight, which ends within a round trip,
        or after a lost frame; then the drafter is told where to continue."""
        self.stale += 1
        self._orphaned = now if self._orphaned is None else self._orphaned
        quiet = max(NACK_INTERVAL, 2 * self._pacing.round_trip)
        if now - max(self._orphaned, self._nacked) < quiet:
            return []
        self._nacked = now
        return [ev.Nacked(len(self._prefix), self._prefix.crc)]


def _tokens(offers: Iterable[SampledDraft]) -> tuple[int, ...]:
    return tuple(offer.token for offer in offers)


# ids until a drafter that is not asked for drafts hears more; the second while a gate refuses drafts
TELL_EVERY, TELL_SELDOM = 16, 64
# seconds between two SYNCs, at least: each is as long as the prefix, and a peer can ask without end
SYNC_INTERVAL = 0.01


class TruthSender:
    def __init__(self, prefix: Prefix, pacing: DraftLengthController) -> None:
        self._prefix, self._pacing = prefix, pacing
        self._untold: int | None = None  # from where it has not been told yet
        self._synced = float("-inf")

    @property
    def told(self) -> int:
        return len(self._prefix) if self._untold is None else self._untold

    def begin(self, known: int) -> ev.Told:
        self._untold = None
        return self._sync(known)

    def grown(self, base: int, now: float, *, idle: bool) -> list[ev.Told]:
        """Return TRUTH from `base`, or from where the drafter was last told. idle: nothing is drafted, so it may come
        some rounds late: a frame costs more than it is worth then."""
        base = base if self._untold is None else self._untold
        if idle and len(self._prefix) - base < (TELL_SELDOM if self._pacing.refused else TELL_EVERY):
            self._untold = base
            return []
        self._untold = None
        self._pacing.told(len(self._prefix), now)
        draft_n = self._pacing.draft_n
        return [ev.Told(base, self._prefix.crc_at(base), tuple(self._prefix[base : len(self._prefix)]), draft_n)]

    def nacked(self, base: int, crc: int, now: float) -> list[ev.Told]:
        if now - self._synced < min(NACK_INTERVAL, max(SYNC_INTERVAL, self._pacing.round_trip)):
            return []
        self._synced = now
        return [self._sync(base if self._prefix.holds(base, crc) else 0)]

    def _sync(self, base: int) -> ev.Told:
        ids = tuple(self._prefix[base : len(self._prefix)])
        return ev.Told(base, self._prefix.crc_at(base), ids, self._pacing.draft_n, sync=True)
