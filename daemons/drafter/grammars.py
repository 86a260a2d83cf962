"""Grammars of the sessions that a drafter follows, compiled on a thread of their own: drafts need not wait for them."""

from concurrent.futures import Future, ThreadPoolExecutor

import structlog

from specmesh.core.sampling.constraint import SIMPLER, Constraint, DraftConstraint, Grammar
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.daemons.drafter.draft_session import DraftSession
from specmesh.engines.grammar import Grammars

log = structlog.get_logger("specmesh.drafter")


class DraftGrammars:
    """Gives sessions what guides their drafts, as soon as there is any."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._grammars: tuple[Vocabulary, Grammars] | None = None
        self._compiling: dict[int, Future[Constraint]] = {}

    def look(self, live: DraftSession, vocabulary: Vocabulary | None) -> None:
        """Begin to compile a session's grammar in terms of this vocabulary, or give it what came of that; take it away
        again where it has run out of what it may take."""
        if live.guided is not None and (why := live.guided.spent) is not None:
            live.guided = live.grammar = None
            log.warning("grammar_spent", session=live.id, error=why, meaning="its drafts go without", hint=SIMPLER)
        if live.grammar is None or live.guided is not None or vocabulary is None:
            return
        compiling = self._compiling.get(live.id)
        if compiling is None:
            self._compiling[live.id] = self._pool.submit(self._compile, vocabulary, live.grammar)
        elif compiling.done():
            del self._compiling[live.id]
            try:
                live.guided = DraftConstraint(compiling.result(), live.end_ids)
            except Exception as error:  # noqa: BLE001  (whatever it is, drafts go on without)
                live.grammar = None
                log.warning("grammar_unknown", session=live.id, error=str(error), meaning="its drafts go without")

    def forget(self, session: int) -> None:
        compiling = self._compiling.pop(session, None)
        if compiling is not None:
            compiling.cancel()

    def close(self) -> None:
        """Begin nothing more, and end the process that looks at grammars."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._grammars is not None:
            self._grammars[1].close()

    def _compile(self, vocabulary: Vocabulary, grammar: Grammar) -> Constraint:
        if self._grammars is None or self._grammars[0] is not vocabulary:
            if self._grammars is not None:
                self._grammars[1].close()
            self._grammars = vocabulary, Grammars(vocabulary)
        return self._grammars[1].compile(grammar)
