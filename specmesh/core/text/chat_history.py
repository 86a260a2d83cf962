"""Messages of a chat as a template takes them.

Those that a template refuses or drops are joined to others, moved, or written as text. Templates
are made for one client's habits, and differ in what they take: some know no system message, some
want users and assistants in turns, some know no results of tools. A client's chat must reach the
model whole all the same. By what the template lacks (`template_traits.py`), in this order:

| it lacks | its messages become |
|---|---|
| the developer's role | system messages |
| calls of tools | text of the assistant's, as the model's family would write them |
| results of tools | text of the user's |
| several system messages | one, at the beginning |
| a system message | a part of the user's next message, or of the one before |
| two messages of one role in a row | one |
| ids of this form | ids of the form that it takes |

Each rule is a pure function of the messages. The same chat gives the same prompt in every turn, so
the prefix cache finds it again.
"""

import hashlib
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from specmesh.core.text.chat_message import ChatMessage
from specmesh.core.text.template_traits import IdKind, TemplateTraits
from specmesh.core.text.tool_formats import FORMATS, NINE, ToolCall
from specmesh.core.text.tool_writing import write_calls

Messages = Sequence[ChatMessage]


def adapted(messages: Messages, traits: TemplateTraits) -> tuple[Messages, frozenset[str]]:
    """Return the messages in a form that a template of these traits shows whole.

    The second value has the roles of messages that were joined to others, or became another's.
    """
    merged = set[str]()
    messages = _linked(messages)
    if not traits.developer:
        messages = list(map(_as_system, messages))
    messages = _with_calls(messages, traits)
    if not traits.results:
        messages = _results_as_text(messages)
    # The order matters: a system message that becomes a part of the user's may make two of the
    # user's stand in a row.
    for role, rule in _rules(traits):
        joined = rule(messages)
        if joined != messages:
            merged.add(role)
        messages = joined
    return _with_ids(messages, traits.ids), frozenset(merged)


def _rules(
    traits: TemplateTraits,
) -> Iterable[tuple[str, Callable[[Messages], list[ChatMessage]]]]:
    """Yield the functions that join messages for such a template, each after the role it joins."""
    if not traits.systems:
        yield "system", _first_systems_joined
    if not traits.system:
        yield "system", partial(_systems_moved, first=True)
    elif not traits.late_system:
        yield "system", partial(_systems_moved, first=False)
    if not traits.users:
        yield "user", partial(_runs_joined, role="user")
    if not traits.assistants:
        yield "assistant", partial(_runs_joined, role="assistant")


def with_words(messages: Messages, words: str) -> Messages:
    """Add words for the model to the system message at the beginning, or as such a message."""
    if not messages or messages[0].role not in ("system", "developer"):
        return [ChatMessage("system", words), *messages]
    first = messages[0]
    content = _together([first.content, words])
    return [replace(first, content=content), *messages[1:]]


def _as_system(message: ChatMessage) -> ChatMessage:
    """Return the developer's message as a system message, which it was called before."""
    if message.role == "developer":
        return replace(message, role="system")
    return message


def _together(texts: Iterable[str]) -> str:
    """Return texts one after the other, with an empty line between."""
    return "\n\n".join(filter(None, texts))


# --- messages of one role


def _first_systems_joined(messages: Messages) -> list[ChatMessage]:
    """Join the system messages at the beginning into one."""
    count = 0
    # Only those at the beginning: a later one is of another moment of the chat.
    while count < len(messages) and messages[count].role == "system":
        count += 1
    return [*_runs_joined(messages[:count], "system"), *messages[count:]]


def _runs_joined(messages: Messages, role: str) -> list[ChatMessage]:
    """Join messages of a role that follow each other into one."""
    return _joined(messages, role, [role])


def _joined(
    messages: Messages, role: str, followers: Sequence[str], between: str = "\n\n"
) -> list[ChatMessage]:
    """Join messages of these followers' roles to the one of a role before them.

    A joined message has the role of its last part.
    """
    runs = list[list[ChatMessage]]()
    for message in messages:
        if runs and runs[-1][-1].role == role and message.role in followers:
            runs[-1].append(message)
        else:
            runs.append([message])
    return [_as_one(run, between) for run in runs]


def _as_one(run: list[ChatMessage], between: str) -> ChatMessage:
    """Return the messages of a run as one, with all texts, thoughts and calls."""
    if len(run) == 1:
        return run[0]
    contents = list[str]()
    calls = list[ToolCall]()
    thoughts = list[str]()
    for message in run:
        contents.append(message.content)
        calls += message.tool_calls
        thoughts.append(message.reasoning)
    content = between.join(filter(None, contents))
    reasoning = _together(thoughts)
    return replace(run[-1], content=content, tool_calls=tuple(calls), reasoning=reasoning)


def _systems_moved(messages: Messages, *, first: bool) -> list[ChatMessage]:
    """Join system messages to the user's next message, or before an assistant's to the last one.

    first: also those at the beginning.
    """
    moved = list[ChatMessage]()
    waiting = list[str]()
    begun = first
    for message in messages:
        if message.role == "system" and begun:
            waiting.append(message.content)
            continue
        begun = begun or message.role != "system"
        if waiting and message.role == "user":
            content = _together([*waiting, message.content])
            moved.append(replace(message, content=content))
            waiting.clear()
            continue
        if message.role != "tool":  # results follow their calls
            _append_to_user(moved, waiting)
        moved.append(message)
    _append_to_user(moved, waiting)
    return moved


