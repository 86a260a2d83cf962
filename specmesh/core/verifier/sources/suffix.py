"""Drafts of the text itself: what followed where its last ids occurred before.

Edits, agents and code repeat themselves. Of two places, one in the text and one in earlier outputs
of the same account, the one with the longer match counts.

A repeated text often differs in a single id, as in a name. So after a wrong draft, where nothing
matches the end of the text, the next ids are those after the wrong one: a match of length 0.
"""

from array import array
from collections.abc import Sequence

from specmesh.core.draft_length.match_acceptance import MatchAcceptance
from specmesh.core.prefix import Prefix
from specmesh.core.rounds import Round
from specmesh.core.verifier.earlier_outputs import AccountOutputs
from specmesh.core.verifier.sources.base import SourceContext
from specmesh.core.verifier.sources.suffix_index import LONGEST, SuffixIndex

LEAST_ACCEPTANCE = 0.1
"""Least probability that a draft and all before it are accepted.

A source that is right less often has nothing in hand, so that a draft model is asked. Where a row
adds 1 % to a step such drafts would still pay a little.
"""

MORE = 8
"""Ids that are kept after the drafts of a step, in case one of these is wrong."""


class SuffixSource:
    """Proposes what followed the nearest of the longest matches of the text's end.

    The indexes are brought up to date when a step asks for drafts, a bounded part at a time. So a
    source that is not asked does nothing.
    """

    name = "suffix"
    exact = False
    copies = True

    def __init__(self, prefix: Prefix, earlier: AccountOutputs | None) -> None:
        """Begin with a text. earlier: outputs of its account; None for the text alone."""
        self._prefix = prefix
        self._earlier = earlier
        self._index = SuffixIndex(prefix.ids)
        # Accounts do not share what they learn: it would show in each other's drafts.
        self._acceptance = MatchAcceptance(None if earlier is None else earlier.acceptance)
        self._length = 0  # of the match that the newest drafts follow
        self._newest: Sequence[int] = ()  # the newest drafts, and up to MORE ids after them
        self._after_wrong: Sequence[int] = ()  # ids after a wrong draft of the newest round

    @classmethod
    def of(cls, context: SourceContext) -> "SuffixSource | None":
        """Return the source of a session; None if it is to have no drafts of this kind."""
        if not (context.limits.drafts_repeats and context.params.drafts_by(cls.name)):
            return None
        if context.earlier is not None:
            # A gate that accounts share would show in each other's drafts, too.
            context.draft_length.judge_apart(cls.name, context.earlier.speculations)
        return cls(context.prefix, context.earlier)

    def forget_earlier(self) -> None:
        """Go on with the text alone: another client has it now."""
        self._earlier = None
        self._acceptance = MatchAcceptance()
        self._newest = ()
        self._after_wrong = ()

    def propose(self, proposed: Sequence[int], limit: int) -> Sequence[int]:
        """Return the ids after the longest match, as far as they may be accepted."""
        if limit <= 0:
            return ()
        ids = self._prefix.ids
        self._index.update()
        tail = ids[-LONGEST:]
        tail.extend(proposed)
        self._length = 0
        drafts = () if proposed else self._after_wrong
        match = self._index.find(tail)
        if match is not None:
            self._length = match.length
            drafts = _repeated(ids, match.place, proposed, limit + MORE)
        if self._earlier is not None:
            earlier = self._earlier.find(tail, longer_than=self._length)
            if earlier is not None:
                self._length = earlier.length
                drafts = self._earlier.after(earlier, limit + MORE)
        self._newest = drafts
        most = min(len(drafts), limit)
        probable = self._acceptance.chain(self._length, most, least=LEAST_ACCEPTANCE)
        return drafts[: len(probable)]

    def acceptance(self, drafts: int) -> Sequence[float]:
        """Return the probabilities that the first 1, 2, ... `drafts` are all accepted."""
        return self._acceptance.chain(self._length, drafts)

    def committed(self, done: Round) -> None:
        """Learn from a round in which its drafts were tested."""
        self._after_wrong = ()
        for drafts in done.by_source:
            if drafts.source == self.name and drafts.tested:
                self._acceptance.record(self._length, drafts.tested, drafts.accepted)
                agreed = self._length + drafts.accepted
                # If nothing agreed before a wrong draft, the text has left the place.
                if agreed and drafts.accepted < drafts.tested:
                    self._after_wrong = self._newest[drafts.accepted + 1 :]


def _repeated(ids: "array[int]", place: int, proposed: Sequence[int], limit: int) -> Sequence[int]:
    """Return the `limit` ids of a text and of `proposed` after it, from a place on.

    If they end before, the ids from the place on come again: a text that has matched itself so near
    its end has a period.
    """
    found = ids[place : place + limit]
    if len(found) < limit:
        found.extend(proposed[: limit - len(found)])
    period = len(found)
    while len(found) < limit:
        found.append(found[-period])
    return found
