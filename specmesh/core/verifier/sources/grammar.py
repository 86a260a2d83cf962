"""Drafts of the grammar: ids that alone may follow the text."""

from collections.abc import Sequence

from specmesh.core.rounds import Round
from specmesh.core.sampling.constraint import Constraint
from specmesh.core.verifier.sources.base import SourceContext


class GrammarSource:
    """Proposes the ids that a constraint forces. They cost nothing and are always accepted."""

    name = "grammar"
    exact = True
    copies = False

    def __init__(self, constraint: Constraint) -> None:
        self._constraint = constraint

    @classmethod
    def of(cls, context: SourceContext) -> "GrammarSource | None":
        """Return the source of a session with a grammar; None if it is to have none."""
        if context.constraint is None or not context.params.drafts_by(cls.name):
            return None
        return cls(context.constraint)

    def propose(self, proposed: Sequence[int], limit: int) -> Sequence[int]:
        """Return the forced ids. It is the first source, since others would repeat them."""
        if proposed or limit <= 0:
            return ()
        return self._constraint.forced()[:limit]

    def acceptance(self, drafts: int) -> Sequence[float]:
        """Return 1 for each draft."""
        return (1.0,) * drafts

    def committed(self, done: Round) -> None:
        """Learn nothing: the session advances the constraint."""
