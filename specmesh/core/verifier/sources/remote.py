"""Drafts of drafter daemons: a chain beyond the prefix, built from DRAFT frames.

A frame names the position of its first draft, `base`, and the CRC of all ids before that. With the
frontier at 100 and drafts in hand for 100 to 103:

| base | meaning | what happens |
|---|---|---|
| 104 | it follows the chain | its drafts are appended, if the CRC is that of text and chain |
| 102 | the drafter has corrected itself | from the first difference on its drafts replace ours |
| 98 | steps have overtaken it | the part behind the frontier counts, if the rest is the text |
| 90 to 95 | it came too late | nothing to add; it still shows how well the drafter guesses |
| 110 | a frame before it is missing | an orphan. If they keep coming, NACK asks for the rest |

A wrong CRC means that the frame belongs to another chain, which was rejected: stale or an orphan.
"""

from collections.abc import Sequence

from specmesh.core.draft_sources import REMOTE
from specmesh.core.prefix import Prefix, common_length
from specmesh.core.rounds import Round, SourceDrafts
from specmesh.core.sampling.constraint import Constraint
from specmesh.core.sampling.proposal import Proposal, SampledDraft, unflattened
from specmesh.core.verifier.sources.base import SourceContext
from specmesh.wire import messages as m

MOST_HELD = 192  # most drafts in hand, whatever a peer sends

DraftFrame = m.Draft | m.DraftProbs