def _append_to_user(messages: list[ChatMessage], waiting: list[str]) -> None:
    """Move waiting texts to the end of the user's last message, or to a new one of the user's."""
    if not waiting:
        return
    if messages and messages[-1].role == "user":
        last = messages[-1]
        messages[-1] = replace(last, content=_together([last.content, *waiting]))
    else:
        messages.append(ChatMessage("user", _together(waiting)))
    waiting.clear()


# --- calls of tools, and their results


def _with_calls(messages: Messages, traits: TemplateTraits) -> list[ChatMessage]:
    """Return the messages with calls as the template shows them."""
    if not traits.calls:
        return [_calls_as_text(one, traits.tool_format) for one in messages]
    if not traits.text_with_calls:
        messages = list(chain.from_iterable(map(_text_apart, messages)))
    if not traits.parallel:
        return _calls_apart(messages)
    return list(messages)


def _calls_as_text(message: ChatMessage, form: str) -> ChatMessage:
    """Return an assistant's message with its calls as the model would write them."""
    if not message.tool_calls:
        return message
    content = write_calls(FORMATS[form], message.tool_calls)
    if message.content:
        content = f"{message.content}\n{content}"
    return replace(message, content=content, tool_calls=())


def _text_apart(message: ChatMessage) -> list[ChatMessage]:
    """Return a message with both text and calls as two; its thought stays with the calls."""
    if not (message.content and message.tool_calls):
        return [message]
    text = replace(message, tool_calls=(), reasoning="")
    return [text, replace(message, content="")]


def _calls_apart(messages: Messages) -> list[ChatMessage]:
    """Return the messages with one call each, and the results of a call after it."""
    results = dict[str, list[ChatMessage]]()
    for message in messages:
        if message.role == "tool":
            results.setdefault(message.tool_call_id, []).append(message)
    apart = list[ChatMessage]()
    for message in messages:
        if message.role == "tool" and message.tool_call_id not in results:
            continue  # it is after its call
        if len(message.tool_calls) < 2:
            apart.append(message)
            continue
        part = message
        for call in message.tool_calls:
            apart.append(replace(part, tool_calls=(call,)))
            apart += results.pop(call.id, [])
            # Text and thought stand with the first call, and are not repeated.
            part = replace(message, content="", reasoning="")
    return apart


def _results_as_text(messages: Messages) -> list[ChatMessage]:
    """Return the messages with tools' results as the user's, joined to the user's next message."""
    # The marks come before the results are joined, so that each can still be read by itself.
    tagged = list(map(_tagged, messages))
    joined = _joined(tagged, "tool", ["tool", "user"], between="\n")
    return list(map(_as_user, joined))


def _tagged(message: ChatMessage) -> ChatMessage:
    """Return the result of a tool between marks that many models know."""
    if message.role != "tool":
        return message
    return replace(message, content=f"<tool_response>\n{message.content}\n</tool_response>")


def _as_user(message: ChatMessage) -> ChatMessage:
    """Return the result of a tool as a message of the user."""
    if message.role != "tool":
        return message
    return replace(message, role="user", name="", tool_call_id="")


def _linked(messages: Messages) -> list[ChatMessage]:
    """Return the messages with an id for each call, and each result with its call's id and tool.

    A result without an id is that of the first call without a result.
    """
    open_calls = deque[ToolCall]()
    names = dict[str, str]()
    linked = list[ChatMessage]()
    for message in messages:
        if message.role == "tool":
            linked.append(_result_of(message, open_calls, names))
            continue
        if not message.tool_calls:
            linked.append(message)
            continue
        # An assistant that goes on has given up the calls before.
        open_calls.clear()
        for number, call in enumerate(message.tool_calls, len(names)):
            name = call.id or f"call_{number}"
            open_calls.append(replace(call, id=name))
        for call in open_calls:
            names[call.id] = call.name
        linked.append(replace(message, tool_calls=tuple(open_calls)))
    return linked


def _result_of(
    message: ChatMessage, open_calls: deque[ToolCall], names: dict[str, str]
) -> ChatMessage:
    """Return a result with the id and the tool of its call.

    open_calls: those without a result yet. names: the tools of all calls, by id.
    """
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
    """Return the messages with ids of calls that the template takes, also in their results."""
    if kind is IdKind.ANY:
        return list(messages)
    ids = dict[str, str]()
    fitting = list[ChatMessage]()
    for message in messages:
        for call in message.tool_calls:
            ids[call.id] = _fitting(call, kind, len(ids))
        calls = [replace(call, id=ids[call.id]) for call in message.tool_calls]
        answered = message.tool_call_id
        if answered:
            # A result may answer a call that the client has cut from the chat. It must not end the
            # request.
            unknown = ToolCall(answered, message.name, "")
            answered = ids.get(answered) or _fitting(unknown, kind, 0)
        fitting.append(replace(message, tool_calls=tuple(calls), tool_call_id=answered))
    return fitting


def _fitting(call: ToolCall, kind: IdKind, number: int) -> str:
    """Return an id of this kind for a call: its own, or one that follows from it."""
    if kind is IdKind.NAMED:
        own = re.fullmatch(r"functions\.[\w.-]+:[0-9]+", call.id)
        return call.id if own else f"functions.{call.name}:{number}"
    if re.fullmatch(NINE, call.id):
        return call.id
    # A digest of the id is the same in each turn, so the prefix cache finds the text again.
    return hashlib.sha256(call.id.encode("utf-8", "replace")).hexdigest()[:9]
