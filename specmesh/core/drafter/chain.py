"""The committed text of a session at the drafter, the chain of drafts beyond it, and its frames.

The chain assumes that its drafts are accepted. It goes on past the drafts that were asked for, as
far as covers the round trip. A recovered token cuts it, and what still agrees stays.

An example, with draft_n 2 and a round trip of two drafts' time:

    known    a b c | d e | f g h i j
             a b c   are committed: n_truth is 3
                     d e   are wanted by the verifier's next step
                           f g h i j   are made ahead, while d e are on their way

- `set_limit` allows 2 * 2 + 1 + 2 drafts: those of two steps, the token that the target adds to the
  first one, and a round trip's.
- `send` sends d e in one frame as soon as both are there, f and the others less often.
- TRUTH d e f, two of them accepted: f happens to be the bonus token too. The chain g h i j stays,
  and the verifier has what was sent of it. So its next step need not wait.
- TRUTH d x instead: x is the recovered token. `replace` cuts the chain behind d and lets x follow.
  All that was made ahead is lost, and the chain begins anew behind x.
"""

from collections.abc import Sequence
from math import ceil, log

from specmesh.core import events as ev
from specmesh.core.draft_length import MAX_LEAD
from specmesh.core.prefix import Prefix
from specmesh.core.sampling.proposal import Proposal, flattened
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


