"""Responses that are kept in memory, so that requests can go on from them.

Each holds its own part of a chat, and the part before it, from which others may go on too. So a
chat of many responses is kept once.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from specmesh.core.fields import Json, is_list, is_object
from specmesh.core.text.chat_message import ChatMessage
from specmesh.core.text.tool_formats import ToolCall
from specmesh.errors import RequestError

MOST_BYTES = 64 * 2**20
"""Bytes of all kept responses."""

ID_DIGITS = 32
"""Digits of a response's id, with which the ids of its items begin."""


@dataclass(slots=True, eq=False, kw_only=True)
class ChatPart:
    """The messages that a response added to a chat.

    before: the part that it went on from; None at the beginning.
    held: number of messages of `before` that belong to the chat.
    messages: its own messages.
    size: bytes of its own messages.
    holders: kept responses and other counted parts that need it.
    """

    before: "ChatPart | None"
    held: int
    messages: list[ChatMessage]
    size: int
    holders: int = 0

    def whole(self) -> list[ChatMessage]:
        """Return the chat's messages, its own at the end."""
        messages: list[ChatMessage] = []
        for part in reversed(list(self.chain())):
            del messages[part.held :]
            messages += part.messages
        return messages

    def chain(self) -> "Iterator[ChatPart]":
        """Yield the part itself, then those before it."""
        part: ChatPart | None = self
        while part is not None:
            yield part
            part = part.before


class GrowingChat:
    """A chat that goes on from a kept part, if any.

    A thought, a text and calls of an assistant that follow each other become one message.
    """

    def __init__(self, before: ChatPart | None = None) -> None:
        self._before = before
        self._messages = before.whole() if before is not None else []
        self._held = len(self._messages)  # those of `before` that are as they were
        self._calls: list[ToolCall] = []  # of the last message, which does not have them yet

    @property
    def messages(self) -> list[ChatMessage]:
        """Return all messages of the chat."""
        self._complete()
        return self._messages

    @property
    def size(self) -> int:
        """Return the bytes of the added messages. It looks at all of them."""
        return sum(message.size for message in self.messages[self._held :])

    def part(self, size: int) -> ChatPart:
        """Return the added messages; size: their bytes."""
        messages = self.messages[self._held :]
        return ChatPart(before=self._before, held=self._held, messages=messages, size=size)

    def add(self, message: ChatMessage) -> None:
        """Add a message of its own."""
        self._complete()
        self._messages.append(message)

    def add_thought(self, text: str) -> None:
        """Add a thought, with which a message of the assistant begins."""
        self.add(ChatMessage(role="assistant", content="", reasoning=text))

    def add_text(self, role: str, text: str) -> None:
        """Add a text; that of an assistant goes to its message without one."""
        if role == "assistant" and self._is_turn() and not self._messages[-1].content:
            self._change_last(replace(self._messages[-1], content=text))
        else:
            self.add(ChatMessage(role=role, content=text))

    def add_call(self, call: ToolCall) -> None:
        """Add a call to the assistant's last message."""
        if not self._is_turn():
            self.add(ChatMessage(role="assistant", content=""))
        self._calls.append(call)

    def _is_turn(self) -> bool:
        return bool(self._messages) and self._messages[-1].role == "assistant"

    def _complete(self) -> None:
        """Give the last message its calls, all at once: there may be many."""
        if self._calls:
            last = self._messages[-1]
            self._change_last(replace(last, tool_calls=(*last.tool_calls, *self._calls)))
            self._calls = []

    def _change_last(self, message: ChatMessage) -> None:
        self._messages[-1] = message
        self._held = min(self._held, len(self._messages) - 1)


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """A response as JSON, the last part of its chat, and its output items by their ids."""

    response: str
    part: ChatPart
    items: Mapping[object, Json]


class KeptResponses:
    """The newest responses and the chats that lead to them; the oldest go first.

    most: number of responses.
    room: bytes of all responses and chats.
    Only `get` and `item` may be called from other threads.
    """

    def __init__(self, most: int = 0, room: int = MOST_BYTES) -> None:
        self.most = most
        self.size = 0  # bytes
        self._room = room
        self._kept: dict[str, KeptResponse] = {}

    def keep(self, name: str, response: str, part: ChatPart, items: Sequence[Json] = ()) -> None:
        """Keep a response, as JSON. One that is larger than the room is not kept."""
        size = sys.getsizeof(response)
        needed = size + sum(link.size for link in part.chain())
        if needed > self._room:
            return
        by_id = {item["id"]: item for item in items}
        self._kept[name] = KeptResponse(response, part, by_id)
        self.size += size
        self._hold(part)
        while len(self._kept) > self.most or self.size > self._room:
            self.forget(next(iter(self._kept)))

    def get(self, name: str) -> KeptResponse:
        """Return a response. Raises RequestError if it is not kept."""
        found = self._kept.get(name)
        if found is None:
            raise RequestError(self._why_not(f"response {name[:80]}"), "previous_response_id")
        return found

    def item(self, reference: str, where: str) -> Json:
        """Return an item of a kept response by its id, which has the digits of the response's.

        where: the field with the reference, for the error.
        Raises RequestError if it is not kept.
        """
        _, _, rest = reference.partition("_")
        kept = self._kept.get(f"resp_{rest[:ID_DIGITS]}")
        if kept is not None and reference in kept.items:
            return kept.items[reference]
        why = self._why_not(f"item {reference[:80]}")
        raise RequestError(f"{where} refers to what is not here: {why}", where)

    def forget(self, name: str) -> None:
        """Keep a response no longer. Raises RequestError if it is not kept."""
        kept = self.get(name)
        del self._kept[name]
        self.size -= sys.getsizeof(kept.response)
        self._release(kept.part)

    def _why_not(self, thing: str) -> str:
        if not self.most:
            remedy = "start the daemon with --responses N, or send the whole input"
            return f"no responses are kept here: {remedy}"
        kept = f"the last {self.most} are, of {self._room >> 20} MiB together"
        return f"{thing} is not kept: {kept}, but for those with store false"

    def _hold(self, part: ChatPart) -> None:
        """Count a part, and those before it that nothing held until now."""
        for link in part.chain():
            link.holders += 1
            if link.holders > 1:
                return
            self.size += link.size

    def _release(self, part: ChatPart) -> None:
        """Count a part no longer, nor those before it that nothing holds now."""
        for link in part.chain():
            link.holders -= 1
            if link.holders:
                return
            self.size -= link.size


def memory_of(value: object) -> int:
    """Return the approximate bytes of memory of JSON; the names of fields are shared."""
    size = 0
    left = [value]
    while left:
        inner = left.pop()
        size += sys.getsizeof(inner)
        if is_object(inner):
            left += inner.values()
        elif is_list(inner):
            left += inner
    return size
