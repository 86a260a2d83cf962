"""An outbox: the effects of a machine's parts, until its shell takes them."""

from typing import TypeVar

Effect = TypeVar("Effect")


class Outbox(list[Effect]):
    """Effects in the order in which they came.

    The parts of a machine share one, since the order of their effects counts. They only append.
    The machine takes all of them when it returns to its shell.

    It is a list, and no object around one: each step appends several times.
    """

    __slots__ = ()

    def take(self) -> list[Effect]:
        """Return the effects since the last call, and begin anew."""
        effects = self.copy()
        self.clear()
        return effects
