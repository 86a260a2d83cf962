"""Responses that are kept in memory for those that go on from them.

Each holds its own part of a chat and the part before it, which others may go on from too: a chat of
many responses is kept once.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from specmesh.core.fields import Json, is_list, is_object, list_at
from specmesh.errors import RequestError

MOST_BYTES = 64 * 2**20
"""Of all that is kept."""

ID_DIGITS = 32  # of a response, which the ids of its items begin with


@dataclass(slots=True, eq=False)
class ChatPart:
    """The messages that a response added to a chat. before: what it went on from, of which the
    first `held` messages are a part of the chat. size: bytes of its own messages. holders: kept
    responses and other counted parts that need it."""

    before: "ChatPart | None"
    held: int
    messages: list[Json]
    size: int
    holders: int = 0

    @property
    def length(self) -> int:
        return self.held + len(self.messages)

    def whole(self) -> list[Json]:
        """Return the chat's messages up to and with its own."""
        parts, one, held = list[list[Json]](), self, self.length
        while True:
            parts.append(one.messages[: max(held - one.held, 0)])
            held = min(held, one.held)
            if one.before is None:
                break
            one = one.before
        return [message for part in reversed(parts) for message in part]

    def chain(self) -> "Iterator[ChatPart]":
        """Yield itself and those before it."""
        one: ChatPart | None = self
        while one is not None:
            yield one
            one = one.before


class GrowingChat:
    """A chat that goes on from a part, if any. messages: all of them; those that were there before
    stay as they are, but for the last, which here may grow."""

    def __init__(self, before: ChatPart | None = None) -> None:
        self.messages = before.whole() if before is not None else []
        self._before, self._known = before, len(self.messages)
        self._last = self.messages[-1] if self.messages else None
        if self._last is not None:
            self.messages[-1] = _copied(self._last)

    @property
    def size(self) -> int:
        """Return the bytes of what was added; takes its time."""
        added = islice(self.messages, self._held, None)
        return sum(memory_of(message) for message in added)

    def part(self, size: int) -> ChatPart:
        """Return what was added, of so many bytes."""
        return ChatPart(self._before, self._held, self.messages[self._held :], size)

    @property
    def _held(self) -> int:
        """Return how many of the messages are as they were."""
        if self._last is not None and self.messages[self._known - 1] != self._last:
            return self._known - 1
        return self._known


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """A response as JSON, the last part of its chat, and the items that it said, by their ids."""

    response: str
    part: ChatPart
    items: Mapping[object, Json]


class KeptResponses:
    """The last `most` responses, of at most `room` bytes together with the chats that lead to
    them; the oldest go first. Only `get` and `item` may be called from other threads."""

    def __init__(self, most: int = 0, room: int = MOST_BYTES) -> None:
        self.most, self._room = most, room
        self.size = 0  # bytes
        self._kept: dict[str, KeptResponse] = {}

    def keep(self, name: str, response: str, part: ChatPart, items: Sequence[Json] = ()) -> None:
        """Keep a response, as JSON; not one that has no room even alone."""
        alone = sys.getsizeof(response) + sum(one.size for one in part.chain())
        if alone > self._room:
            return
        by_id = {item["id"]: item for item in items}
        self._kept[name] = KeptResponse(response, part, by_id)
        self.size += sys.getsizeof(response)
        self._hold(part)
        while len(self._kept) > self.most or self.size > self._room:
            self.forget(next(iter(self._kept)))

    def get(self, name: str) -> KeptResponse:
        """Return a response. Raise RequestError where it is not kept."""
        found = self._kept.get(name)
        if found is None:
            raise RequestError(self._why_not(f"response {name[:80]}"), "previous_response_id")
        return found

    def item(self, reference: str, where: str) -> Json:
        """Return an item of a kept response by its id, which has the response's in it. Raise
        RequestError where it is not kept."""
        _, _, rest = reference.partition("_")
        kept = self._kept.get(f"resp_{rest[:ID_DIGITS]}")
        if kept is not None and reference in kept.items:
            return kept.items[reference]
        why = self._why_not(f"item {reference[:80]}")
        raise RequestError(f"{where} refers to what is not here: {why}", where)

    def forget(self, name: str) -> None:
        """Keep a response no longer. Raise RequestError where it is not kept."""
        kept = self.get(name)
        del self._kept[name]
        self.size -= sys.getsizeof(kept.response)
        self._release(kept.part)

    def _why_not(self, what: str) -> str:
        if not self.most:
            remedy = "start the daemon with --responses N, or send the whole input"
            return f"no responses are kept here: {remedy}"
        kept = f"the last {self.most} are, of {self._room >> 20} MiB together"
        return f"{what} is not kept: {kept}, but for those with store false"

    def _hold(self, part: ChatPart) -> None:
        """Count a part, and those before it, where none did yet."""
        for one in part.chain():
            one.holders += 1
            if one.holders > 1:
                return
            self.size += one.size

    def _release(self, part: ChatPart) -> None:
        """Count a part no longer, nor those before it, where none else needs them."""
        for one in part.chain():
            one.holders -= 1
            if one.holders:
                return
            self.size -= one.size


def memory_of(value: object) -> int:
    """Return the approximate bytes of memory that JSON takes; the names of fields are shared."""
    size, left = 0, [value]
    while left:
        one = left.pop()
        size += sys.getsizeof(one)
        if is_object(one):
            left += one.values()
        elif is_list(one):
            left += one
    return size


def _copied(message: Json) -> Json:
    """Return a message that may change while the other does not."""
    copy = dict(message)
    if "tool_calls" in copy:
        copy["tool_calls"] = [*list_at(copy, "tool_calls")]
    return copy
