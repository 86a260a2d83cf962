"""Drafts of the client's prediction: the ids that follow the place that the text has come to.

A prediction is aligned with the text as it grows. An example: the client predicts its file, and the
model renames `add` to `plus` (letters stand for ids):

    prediction   d e f   a d d   ( x )    r e t   a d d   ( y )
    text         d e f   p l u s ( x )    r e t   p l u s ( y )

1. `d e f` agrees. Then `a` is proposed, and the target chooses `p`: the text is lost.
2. After each step the place is looked for anew, by the last ids of the text. `p l u s` is nowhere.
   After `(` it is found again: just ahead, behind `a d d (`.
3. Four ids later the place counts as certain, and so it is known that `a d d` became `p l u s`.
   From now on the prediction is read with `p l u s` in the place of `a d d`.

A prediction that has agreed for 30 ids goes on to agree, one that was just found may not. So its
acceptance is measured by the ids in a row that agreed before a draft, as that of repeated text is.
"""

from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from specmesh.core.draft_length import MAX_COPIED
from specmesh.core.draft_length.match_acceptance import PREDICTION_PRIOR, MatchAcceptance
from specmesh.core.draft_sources import PREDICTION
from specmesh.core.prefix import common_length
from specmesh.core.rounds import Round
from specmesh.core.verifier.predicted_text import (
    INDEXED,
    LONGEST_MATCH,
    Occurrence,
    PredictedText,
)
from specmesh.core.verifier.sources.base import SourceContext

# In brackets: tokens per second with other values, of 187 edits of 17 files (renamed names,
# insertions, deletions, other indents, code fences, files in another order), 1,000 ids each, and of
# a step whose 16 drafts cost 2.6 times as much as its own row.

CERTAIN_AFTER = 4
"""Ids in a row that must agree until a difference is learned from (2: -0.3 %; 8: -1 %)."""
LONGEST_CHANGE = 8
"""Most ids that are replaced, and that replace them (4 and 16: the same)."""
READ_BACK = 64
"""Ids before the text that are compared: the prompt may have begun the answer, with a new name."""
MOST_FOLLOWED = MAX_COPIED + 1
"""Ids that are compared one by one: those of a step. After more the place is found anew."""


class _Change(NamedTuple):
    """Ids of the prediction that the text has replaced, and the ids in their place."""

    old: tuple[int, ...]
    new: tuple[int, ...]


