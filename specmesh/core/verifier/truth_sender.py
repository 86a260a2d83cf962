"""The committed text on its way to a session's drafter: TRUTH and SYNC frames."""

from specmesh.core.draft_length.controller import DraftLengthController
from specmesh.core.prefix import Prefix
from specmesh.wire import messages as m

IDLE_INTERVAL = 1.0  # seconds between two TRUTHs to a drafter that is asked for no drafts
MOST_IDS = m.MAX_TOKENS // 2  # of a TRUTH that may still grow
SYNC_INTERVAL = 0.01
"""Seconds between two SYNCs, at least: each is as long as the prefix, and a peer can ask without
end.
"""
SYNC_IDS_PER_S = 2**18
"""Ids of answers to NACKs in a second: an answer with the whole of a long text is not repeated
sooner.
"""


class TruthSender:
    """Decides when a session's drafter is sent the ids that were committed."""

    def __init__(self, session: int, prefix: Prefix, draft_length: DraftLengthController) -> None:
        self._session = session
        self._prefix = prefix
        self._draft_length = draft_length
        self._unsent: int | None = None  # position of the first id that was not sent yet
        self._accepted = 0  # drafts among the ids that were not sent yet
        self._synced_at = float("-inf")
        self._synced = 0  # ids of the newest answer to a NACK
        self._sent_at = float("-inf")
        self._was_drafting = False  # drafts were asked for in the last frame

    def begin(self) -> list[m.Sync]:
        """Return the whole prefix, for a drafter that is new to the session."""
        self._unsent = None
        self._accepted = 0
        return self._sync(0)

    def grown(self, base: int, accepted: int, now: float, *, idle: bool) -> list[m.Truth]:
        """Return the ids from `base` on, and all before them that were not sent, or hold them back.

        They are one TRUTH, or two if one cannot count their drafts.

        accepted: drafts among the ids from `base` on, at most MAX_ACCEPTED.
        idle: nothing is drafted. Then the TRUTH may come late: a frame wakes two processes, which
        may need the cores of the verifier's steps.
        """
        truths: list[m.Truth] = []
        if self._unsent is None:
            self._unsent = base
        elif self._accepted + accepted > m.MAX_ACCEPTED:
            truths.append(self._truth(self._unsent, base))
            self._unsent = base
        self._accepted += accepted
        is_small = len(self._prefix) - self._unsent < MOST_IDS
        is_early = now < self._sent_at + IDLE_INTERVAL
        if idle and is_early and is_small and not self._was_drafting:
            return truths
        self._sent_at = now
        self._was_drafting = not idle and not self._draft_length.probing
        truths.append(self._truth(self._unsent, len(self._prefix)))
        self._unsent = None
        return truths

    def _truth(self, begin: int, end: int) -> m.Truth:
        """Return the TRUTH of these positions. It counts the drafts that were not counted yet."""
        accepted = self._accepted
        self._accepted = 0
        return m.Truth(
            self._session,
            begin,
            self._prefix.crc_at(begin),
            ids=tuple(self._prefix[begin:end]),
            draft_n=self._draft_length.draft_n,
            accepted=accepted,
        )

    def nacked(self, nack: m.Nack, now: float) -> list[m.Sync]:
        """Return the prefix from the position on up to which the drafter agrees."""
        pause = min(m.NACK_INTERVAL, max(SYNC_INTERVAL, self._draft_length.round_trip))
        # Frames that crossed the answer on its way are refused by the drafter, and each of them
        # brings another NACK. The answer to the first is an answer to all.
        if now - self._synced_at < max(pause, self._synced / SYNC_IDS_PER_S):
            return []
        self._synced_at = now
        base = 0
        # If not, the texts differ before that position. All is sent, as the place is unknown.
        if self._prefix.holds(nack.base, nack.prefix_crc):
            base = nack.base
        self._synced = len(self._prefix) - base
        return self._sync(base)

    def _sync(self, base: int) -> list[m.Sync]:
        """Return the prefix from `base` on, in as many frames as it needs."""
        prefix = self._prefix
        draft_n = self._draft_length.draft_n
        self._was_drafting = draft_n > 0 and not self._draft_length.probing
        frames: list[m.Sync] = []
        # At least one frame: without new ids, too, it shows the drafter that it is up to date.
        for at in range(base, max(len(prefix), base + 1), m.MAX_TOKENS):
            ids = tuple(prefix[at : at + m.MAX_TOKENS])
            frames.append(m.Sync(self._session, at, prefix.crc_at(at), ids, draft_n))
        return frames
