"""Messages of a chat as a template takes them: joined, moved or written as text where it refuses or
drops them."""

import hashlib
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from specmesh.core.session_params import ChatMessage
from specmesh.core.text.template_traits import IdKind, TemplateTraits
from specmesh.core.text.tool_formats import FORMATS, NINE, ToolCall, write_calls

Messages = Sequence[ChatMessage]


def adapted(messages: Messages, traits: TemplateTraits) -> tuple[Messages, frozenset[str]]:
    """Return the messages in a form that a template of these traits shows whole, and the roles of
    those that were joined to others for it, or became another's."""
    merged = set[str]()
    messages = _linked(messages)
    if not traits.developer:
        messages = [_as_system(one) for one in messages]
    messages = _with_calls(messages, traits)
    if not traits.results:
        messages = _results_as_text(messages)
    for role, rule in _rules(traits):
        before, messages = messages, rule(messages)
        if messages != before:
            merged.add(role)
    return _with_ids(messages, traits.ids), frozenset(merged)


def _rules(
    traits: TemplateTraits,
) -> Iterable[tuple[str, Callable[[Messages], list[ChatMessage]]]]:
    """Yield what joins messages for such a template, each with the role of those that it joins."""
    if not traits.systems:
        yield "system", _first_systems_joined
    if not traits.system:
        yield "system", lambda messages: _systems_moved(messages, first=True)
    elif not traits.late_system:
        yield "system", lambda messages: _systems_moved(messages, first=False)
    if not traits.users:
        yield "user", lambda messages: _runs_joined(messages, "user")
    if not traits.assistants:
        yield "assistant", lambda messages: _runs_joined(messages, "assistant")


def with_words(messages: Messages, words: str) -> Messages:
    """Return the messages with words for the model at the end of the first system message, or in
    one of their own."""
    if messages and messages[0].role in ("system", "developer"):
        first = messages[0]
        return [replace(first, content=_together([first.content, words])), *messages[1:]]
    return [ChatMessage("system", words), *messages]


def _as_system(message: ChatMessage) -> ChatMessage:
    return replace(message, role="system") if message.role == "developer" else message


def _together(texts: Iterable[str]) -> str:
    """Return texts one after the other, with an empty line between."""
    return "\n\n".join(text for text in texts if text)


# --- messages of one role


def _first_systems_joined(messages: Messages) -> list[ChatMessage]:
    """Join the system messages at the beginning into one."""
    count = 0
    while count < len(messages) and messages[count].role == "system":
        count += 1
    return [*_runs_joined(messages[:count], "system"), *messages[count:]]


def _runs_joined(messages: Messages, role: str) -> list[ChatMessage]:
    """Join messages of a role that follow each other into one."""
    return _joined(messages, lambda before, one: before.role == one.role == role)


def _joined(
    messages: Messages,
    joins: Callable[[ChatMessage, ChatMessage], bool],
    between: str = "\n\n",
) -> list[ChatMessage]:
    """Join each message to the one before where `joins` says so, in the role of the last."""
    runs = list[list[ChatMessage]]()
    for one in messages:
        if runs and joins(runs[-1][-1], one):
            runs[-1].append(one)
        else:
            runs.append([one])
    return [_as_one(run, between) for run in runs]


def _as_one(run: list[ChatMessage], between: str) -> ChatMessage:
    if len(run) == 1:
        return run[0]
    calls = [call for one in run for call in one.tool_calls]
    return replace(
        run[-1],
        content=between.join(one.content for one in run if one.content),
        tool_calls=tuple(calls),
        reasoning=_together(one.reasoning for one in run),
    )


def _systems_moved(messages: Messages, *, first: bool) -> list[ChatMessage]:
    """Join system messages to the user's next message, or to the one before where an assistant
    follows. first: also those at the beginning."""
    moved, waiting = list[ChatMessage](), list[str]()
    begun = first
    for one in messages:
        if one.role == "system" and begun:
            waiting.append(one.content)
            continue
        begun = begun or one.role != "system"
        if waiting and one.role == "user":
            moved.append(replace(one, content=_together([*waiting, one.content])))
            waiting.clear()
            continue
        if one.role != "tool":  # what came of calls stays beside them
            _append_to_user(moved, waiting)
        moved.append(one)
    _append_to_user(moved, waiting)
    return moved


def _append_to_user(messages: list[ChatMessage], waiting: list[str]) -> None:
    """Add what waits to the last message if it is the user's, else as a message of the user's."""
    if waiting and messages and messages[-1].role == "user":
        last = messages[-1]
        messages[-1] = replace(last, content=_together([last.content, *waiting]))
    elif waiting:
        messages.append(ChatMessage("user", _together(waiting)))
    waiting.clear()


# --- calls of tools, and what came of them