class Alignment:
    """The place in a prediction that a text has come to.

    agreed: ids in a row that agreed before it; ids of a change count as well.
    """

    def __init__(
        self, predicted: PredictedText, before: Sequence[int] = (), *, resumed: bool = False
    ) -> None:
        """Find the place after the ids `before`, if the last of them are in the prediction.

        If they are not, a new text begins at the beginning of the prediction. A resumed one is
        lost.

        before: the last ids of the prompt and of a text so far, READ_BACK at most.
        """
        self._predicted = predicted
        self._ids = predicted.ids
        self._recent: list[int] = []
        self._at = 0  # in the prediction, behind a change that has begun
        self._lost = True
        self.agreed = 0
        self._changes: dict[int, _Change] = {}  # by the first of their old ids
        self._change: _Change | None = None  # the one that the text is in
        self._changed = 0  # how many of its new ids have come
        self._differed_at: int | None = None  # in the prediction, where the text left it
        self._since: list[int] = []  # ids of the text since it left
        for token in before:
            self._follow((token,), INDEXED)
        if not resumed and (self._lost or self.agreed < INDEXED):
            self._restart()

    def _restart(self) -> None:
        """Begin at the beginning of the prediction, with the changes that are known."""
        self._go_on_at(Occurrence(0, 0))
        self._change = None
        self._differed_at = None

    def follow(self, ids: Sequence[int]) -> None:
        """Take in the next ids of the text."""
        self._follow(ids, 1)

    def _follow(self, ids: Sequence[int], least: int) -> None:
        """Take in the next ids. least: ids in a row by which a lost place is found again."""
        if len(ids) > MOST_FOLLOWED:
            self._skip(len(ids))
        elif self._agrees(ids):
            self._at += len(ids)
            self.agreed += len(ids)
        else:
            for token in ids:
                self._take(token)
        self._recent += ids[-LONGEST_MATCH:]
        del self._recent[:-LONGEST_MATCH]
        if self._lost:
            found = self._predicted.find(self._recent, self._at, least)
            if found is not None:
                self._go_on_at(found)
        if self._differed_at is not None:
            self._learn(self._differed_at)

    def _agrees(self, ids: Sequence[int]) -> bool:
        """Return True if all ids are those of the prediction, and no change may be among them."""
        if self._lost or self._changes or self._differed_at is not None:
            return False
        return self._ids[self._at : self._at + len(ids)] == array("i", ids)

    def after(self, proposed: Sequence[int], limit: int) -> tuple[tuple[int, ...], int]:
        """Return at most `limit` ids after the text and the ids `proposed`, and a number.

        The number is how many ids in a row agreed before them.
        """
        begin = len(proposed)
        if not begin and not self._changes and not self._lost:
            return tuple(self._ids[self._at : self._at + limit]), self.agreed
        if not begin:
            return tuple(islice(self._ahead(), limit)), self.agreed
        ahead = tuple(islice(self._ahead(), begin + limit))
        if common_length(ahead, proposed) == begin:
            return ahead[begin:], self.agreed + begin
        recent = [*self._recent, *proposed][-LONGEST_MATCH:]
        found = self._predicted.find(recent, self._at)
        if found is None:
            return (), 0
        return tuple(self._ids[found.at : found.at + limit]), found.agreed

    def _ahead(self) -> Iterator[int]:
        """Yield the ids to come, with all changes; none while the text is lost."""
        if self._lost:
            return
        if self._change is not None:
            yield from self._change.new[self._changed :]
        at = self._at
        while at < len(self._ids):
            change = self._change_at(at)
            if change is None:
                yield self._ids[at]
                at += 1
            else:
                yield from change.new
                at += len(change.old)

    def _change_at(self, at: int) -> _Change | None:
        """Return the change of the ids at a place, if they were changed before."""
        change = self._changes.get(self._ids[at])
        if change is None or tuple(self._ids[at : at + len(change.old)]) != change.old:
            return None
        return change

    def _take(self, token: int) -> None:
        """Go on by one id of the text, or note that it differs from the prediction."""
        if self._differed_at is not None:
            self._since.append(token)
        if self._lost:
            return
        at = self._at
        if self._change is None and at < len(self._ids):
            self._begin_change(at)
        if self._change is not None:
            self._take_changed(self._change, token)
        elif at < len(self._ids) and self._ids[at] == token:
            self._at = at + 1
            self.agreed += 1
        else:
            self._differ(token, ())

    def _begin_change(self, at: int) -> None:
        """Begin the change of the ids at a place, if they were changed before."""
        change = self._change_at(at)
        if change is None:
            return
        self._change = change
        self._changed = 0
        self._at = at + len(change.old)
        # A change may have another number of ids on each side. So a difference before it can no
        # longer be measured after it.
        self._differed_at = None

    def _take_changed(self, change: _Change, token: int) -> None:
        """Go on by an id within a change, or note that it differs from the change's new ids."""
        if change.new[self._changed] != token:
            self._at -= len(change.old)
            self._differ(token, change.new[: self._changed])
            return
        self._changed += 1
        self.agreed += 1
        if self._changed == len(change.new):
            self._change = None

    def _differ(self, token: int, before: Sequence[int]) -> None:
        """Note that the text differs from the prediction at this id.

        before: ids of a change that had begun, which may be wrong as well.
        """
        self._lost = True
        self._change = None
        if self._differed_at is None:
            self._differed_at = self._at
            self._since = [*before, token]

    def _skip(self, count: int) -> None:
        """Note that many ids have come at once: the place is lost, about so many ids ahead."""
        self._lost = True
        self._change = None
        self._differed_at = None
        self._at = min(self._at + count, len(self._ids))

    def _go_on_at(self, place: Occurrence) -> None:
        self._lost = False
        self._at, self.agreed = place

    def _learn(self, differed_at: int) -> None:
        """Learn which ids have replaced which, once the text agrees again for certain."""
        if self._lost or self._change is not None or self.agreed < CERTAIN_AFTER:
            return
        self._differed_at = None
        agreed = min(self.agreed, self._at - differed_at, len(self._since))
        old = tuple(self._ids[differed_at : self._at - agreed])
        new = tuple(self._since[: len(self._since) - agreed])
        if old and new:
            if len(old) <= LONGEST_CHANGE and len(new) <= LONGEST_CHANGE:
                self._changes[old[0]] = _Change(old, new)
        elif not old and not new:
            # The prediction was right, and the change that was made of it was wrong.
            self._changes.pop(self._ids[differed_at], None)


class PredictionSource:
    """Proposes what the client's prediction has after the text."""

    name = PREDICTION
    exact = False
    copies = True

    def __init__(self, context: SourceContext, predicted: PredictedText) -> None:
        self._prefix = context.prefix
        self._read = len(context.prefix)  # ids that the alignment has taken in
        resumed = self._read > context.counts.prompt_tokens
        self._alignment = Alignment(predicted, context.prefix[-READ_BACK:], resumed=resumed)
        self._acceptance = MatchAcceptance(prior=PREDICTION_PRIOR)
        self._agreed = 0  # ids in a row that agreed before the drafts proposed last

    @classmethod
    def of(cls, context: SourceContext) -> "PredictionSource | None":
        """Return the source of a session with a prediction; None if it is to have none."""
        if not context.predicted or not context.params.drafts_by(cls.name):
            return None
        return cls(context, context.predicted)

    def propose(self, proposed: Sequence[int], limit: int) -> Sequence[int]:
        """Return the ids that the prediction has next, if the place is known."""
        if limit <= 0:
            return ()
        ids = self._prefix.ids
        if self._read < len(ids):
            self._alignment.follow(ids[self._read :])
            self._read = len(ids)
        drafts, self._agreed = self._alignment.after(proposed, limit)
        return drafts

    def acceptance(self, drafts: int) -> Sequence[float]:
        """Return the probabilities that its first 1, 2, ... drafts are all accepted."""
        return self._acceptance.chain(self._agreed, drafts)

    def committed(self, done: Round) -> None:
        """Learn from its own drafts; the text is followed when drafts are wanted next."""
        for drafts in done.by_source:
            if drafts.source == self.name:
                self._acceptance.record(self._agreed, drafts.tested, drafts.accepted)