class RemoteSource:
    """The chain of drafts in hand, and the pace at which steps take them.

    The session's prefix grows before `committed` is called. A DRAFT frame names the CRC-32 of the
    whole prefix before its first draft, so drafts of a rejected chain cannot follow the next one.

    tokens: the chain, to be read only.
    pruned: the drafter goes on with a chain that the grammar forbids, until it has the next TRUTH.

    Drafts that came too late, do not fit or are forbidden are counted as stale.
    """

    name = REMOTE
    exact = False
    copies = False

    def __init__(self, context: SourceContext) -> None:
        self.pruned = False
        self._session = context.session
        self._prefix = context.prefix
        self._n_vocab = context.limits.n_vocab
        self._constraint = context.constraint
        self._draft_length = context.draft_length
        self._counts = context.counts
        self._chain = Prefix()  # goes on from the whole prefix as soon as it holds a draft
        self.tokens = self._chain.ids
        self._proposals: list[Proposal | None] = []  # distributions that they were sampled from
        self._judged = len(context.prefix)  # position up to which drafts were compared
        self._wanted = 0  # drafts of the next step
        self._nacked_at = float("-inf")
        self._orphaned_since: float | None = None  # drafts come that follow nothing here

    # --- a step takes drafts

    @property
    def idle(self) -> bool:
        """Return True if nothing is in hand and nothing is asked for."""
        wanted = self._draft_length.drafter is not None and self._draft_length.draft_n > 0
        return not wanted and not self.tokens

    def due(self, limit: int, now: float) -> float | None:
        """Decide how many drafts the next step takes, and until when they are worth waiting for.

        It must not be idle.
        """
        frontier = len(self._prefix.ids)
        lead = len(self.tokens)
        self._wanted, until = self._draft_length.plan(frontier, lead, limit, now)
        if self.pruned:
            return None
        return until

    def propose(self, proposed: Sequence[int], limit: int) -> Sequence[int]:
        """Return the drafts in hand that follow those of other sources."""
        begin = len(proposed)
        if begin and self._chain[:begin] != list(proposed):
            return ()
        return self.tokens[begin : min(self._wanted, begin + limit)]

    def take_all(self) -> None:
        """Let the next step take all drafts in hand, as it begins without waiting."""
        self._wanted = MOST_HELD

    def acceptance(self, drafts: int) -> Sequence[float]:
        """Return the probabilities that the first 1, 2, ... drafts are all accepted."""
        return self._draft_length.acceptance.chain(drafts)

    def offers(
        self, drafts: Sequence[int], parts: Sequence[SourceDrafts]
    ) -> tuple[SampledDraft, ...]:
        """Return a step's drafts with their proposals, and the next draft in hand if there is one.

        A draft of another source has no proposal, even if the chain here has the same one: it would
        have been proposed whatever was sampled.

        parts: the same drafts by their source, in order.
        """
        agreed = common_length(drafts, self.tokens)
        offers: list[SampledDraft] = []
        own = _positions_of(self.name, parts)
        for position, token in enumerate(drafts):
            proposal = None
            if position < agreed and position in own:
                proposal = self._proposals[position]
            offers.append(SampledDraft(token, proposal))
        if agreed == len(drafts) < len(self.tokens):
            offers.append(SampledDraft(self.tokens[agreed], self._proposals[agreed]))
        return tuple(offers)

    # --- a round is over

    def committed(self, done: Round) -> None:
        """Keep the drafts that agree with the round's ids, and learn from those it compared."""
        base = done.base
        if done.tested:
            self._judged = base + done.tested
        elif self.tokens:  # they came when the step had begun
            self._judge(base, tuple(self.tokens))
        # If all drafts were accepted the last id is the bonus token. The next draft in hand may be
        # the same: then the chain goes on after it.
        agrees = self._chain[: len(done.ids)] == list(done.ids)
        if self.tokens and agrees:
            self._chain.drop(len(done.ids))
            del self._proposals[: len(done.ids)]
        elif self.tokens:
            self.forget()
        self.pruned = False
        if self.tokens and self._constraint is not None and not done.over:
            self._prune(self._constraint)
        tested = 0
        accepted = 0
        for drafts in done.by_source:
            if drafts.source == self.name:
                tested = drafts.tested
                accepted = drafts.accepted
        self._draft_length.stepped(
            base + len(done.ids),
            tested=tested,
            accepted=accepted,
            flushed=not self.tokens,
            now=done.at,
            sessions=done.sessions,
        )

    def forget(self) -> None:
        """Drop all drafts."""
        self._chain.restart(self._prefix.crc)
        self._proposals.clear()

    # --- a frame arrives

    def take(self, frame: DraftFrame, now: float) -> list[m.Nack]:
        """Add a frame's drafts to the chain as far as they follow it; a NACK asks for others."""
        length = len(self._prefix.ids)
        base = frame.base
        proposals: tuple[Proposal | None, ...] = ()
        if isinstance(frame, m.DraftProbs):
            proposals = unflattened((frame.sizes, frame.support, frame.weights))
        # Up to the frontier a wrong CRC is of another text. Beyond it `_insert` checks the CRC with
        # the chain.
        is_of_text = base > length or self._prefix.holds(base, frame.prefix_crc)
        if not is_of_text or not self._is_valid(frame.ids, proposals):
            self._counts.stale_drafts += len(frame.ids)
            return []
        if base < length:
            self._judge(base, frame.ids)
        if not self._insert(base, frame.prefix_crc, frame.ids, proposals):
            self._counts.stale_drafts += len(frame.ids)
            if base > length:
                return self._orphan(now)
            # Steps that did not wait have overtaken it. But the drafter is alive, and a client's
            # own draft_n is worth waiting for.
            self._draft_length.estimate.alive()
            return []
        self._orphaned_since = None
        estimate = self._draft_length.estimate
        estimate.arrived(length, self._draft_length.draft_n, base + len(frame.ids), now)
        if self._constraint is not None:
            self._prune(self._constraint)
        return []

    def _is_valid(self, ids: tuple[int, ...], proposals: tuple[Proposal | None, ...]) -> bool:
        """Return True if all drafts are ids of the vocabulary, and each is in its proposal."""
        n_vocab = self._n_vocab
        if ids and not 0 <= min(ids) <= max(ids) < n_vocab:
            return False
        if not proposals:
            return True
        if len(proposals) != len(ids):
            return False
        for token, proposal in zip(ids, proposals, strict=True):
            if proposal is not None and not proposal.fits(token, n_vocab):
                return False
        return True

    def _insert(
        self, base: int, crc: int, ids: tuple[int, ...], proposals: tuple[Proposal | None, ...]
    ) -> bool:
        """Continue the chain; return False if the ids follow nothing here or contradict the text.

        A draft that is already here keeps its first proposal.
        """
        at = base - len(self._prefix.ids)
        if at > 0 and not self._chain.holds(at, crc):
            return False
        if at < 0:
            committed = self._prefix.ids[base : base + len(ids)]
            if common_length(ids, committed) < len(committed):
                return False
            ids = ids[len(committed) :]
            proposals = proposals[len(committed) :]
            at = 0
        agreed = common_length(ids, self.tokens[at:]) if at < len(self.tokens) else 0
        if agreed == len(ids):
            return True
        if at + agreed < len(self.tokens):
            self._truncate(at + agreed)
        if not self.tokens:
            self.forget()
        new = ids[agreed : MOST_HELD - at]
        self._chain.extend(new)
        if proposals:
            self._proposals += proposals[agreed : agreed + len(new)]
        else:
            self._proposals += [None] * len(new)
        return True

    def _truncate(self, length: int) -> None:
        """Keep the first drafts of the chain, and their proposals."""
        self._chain.truncate(length)
        del self._proposals[length:]

    def _prune(self, constraint: Constraint) -> None:
        """Drop drafts that the grammar forbids.

        They were not verified, so this is no rejection. But it counts that a chain has ended.
        """
        dropped = len(self.tokens) - constraint.count_allowed(self.tokens)
        if dropped:
            self._truncate(len(self.tokens) - dropped)
            self._counts.stale_drafts += dropped
            self.pruned = True
            self._draft_length.judged(right=False)

    def _judge(self, base: int, ids: tuple[int, ...]) -> None:
        """Learn the acceptance of drafts that no step verified, by the text that is there now.

        Drafts that were compared before count no more. Each draft builds on those before it, so
        nothing is learned after the first wrong one.
        """
        known = max(min(self._judged, len(self._prefix)) - base, 0)
        before = ids[:known]
        if before != tuple(self._prefix[base : base + len(before)]):
            return
        text = self._prefix[base + known : base + len(ids)]
        for position, (token, true) in enumerate(
            zip(ids[known:], text, strict=False), base + known
        ):
            self._judged = position + 1
            self._draft_length.judged(right=token == true)
            if token != true:
                return

    def _orphan(self, now: float) -> list[m.Nack]:
        """Note drafts that follow no draft here; return a NACK if they keep coming.

        They may belong to a rejected chain that is on its way: that ends within a round trip. If
        they do not end, a frame was lost, and NACK names the position to continue from.
        """
        if self._orphaned_since is None:
            self._orphaned_since = now
        quiet = max(m.NACK_INTERVAL, 2 * self._draft_length.round_trip)
        if now - max(self._orphaned_since, self._nacked_at) < quiet:
            return []
        self._nacked_at = now
        return [m.Nack(self._session, len(self._prefix), self._prefix.crc)]


def _positions_of(source: str, parts: Sequence[SourceDrafts]) -> set[int]:
    """Return the positions of a source's drafts in a step."""
    positions: set[int] = set()
    begin = 0
    for part in parts:
        end = begin + part.drafted
        if part.source == source:
            positions.update(range(begin, end))
        begin = end
    return positions
