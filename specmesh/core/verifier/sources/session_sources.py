"""The sources of a session, in the order in which they are asked."""

from collections.abc import Callable

from specmesh.core.verifier.sources.base import DraftSource, SourceContext
from specmesh.core.verifier.sources.grammar import GrammarSource
from specmesh.core.verifier.sources.local import LocalSource
from specmesh.core.verifier.sources.prediction import PredictionSource
from specmesh.core.verifier.sources.remote import RemoteSource
from specmesh.core.verifier.sources.suffix import SuffixSource

SESSION_SOURCES: list[Callable[[SourceContext], DraftSource | None]] = [
    GrammarSource.of,
    PredictionSource.of,
    RemoteSource,
    SuffixSource.of,
    LocalSource.of,
]
"""Each makes the source of a session, or None if the session has no use for it. A later source
continues the chain of an earlier one.
"""


def sources_of(context: SourceContext) -> tuple[DraftSource, ...]:
    """Return the sources of a session."""
    made = [make(context) for make in SESSION_SOURCES]
    return tuple(source for source in made if source is not None)