class DraftChain:
    """The committed ids of a text, and the drafts beyond them.

    known: the committed ids, then the chain. ids: the same ids, only read.
    n_truth: how many are committed.
    draft_n: drafts wanted for the verifier's next step.
    limit: ids of text and chain, as long as drafts are worth having.
    round_trip: to the verifier, in seconds.
    interval: recent seconds of a draft; 0.0 before the first.
    draft_tokens, draft_seconds: drafts made, and the seconds of the steps that made them.
    """

    def __init__(self, session: int, round_trip: float) -> None:
        """Begin without text; session: its number on the wire."""
        self.known = Prefix()
        self.ids = self.known.ids
        self.n_truth = 0
        self.draft_n = 0
        self.limit = 0
        self.round_trip = round_trip
        self.interval = 0.0
        self.draft_tokens = 0
        self.draft_seconds = 0.0
        self._session = session
        # What drafts of the chain were sampled from, by position.
        self._proposals: dict[int, Proposal] = {}
        self._learned = 0  # committed ids that were reported
        self._sent = 0  # the verifier has the chain up to here
        self._sent_at = float("-inf")
        self._nacked_at = float("-inf")
        self._nacked_length = -1
        # Drafts of recent rounds.
        self._accepted = 0.0
        self._judged = 0.0
        self.judge(0, rejected=0)

    @property
    def truth(self) -> Sequence[int]:
        """Return the committed ids."""
        return self.ids[: self.n_truth]

    # --- its length

    def set_limit(self, most: int) -> None:
        """Set the limit: the drafts of the next two steps, and of a round trip.

        most: ids of the text that the slot has room for.
        """
        if self.draft_n <= 0 or self.n_truth <= 0:
            self.limit = 0
            return
        # Before the first draft its time is unknown. A round trip is a safe guess: it hides one
        # draft.
        interval = self.interval or self.round_trip
        hidden = ceil(self.round_trip / interval) if interval > 0 else 0
        # While one step verifies its drafts, those of the next are made, and the token that the
        # target adds lies between. Others cover the time that frames are on their way.
        lead = min(2 * self.draft_n + 1 + hidden, MAX_LEAD, self._reach)
        # However small the chance of the last drafts is: the verifier has asked for so many.
        self.limit = min(self.n_truth + max(lead, self.draft_n), most)

    def end_at(self, position: int) -> None:
        """Set the limit where the model has no more drafts, until the text has grown."""
        self.limit = position

    def measured(self, round_trip: float) -> None:
        """Note the seconds of a round trip, for the next limit."""
        self.round_trip = round_trip

    def judge(self, accepted: int, *, rejected: int) -> None:
        """Note a round's drafts, and how long a chain may be before its last one has no chance."""
        self._accepted = self._accepted * KEEP + accepted
        self._judged = self._judged * KEEP + accepted + rejected
        rate = (self._accepted + PRIOR_DRAFTS * PRIOR_RATE) / (self._judged + PRIOR_DRAFTS)
        self._reach = ceil(log(LEAST_USE) / log(rate))

    def burst(self) -> int:
        """Return how many drafts a step makes: those asked for, or else those ahead of them.

        Together they take no longer than BURST.
        """
        length = len(self.ids)
        ahead = self.limit - length
        wanted = self.n_truth + self.draft_n - length
        if wanted <= 0:
            # Nobody waits for these. But a step with several costs less for each.
            wanted = ahead
        in_time = int(BURST / self.interval) if self.interval else 1
        return max(min(wanted, ahead, in_time), 1)

    def before(self, end: int, count: int) -> list[int]:
        """Return the last ids before a position: at most `count`, or all if that is negative."""
        if count < 0:
            return self.known[:end]
        return self.known[max(end - count, 0) : end]

    # --- its ids

    def append(
        self, ids: Sequence[int], drafts: int, seconds: float, proposal: Proposal | None
    ) -> None:
        """Append drafts.

        ids: those of the drafts that were not committed meanwhile.
        drafts: how many a step has made. seconds: that the step took.
        proposal: the distribution that the only draft was sampled from.
        """
        self.draft_tokens += drafts
        self.draft_seconds += seconds
        interval = seconds / drafts
        self.interval += (interval - self.interval) / 8 if self.interval else interval
        if ids and proposal is not None:
            self._proposals[len(self.ids)] = proposal
        self.known.extend(ids)

    def replace(self, length: int, ids: Sequence[int]) -> None:
        """Keep the first `length` ids of text and chain; let the committed `ids` follow them."""
        self.known.truncate(length)
        if self._proposals:
            self._forget_proposals(0, length)
        self._sent = min(self._sent, length)
        self.n_truth = min(self.n_truth, length)
        self.known.extend(ids)

    def commit(self, truth: m.Truth | m.Sync, own: int) -> list[ev.Learned]:
        """Note that the ids are committed up to the end of a frame; report those that are new.

        The frame has the drafts wanted for the next step, too.

        own: how many of the chain's drafts the frame has accepted.
        """
        end = truth.base + len(truth.ids)
        self.n_truth = end
        self.draft_n = min(truth.draft_n, MAX_LEAD)
        if self._proposals:
            self._forget_proposals(end, len(self.ids))
        # The verifier has what it has committed.
        self._sent = max(self._sent, end)
        new = tuple(self.ids[self._learned : end])
        if not new:
            return []
        self._learned = end
        if isinstance(truth, m.Sync):
            return [ev.Learned(new, sync=True)]
        return [ev.Learned(new, min(truth.accepted, len(new)), own)]

    def _forget_proposals(self, begin: int, end: int) -> None:
        """Keep the proposals of the positions begin .. end - 1."""
        for position in list(self._proposals):
            if not begin <= position < end:
                del self._proposals[position]

    # --- its frames

    def nack(self, now: float) -> list[m.Nack]:
        """Ask the verifier for the text after the committed ids, once in NACK_INTERVAL."""
        # A frame that was lost is followed by others that do not fit either. One question is
        # enough, unless the text has grown meanwhile.
        if self._nacked_length == self.n_truth and now - self._nacked_at < m.NACK_INTERVAL:
            return []
        self._nacked_at = now
        self._nacked_length = self.n_truth
        return [m.Nack(self._session, self.n_truth, self.known.crc_at(self.n_truth))]

    def send_again(self, nack: m.Nack, now: float) -> Sequence[ev.DrafterEffect]:
        """Send the chain from the verifier's position on; ask for text if that is unknown."""
        if nack.base < self.n_truth or not self.known.holds(nack.base, nack.prefix_crc):
            return self.nack(now)
        # All behind it was lost, or was built on a frame that was.
        self._sent = nack.base
        return self.send(now)

    def send(self, now: float) -> list[m.Draft | m.DraftProbs]:
        """Send the drafts that were not sent.

        - At once if they are all that the next step wants, or no more are made.
        - Else once in FRAME_INTERVAL, or in AHEAD_INTERVAL if the next step has what it wants.
        """
        base = max(self._sent, self.n_truth)
        end = len(self.ids)
        if base >= end:
            return []
        wanted = self.n_truth + self.draft_n
        completes = base < wanted <= end
        if end < self.limit and not completes:
            interval = FRAME_INTERVAL if base < wanted else AHEAD_INTERVAL
            if now - self._sent_at < interval:
                return []
        self._sent = end
        self._sent_at = now
        draft = m.Draft(self._session, base, self.known.crc_at(base), tuple(self.ids[base:end]))
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
