"""Earlier outputs of the accounts of a verifier, from which drafts are taken.

An account is an API key, or a user of this machine. Its outputs draft for its own requests only,
and so does what was learned of them: nothing that one account writes shows in how fast another one
is answered. They are in memory only. All of them together take `room` bytes at most. The account
that takes most of it loses its oldest ones, so none loses its share to others.
"""

import sys
from array import array
from collections import deque
from collections.abc import Sequence

from specmesh.core.draft_length.match_acceptance import MatchAcceptance
from specmesh.core.draft_length.speculation import Speculations
from specmesh.core.requests import Account
from specmesh.core.statistics.snapshot import SuffixCacheSection
from specmesh.core.verifier.sources.suffix_index import (
    BREAK,
    MOST_BYTES_PER_ID,
    Match,
    SuffixIndex,
)

BYTES_PER_ID = MOST_BYTES_PER_ID + 5  # the id itself, and what an array has in reserve
LEAST_IDS = 16
"""Shorter outputs are not kept: they are answered before a draft could help."""


class AccountOutputs:
    """The earlier outputs of one account.

    acceptance: of its drafts, over all its sessions.
    speculations: whether its drafts pay, by its sessions alone.
    lengths: of the outputs that are kept, with a break each; the oldest first.
    """

    def __init__(self) -> None:
        self.acceptance = MatchAcceptance()
        self.speculations = Speculations()
        self.lengths = deque[int]()
        self._ids = array("i")
        self._index = SuffixIndex(self._ids)

    @property
    def bytes(self) -> int:
        """Return the memory that the ids and their index take, the index at most."""
        return sys.getsizeof(self._ids) + SuffixIndex.bytes_for(len(self._ids))

    @property
    def tokens(self) -> int:
        """Return the number of ids in all outputs."""
        return len(self._ids) - len(self.lengths)

    def find(self, tail: Sequence[int], longer_than: int) -> Match | None:
        """Return the place of a longer match of the end of a text; None without one.

        First a bounded part of the ids that came since is taken in.
        """
        if not self._ids:
            return None
        self._index.update()
        match = self._index.find(tail)
        if match is None or match.length <= longer_than:
            return None
        return match

    def after(self, match: Match, limit: int) -> Sequence[int]:
        """Return the ids that followed a match, at most `limit`."""
        found = self._ids[match.place : match.place + limit]
        if BREAK in found:
            return found[: found.index(BREAK)]
        return found

    def add(self, ids: "array[int]") -> None:
        """Keep an output."""
        self._ids.extend(ids)
        self._ids.append(BREAK)
        self.lengths.append(len(ids) + 1)

    def drop_half(self) -> None:
        """Forget the oldest output, and others up to half of the ids, but not the newest one.

        A single output loses its first half. What is left is taken in anew.
        """
        half = len(self._ids) // 2
        dropped = self.lengths.popleft()
        if not self.lengths and half >= LEAST_IDS:
            dropped -= half
            self.lengths.append(half)
        while dropped < half and len(self.lengths) > 1:
            dropped += self.lengths.popleft()
        self._ids = self._ids[dropped:]
        self._index = SuffixIndex(self._ids)


class EarlierOutputs:
    """The earlier outputs of all accounts, in `room` bytes.

    When they would take more, the account with the most loses the older half of its own: for each
    single output that leaves the index would be built anew. An account with less than an even share
    is never that one, so it loses nothing to others.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._accounts: dict[Account, AccountOutputs] = {}

    def of(self, account: Account) -> AccountOutputs:
        """Return the outputs of an account, which may have none yet."""
        return self._accounts.setdefault(account, AccountOutputs())

    def add(self, account: Account, ids: "array[int]") -> None:
        """Keep an output of an account, or the last part of it for which there is room."""
        if len(ids) < LEAST_IDS:
            return
        most = self._room // BYTES_PER_ID - LEAST_IDS
        self.of(account).add(ids[-most:])
        while self._bytes() > self._room:
            self._largest().drop_half()

    def _bytes(self) -> int:
        """Return the memory that all of them take."""
        return sum(outputs.bytes for outputs in self._kept())

    def _kept(self) -> list[AccountOutputs]:
        """Return the accounts that have outputs."""
        return [outputs for outputs in self._accounts.values() if outputs.lengths]

    def _largest(self) -> AccountOutputs:
        """Return the account whose outputs take the most memory."""
        return max(self._kept(), key=lambda kept: kept.bytes)

    def report(self) -> SuffixCacheSection:
        """Return the numbers for `stats`."""
        kept = self._kept()
        return SuffixCacheSection(
            max_bytes=self._room,
            bytes=self._bytes(),
            tokens=sum(outputs.tokens for outputs in kept),
            outputs=sum(len(outputs.lengths) for outputs in kept),
        )