def _with_calls(messages: Messages, traits: TemplateTraits) -> list[ChatMessage]:
    """Return the messages with calls as the template shows them."""
    if not traits.calls:
        return [_calls_as_text(one, traits.tool_format) for one in messages]
    if not traits.text_with_calls:
        messages = [part for one in messages for part in _text_apart(one)]
    return list(messages) if traits.parallel else _calls_apart(messages)


def _calls_as_text(message: ChatMessage, form: str) -> ChatMessage:
    """Return an assistant's message with its calls as the model would write them."""
    if not message.tool_calls:
        return message
    written = write_calls(FORMATS[form], message.tool_calls)
    content = "\n".join(filter(None, (message.content, written)))
    return replace(message, content=content, tool_calls=())


def _text_apart(message: ChatMessage) -> list[ChatMessage]:
    """Return a message with both text and calls as two; its thought stays beside the calls."""
    if not (message.content and message.tool_calls):
        return [message]
    text = replace(message, tool_calls=(), reasoning="")
    return [text, replace(message, content="")]


def _calls_apart(messages: Messages) -> list[ChatMessage]:
    """Return the messages with one call each, and what came of it after it."""
    results = dict[str, list[ChatMessage]]()
    for one in messages:
        if one.role == "tool":
            results.setdefault(one.tool_call_id, []).append(one)
    apart = list[ChatMessage]()
    for one in messages:
        if one.role == "tool" and one.tool_call_id not in results:
            continue  # it is after its call
        if len(one.tool_calls) < 2:
            apart.append(one)
            continue
        for place, call in enumerate(one.tool_calls):
            alone = replace(one, tool_calls=(call,))
            apart.append(replace(alone, content="", reasoning="") if place else alone)
            apart += results.pop(call.id, [])
    return apart


def _results_as_text(messages: Messages) -> list[ChatMessage]:
    """Return the messages with what tools answered as the user's, together with the user's next
    words."""
    joined = _joined(
        [_tagged(one) for one in messages],
        lambda before, one: before.role == "tool" and one.role in ("tool", "user"),
        between="\n",
    )
    return [_as_user(one) if one.role == "tool" else one for one in joined]


def _tagged(message: ChatMessage) -> ChatMessage:
    if message.role != "tool":
        return message
    return replace(message, content=f"<tool_response>\n{message.content}\n</tool_response>")


def _as_user(message: ChatMessage) -> ChatMessage:
    return replace(message, role="user", name="", tool_call_id="")


def _linked(messages: Messages) -> list[ChatMessage]:
    """Return the messages with an id for each call that lacks one, and the tool's name at what came
    of it. A result without an id is of the first call that has none yet."""
    open_calls = deque[ToolCall]()
    names = dict[str, str]()
    linked = list[ChatMessage]()
    for one in messages:
        if one.role == "tool":
            linked.append(_result_of(one, open_calls, names))
            continue
        if not one.tool_calls:
            linked.append(one)
            continue
        calls = [_with_id(call, len(names) + place) for place, call in enumerate(one.tool_calls)]
        names |= {call.id: call.name for call in calls}
        open_calls = deque(calls)
        linked.append(replace(one, tool_calls=tuple(calls)))
    return linked


def _with_id(call: ToolCall, number: int) -> ToolCall:
    return call if call.id else replace(call, id=f"call_{number}")


def _result_of(
    message: ChatMessage, open_calls: deque[ToolCall], names: dict[str, str]
) -> ChatMessage:
    name = message.tool_call_id
    if not name and open_calls:
        name = open_calls[0].id
    if open_calls and open_calls[0].id == name:
        open_calls.popleft()
    tool = message.name or names.get(name, "")
    if (name, tool) == (message.tool_call_id, message.name):
        return message
    return replace(message, tool_call_id=name, name=tool)


def _with_ids(messages: Messages, kind: IdKind) -> list[ChatMessage]:
    """Return the messages with ids of calls that the template takes: the same for a call and what
    came of it."""
    if kind is IdKind.ANY:
        return list(messages)
    ids = dict[str, str]()
    fitting = list[ChatMessage]()
    for one in messages:
        for call in one.tool_calls:
            ids[call.id] = _fitting(call, kind, len(ids))
        calls = [replace(call, id=ids[call.id]) for call in one.tool_calls]
        answered = one.tool_call_id
        if answered:
            answered = ids.get(answered) or _fitting(ToolCall(answered, one.name, ""), kind, 0)
        fitting.append(replace(one, tool_calls=tuple(calls), tool_call_id=answered))
    return fitting


def _fitting(call: ToolCall, kind: IdKind, number: int) -> str:
    if kind is IdKind.NAMED:
        own = re.fullmatch(r"functions\.[\w.-]+:[0-9]+", call.id) is not None
        return call.id if own else f"functions.{call.name}:{number}"
    if re.fullmatch(NINE, call.id):
        return call.id
    return hashlib.sha256(call.id.encode("utf-8", "replace")).hexdigest()[:9]
