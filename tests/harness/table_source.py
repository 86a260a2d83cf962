"""A source of drafts that is a function of the text: the smallest new source there can be."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from specmesh.core.prefix import Prefix
from specmesh.core.rounds import Round
from specmesh.core.verifier.sources import session_sources
from specmesh.core.verifier.sources.base import SourceContext

Table = Callable[[Sequence[int]], Sequence[int]]
"""Returns the drafts after these ids."""


class TableSource:
    """Proposes what a table has for the prefix and the drafts of the sources before it."""

    name = "table"
    exact = False
    copies = False

    def __init__(self, prefix: Prefix, table: Table) -> None:
        self._prefix = prefix
        self._table = table

    def propose(self, proposed: Sequence[int], limit: int) -> Sequence[int]:
        """Return the table's ids, at most `limit`."""
        if limit <= 0:
            return ()
        return self._table([*self._prefix.ids, *proposed])[:limit]

    def acceptance(self, drafts: int) -> Sequence[float]:
        """Return an even chance for each draft."""
        return [0.5 ** (index + 1) for index in range(drafts)]

    def committed(self, done: Round) -> None:
        """Learn nothing."""


@contextmanager
def table_source(table: Table) -> Iterator[None]:
    """Give all sessions that begin in this context a table beside their other sources."""

    def make(context: SourceContext) -> TableSource:
        return TableSource(context.prefix, table)

    session_sources.SESSION_SOURCES.insert(1, make)
    try:
        yield
    finally:
        session_sources.SESSION_SOURCES.remove(make)
