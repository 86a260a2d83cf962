"""What a session has of drafts beyond its text, and what those tell that came too late to be verified."""

from typing import assert_never

from specmesh.core import events as ev
from specmesh.core.accept import Verdict
from specmesh.core.guided import Guided
from specmesh.core.pacing import Pacing
from specmesh.core.prefix import Prefix, common_length
from specmesh.core.proposal import Offer
from specmesh.core.side import Side
from specmesh.core.tree import MAIN, OTHER, SECOND, DraftTree

NACK_INTERVAL = 0.1
"""Seconds between two NACKs, or two answers to NACKs, of one session."""


class HeldDrafts:
    """Drafts in hand beyond `prefix`, which is the session's and grows before `moved` is called.

    stale: drafts that came too late, did not fit or were forbidden. cut: the drafter goes on with what the grammar
    forbids, until it hears the next truth.
    """

    def __init__(self, prefix: Prefix, n_vocab: int, guided: Guided, pacing: Pacing) -> None:
        self.stale = 0
        self.cut = False
        self._prefix, self._n_vocab, self._guided, self._pacing = prefix, n_vocab, guided, pacing
        self._tree = DraftTree(len(prefix), prefix.crc)
        self._forgotten = False
        self._judged = len(prefix)  # up to here it is known whether drafts stood, or there were none
        self._nacked = float("-inf")
        self._orphaned: float | None = None  # since when drafts come that hang on nothing here

    def __len__(self) -> int:
        """How many the main chain has."""
        return self._tree.lead()

    @property
    def nodes(self) -> int:
        """How many there are on all branches; bounded, whatever a peer sends."""
        return len(self._tree)

    @property
    def flushed(self) -> bool:
        """Whether none of the session's own drafter is left."""
        return self._tree.flushed

    def forget(self, *, stepping: bool) -> None:
        """Hold none any more, nor what those of a step under way were sampled from: what comes from now on may be the
        same drafts, by chance, of another law."""
        self._tree = DraftTree(len(self._prefix), self._prefix.crc)
        self._forgotten = stepping

    def chain(self, most: int) -> tuple[int, ...]:
        """The first drafts of the main chain."""
        return self._tree.best_chain(most)

    def side(self, drafts: tuple[int, ...], most: int) -> Side | None:
        """The second drafter's chain beside these of the main chain; with those before its fork `most` at most."""
        return self._tree.side(drafts, most)

    def own(self, drafts: tuple[int, ...], verdict: Verdict) -> tuple[int, int]:
        """How many drafts of the session's own drafter were tested in a step, and how many stood; before `moved`."""
        accepted = verdict.accepted - verdict.aside
        tested, told = accepted + 1 if verdict.aside else verdict.tested, self._tree.others(drafts)
        return min(tested, told), min(accepted, told)

    def offers(self, drafts: tuple[int, ...]) -> tuple[Offer, ...]:
        """These of the main chain with what they were sampled from, and the one after them if it is here by now; of
        those that were forgotten since, nothing but what they are."""
        if self._forgotten:
            return tuple(map(Offer, drafts))
        return self._tree.offers(drafts)

    def take(self, event: ev.Drafted | ev.Shadowed, now: float) -> list[ev.VerifierEffect]:
        """Take in what the session's own drafter has said."""
        match event:
            case ev.Drafted():
                return self._drafted(event, now)
            case ev.Shadowed():
                self._shadowed(event, now)
                return []
            case _:
                assert_never(event)

    def moved(self, ids: tuple[int, ...], tested: int, *, over: bool) -> tuple[bool, ...]:
        """`ids` were committed by a step that compared `tested` drafts of the session's own drafter; what still agrees
        is kept. over: with the text's end, so that nothing more may follow. Whether the second drafter was right about
        them, as far as it had drafts."""
        if tested:
            self._judged = len(self._prefix) - len(ids) + tested
        seconded = self._tree.seconded(ids)
        self._tree.reroot(ids, self._prefix.crc)
        self._forgotten = self.cut = False
        if not over:
            self._prune()
        return seconded

    def _drafted(self, event: ev.Drafted, now: float) -> list[ev.VerifierEffect]:
        if not self._possible(event):
            self.stale += 1
            return []
        known = self._prefix.holds(event.base, event.crc)
        if event.second:
            self.stale += self._insert(event, known=known) is None
            return []
        if event.base > len(self._prefix):
            if self._insert(event, known=known) is None:
                return self._orphan(now)
        else:
            if known:
                self._judge(event.base, event.ids, chain=True)
            if self._insert(event, known=known) is None:
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

    def _insert(self, event: ev.Drafted, *, known: bool) -> int | None:
        """Hang a path into the tree; None where it hangs on nothing, or disagrees with the ids that are committed where
        it starts in these, `known` to be the same before it."""
        branch = SECOND if event.second else MAIN if event.branch == MAIN else OTHER
        if event.base > len(self._prefix):
            return self._tree.insert(event.base, event.crc, event.ids, branch, event.proposals)
        said = self._prefix[event.base : event.base + len(event.ids)]
        if not known or common_length(event.ids, said) < len(said):
            return None
        ids, proposals = event.ids[len(said) :], event.proposals[len(said) :]
        return self._tree.insert(len(self._prefix), self._prefix.crc, ids, branch, proposals)

    def _prune(self) -> None:
        """Drop the drafts that the grammar forbids: they are not verified, so no rejection either. That a chain ended
        is known all the same, and counts where it is decided how many drafts pay."""
        if not self._guided:
            return
        chain = self._tree.best_chain(len(self._tree))
        fitting = self._guided.fitting(chain)
        if fitting < len(chain):
            self._tree.cut(fitting)
            self.stale += len(chain) - fitting
            self.cut = True
            self._pacing.judged(right=False)

    def _shadowed(self, event: ev.Shadowed, now: float) -> None:
        if self._prefix.holds(event.base, event.crc):
            self._judge(event.base, event.ids, chain=False)
            self._pacing.shadowed(event.base + len(event.ids), max(len(event.ids), 1), now)
        else:
            self.stale += 1

    def _judge(self, base: int, ids: tuple[int, ...], *, chain: bool) -> None:
        """Guesses that no step verified still tell how often drafts stand: the text knows by now.

        chain: each is built on those before it, so the first wrong one ends what they tell.
        """
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
        """A draft built on drafts that are not here: of a rejected chain still in flight, or after a lost frame.

        The first ends within a round trip; where it does not, the drafter is told where to continue.
        """
        self.stale += 1
        self._orphaned = now if self._orphaned is None else self._orphaned
        quiet = max(NACK_INTERVAL, 2 * self._pacing.round_trip)
        if now - max(self._orphaned, self._nacked) < quiet:
            return []
        self._nacked = now
        return [ev.SendNack(len(self._prefix), self._prefix.crc)]
