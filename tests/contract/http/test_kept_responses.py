"""Responses that are kept: how many, in how many bytes, and the parts that many chats share."""

import sys
from itertools import count

import pytest
from asgi_calls import EVENTS, FakeDaemon, ask

from specmesh.api.dialects.response_body import parse_response
from specmesh.api.kept_responses import GrowingChat, KeptResponses
from specmesh.core.text.chat_message import ChatMessage
from specmesh.core.text.tool_formats import ToolCall
from specmesh.errors import RequestError

MIB = 2**20
NAMES = count(1)


def message(size, role="user"):
    """Return a message with a text of its own, of so many bytes."""
    return ChatMessage(role, f"{next(NAMES):09}" + "x" * (size - 9))


def finish(kept, conversation):
    """Keep a response with this chat; return its name."""
    name = f"resp_{next(NAMES):032}"
    kept.keep(name, "{}", conversation.part(conversation.size))
    return name


def keep(kept, before, *messages):
    """Keep a response that adds these messages to the chat of another; return its name."""
    conversation = GrowingChat(kept.get(before).part if before else None)
    for added in messages:
        conversation.add(added)
    return finish(kept, conversation)


def chat(kept, name):
    return list(kept.get(name).part.whole())


def held(kept, names):
    """Return the bytes of the messages that are reached from these responses, each text once."""
    found = {}
    for name in names:
        for message in chat(kept, name):
            found[id(message)] = sys.getsizeof(message)
            found[id(message.content)] = sys.getsizeof(message.content)
    return sum(found.values())


def test_a_chat_of_many_responses_is_kept_once():
    kept = KeptResponses(100)
    names = [keep(kept, None, message(1000))]
    for _ in range(18):
        names.append(keep(kept, names[-1], message(100_000), message(1000, "assistant")))
    assert len(chat(kept, names[-1])) == 37
    assert kept.size == pytest.approx(held(kept, names), rel=0.02)


def test_chats_that_go_on_from_the_same_response_share_it():
    kept = KeptResponses(100)
    first = keep(kept, None, message(MIB))
    others = [keep(kept, first, message(100)) for _ in range(20)]
    assert kept.size == pytest.approx(held(kept, [first, *others]), rel=0.02)
    assert kept.size < 1.1 * MIB


def test_bytes_are_bounded_and_the_oldest_go_first():
    kept = KeptResponses(1000, 10 * MIB)
    names = [keep(kept, None, message(MIB)) for _ in range(30)]
    assert kept.size <= 10 * MIB
    for name in names[:-9]:
        with pytest.raises(RequestError, match="10 MiB together"):
            kept.get(name)
    for name in names[-9:]:
        assert len(chat(kept, name)) == 1


def test_a_long_chain_is_not_kept_beyond_all_bounds():
    """One that has no room by itself is not kept, and takes nobody's."""
    kept = KeptResponses(1000, 10 * MIB)
    name = None
    other = keep(kept, None, message(1000))
    for _ in range(9):
        name = keep(kept, name, message(MIB))
    assert len(chat(kept, name)) == 9
    late = keep(kept, keep(kept, name, message(1000)), message(MIB))
    with pytest.raises(RequestError):
        kept.get(late)
    assert len(chat(kept, other)) == 1
    assert kept.size <= 10 * MIB


def test_what_is_forgotten_makes_room_once_nobody_needs_it():
    kept = KeptResponses(100)
    first = keep(kept, None, message(MIB))
    second = keep(kept, first, message(MIB))
    whole = kept.size
    kept.forget(first)
    assert kept.size == pytest.approx(whole, rel=0.01)
    assert len(chat(kept, second)) == 2
    kept.forget(second)
    assert kept.size == 0


def test_a_chat_goes_on_from_one_that_was_forgotten_meanwhile():
    kept = KeptResponses(100)
    first = keep(kept, None, message(MIB))
    conversation = GrowingChat(kept.get(first).part)
    kept.forget(first)
    conversation.add(message(10))
    assert len(chat(kept, finish(kept, conversation))) == 2
    assert kept.size > MIB


def test_a_turn_that_goes_on_changes_no_earlier_response():
    """Calls that are added to the last turn belong to this chat only."""
    kept = KeptResponses(100)
    call = ToolCall("c", "f", "{}")
    first = keep(kept, None, ChatMessage("assistant", "", tool_calls=(call,)))
    conversation = GrowingChat(kept.get(first).part)
    conversation.add_call(call)
    second = finish(kept, conversation)
    assert len(chat(kept, first)[0].tool_calls) == 1
    assert len(chat(kept, second)[0].tool_calls) == 2


def test_the_api_counts_what_bodies_bring():
    """Of the body's items, and of the response that repeats its instructions."""
    daemon = FakeDaemon(*EVENTS)
    daemon.kept = KeptResponses(100)
    body = {"input": "x" * 100_000, "instructions": "y" * 50_000}
    for _ in range(5):
        answer = ask(daemon, "/v1/responses", body)
        body["previous_response_id"] = answer.json()["id"]
    assert 5 * 150_000 < daemon.kept.size < 5 * 160_000


def test_nothing_is_counted_where_nothing_is_kept():
    _, order = parse_response({"input": "x" * 1000}, KeptResponses())
    assert order.size == 0
