"""Drafts of a drafter in the verifier's process: a draft model, or the target's own head.

They are made between two steps of the target (`local_drafting.py`), so a chain is whole when the
next step is formed: nothing is waited for.
"""

from collections.abc import Sequence

from specmesh.core.draft_length.controller import SESSION_MEMORY
from specmesh.core.draft_length.drafter_estimates import RollingAcceptance
from specmesh.core.draft_length.local_estimates import LocalEstimates
from specmesh.core.rounds import Round
from specmesh.core.verifier.sources.base import SourceContext


class LocalSource:
    """The chain of one session.

    tokens: drafts beyond the prefix, to be read only.
    drafting: drafts were made for the newest step, or are to be made for the next one.
    probing: the next drafts are not verified. They only show how many of them the target would
        have accepted.
    beside: the next drafts promise more than to follow the policy of the drafter daemon.
    failed: a step for it failed. The session gets no more drafts of this source.
    """

    exact = False
    copies = False

    def __init__(self, context: SourceContext, local: LocalEstimates) -> None:
        """Begin without drafts; local: what was measured over all sessions."""
        self.name = local.name
        self.tokens: list[int] = []
        self.drafting = False
        self.probing = False
        self.beside = False
        self.failed = False
        self._probe: list[int] = []  # drafts that the text is compared with
        self._right = 0  # how many of them it has so far
        self._prefix = context.prefix
        self._constraint = context.constraint
        self._counts = context.counts
        self._acceptance = RollingAcceptance(SESSION_MEMORY, local.acceptance)

    @classmethod
    def of(cls, context: SourceContext) -> "LocalSource | None":
        """Return the source of a session; None without such a drafter, or if it is to have none.

        The target's head reads along for sessions with this source only.
        """
        local = context.local
        if local is None or not context.params.drafts_by(local.name):
            return None
        return cls(context, local)

    def propose(self, proposed: Sequence[int], limit: int) -> Sequence[int]:
        """Return the drafts in hand that follow those of other sources."""
        if not self.tokens or limit <= 0:
            return ()
        begin = len(proposed)
        if begin and self.tokens[:begin] != list(proposed):
            return ()
        return self.tokens[begin : begin + limit]

    def acceptance(self, drafts: int) -> Sequence[float]:
        """Return the probabilities that the first 1, 2, ... drafts are all accepted."""
        return self._acceptance.chain(drafts)

    def begin(self, exact: Sequence[int]) -> None:
        """Let a chain without drafts go on from those that are accepted for certain."""
        if not self.tokens:
            self.tokens += exact

    def take(self, base: int, tokens: Sequence[int]) -> None:
        """Append drafts that follow the text and the chain up to the position `base`.

        Those that a grammar forbids are dropped, and all behind them.
        """
        if base != len(self._prefix.ids) + len(self.tokens):
            return
        if self.probing:
            self._probe = [*self.tokens, *tokens]
            self._right = 0
            self.tokens.clear()
            return
        self.tokens += tokens
        constraint = self._constraint
        if constraint is not None and self.tokens:
            allowed = constraint.count_allowed(self.tokens)
            self._counts.stale_drafts += len(self.tokens) - allowed
            del self.tokens[allowed:]

    def committed(self, done: Round) -> None:
        """Keep the drafts that agree with the round's ids, and learn from those it compared."""
        for drafts in done.by_source:
            if drafts.source == self.name:
                self._acceptance.record(drafts.tested, drafts.accepted)
        if self._probe:
            self._compare(done.ids)
        if not self.tokens:
            return
        count = len(done.ids)
        if self.tokens[:count] == list(done.ids):
            del self.tokens[:count]
        else:
            self.tokens.clear()

    def _compare(self, ids: Sequence[int]) -> None:
        """Compare a probe's drafts with the ids by which the text has grown."""
        for token in ids:
            if token != self._probe[self._right]:
                self._acceptance.record(self._right + 1, self._right)
                self._probe = []
                return
            self._right += 1
            if self._right == len(self._probe):
                self._acceptance.record(self._right, self._right)
                self._probe = []
                return
