"""Texts that another server's target makes, while this core drafts for them.

That server reads prompts, chooses ids and ends texts by itself. Here a text is a session whose
client only watches:

- `followed` opens it. Nothing is known of its temperature, its grammar or its end. So it is greedy
  and endless here, and a drafter sends what it holds most likely.
- `TargetsOwnMemory` has the sequence of each session: the target holds its text, whatever it is.
- `ChosenIds` are the rows of a step: the ids that the target has chosen.
- `ClientLeft` ends it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from specmesh.core.kv_contents import KVContents
from specmesh.core.kv_slots import KVSlot, KVSlots
from specmesh.core.requests import Request
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import LARGEST_MAX_TOKENS, SessionParams
from specmesh.core.verifier import events as vev
from specmesh.errors import RequestError

FOLLOWED = SessionParams(SamplingParams(), LARGEST_MAX_TOKENS)
"""Parameters of a text of which only the ids are known."""


def followed(client: int, ids: tuple[int, ...], *, sharing: int = 1) -> vev.Opening:
    """Return the event that opens a text.

    client: its number. ids: all that are known. sharing: texts that share its steps.
    """
    request = Request(None, ids, FOLLOWED)
    return vev.Opening(client=client, request=request, ids=ids, n_prompt=len(ids), sharing=sharing)


class _Choice(NamedTuple):
    """The id that a target has chosen at one place."""

    id: int

    def argmax(self) -> int:
        """Return the id."""
        return self.id


class ChosenIds:
    """The rows of a span of which only the choices are known: `TargetRows` of a greedy text."""

    __slots__ = ("_ids",)

    def __init__(self, ids: Sequence[int]) -> None:
        """Begin with the ids that the text got in a step: accepted drafts, then one more."""
        self._ids = ids

    def __getitem__(self, index: int, /) -> _Choice:
        """Return the choice after so many drafts.

        Raise RequestError behind the last one: the target may have verified fewer drafts than it
        was given. So the round ends there.
        """
        if index >= len(self._ids):
            raise RequestError("the target has chosen no more ids")
        return _Choice(self._ids[index])


class TargetsOwnMemory(KVSlots):
    """The sequences of a target that keeps its texts in memory by itself.

    Each holds its whole text from the beginning on, so there is nothing to read and nothing to
    order.
    """

    def __init__(self, max_sessions: int) -> None:
        """Begin with a sequence for each session that there may be."""
        super().__init__(max_sessions, "whole", room=0)

    def acquire(
        self,
        ids: Sequence[int],
        prompt: int,  # noqa: ARG002 - as in KVSlots
        others: Iterable[tuple[int, KVContents]] = (),  # noqa: ARG002
        *,
        cached: bool = True,  # noqa: ARG002
        crc_at: Callable[[int], int] | None = None,  # noqa: ARG002
        claims: Mapping[int, int] | None = None,  # noqa: ARG002
    ) -> KVSlot:
        """Return a slot that holds all ids but the last; a sequence must be free."""
        seq = next(iter(self._free))
        del self._free[seq]
        slot = KVSlot(seq=seq, length=len(ids) - 1)
        self._taken[seq] = slot
        return slot

    def cut(self, seq: int, length: int) -> None:
        """Do nothing: the target forgets rejected drafts by itself."""
