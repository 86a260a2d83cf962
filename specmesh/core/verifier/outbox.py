"""The effects that a verifier's core wants carried out."""

from collections.abc import Callable

from specmesh.core.verifier import events as vev


class Outbox:
    """Collects the effects of all parts of the core, in the order in which they came.

    add: adds an effect. It is the list's own method, since each step calls it.
    """

    def __init__(self) -> None:
        """Begin with no effects."""
        self._effects: list[vev.Effect] = []
        self.add: Callable[[vev.Effect], None] = self._effects.append

    def take(self) -> list[vev.Effect]:
        """Return the effects since the last call."""
        effects = self._effects.copy()
        self._effects.clear()
        return effects
