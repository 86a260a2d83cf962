"""The compiler of grammars that is installed: llguidance's, or one that refuses them all.

llguidance comes with the extras of the engines. What decodes nothing itself runs without it: the
drafter without a model, and the proposer beside vLLM, which has grammars of its own.
"""

from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from typing import Protocol

from specmesh.core.sampling.constraint import Constraint, Grammar, Ignored
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.errors import RequestError, pip_install

NEEDED = (1, 9)
"""The least release of llguidance that is used; vLLM pins an older one."""


class GrammarCompiler(Protocol):
    """Compiles grammars for one vocabulary; safe from any thread."""

    def prepare(self) -> None:
        """Make now what the first grammar would wait for."""

    def compile(self, grammar: Grammar, *, patient: bool = True) -> Constraint:
        """Return the grammar at its start.

        Raises RequestError for a grammar that cannot be used, and unless `patient` ChildLate for
        one that takes longer than most.
        """
        ...

    def close(self) -> None:
        """Compile no more."""


class NoCompiler:
    """Refuses all grammars: `trouble` says why."""

    def __init__(self, trouble: str) -> None:
        self._trouble = trouble

    def prepare(self) -> None:
        """Do nothing."""

    def compile(self, grammar: Grammar, *, patient: bool = True) -> Constraint:  # noqa: ARG002
        """Raise RequestError, which says what to install."""
        reason = f"{grammar.field} cannot be used: {self._trouble}"
        raise RequestError(reason, grammar.field, pip_install("llama"))

    def close(self) -> None:
        """Do nothing."""


@cache
def trouble() -> str | None:
    """Return why grammars cannot be used in this installation; None if they can."""
    if find_spec("llguidance") is None:
        return "llguidance is not installed"
    installed = version("llguidance")
    if tuple(map(int, installed.split(".")[:2])) < NEEDED:
        least = ".".join(map(str, NEEDED))
        return f"llguidance {installed} is installed, specmesh needs {least} or later"
    return None


def grammar_compiler(vocabulary: Vocabulary, ignored: Ignored | None = None) -> GrammarCompiler:
    """Return the compiler of grammars for a vocabulary.

    ignored: called once for each tool whose schema is ignored in parts, with the tool's name and
        these parts in words.
    """
    found = trouble()
    if found is not None:
        return NoCompiler(found)
    from specmesh.engines.grammar import Grammars

    return Grammars(vocabulary, ignored)
