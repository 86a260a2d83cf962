"""Messages as a template takes them: what is joined, moved and written as text, of which nothing is
lost."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmesh.core.session_params import ChatMessage
from specmesh.core.text.chat_history import adapted, with_words
from specmesh.core.text.template_traits import IdKind, TemplateTraits
from specmesh.core.text.tool_formats import ToolCall

SYSTEM, OTHER = ChatMessage("system", "Be brief."), ChatMessage("system", "In French.")
USER, AGAIN = ChatMessage("user", "Hi"), ChatMessage("user", "And?")
ANSWER, MORE = ChatMessage("assistant", "Yes."), ChatMessage("assistant", "Or no.")
ALL = TemplateTraits(tools=True, calls=True, results=True, written="hermes", tool_format="hermes")
FIRST, SECOND = ToolCall("call_1", "f", '{"a": 1}'), ToolCall("call_2", "g", "{}")


def calling(*calls: ToolCall, content: str = "", thought: str = "") -> ChatMessage:
    return ChatMessage("assistant", content, tool_calls=calls, reasoning=thought)


def result(call: ToolCall, text: str = "3") -> ChatMessage:
    return ChatMessage("tool", text, name=call.name, tool_call_id=call.id)


def texts(messages: list[ChatMessage], **traits: Any) -> list[tuple[str, str]]:
    made, _ = adapted(messages, replace(ALL, **traits))
    return [(one.role, one.content) for one in made]


@pytest.mark.parametrize(
    ("traits", "messages", "expected"),
    [
        ({}, [SYSTEM, OTHER, USER], [("system", "Be brief."), ("system", "In French."), ("user", "Hi")]),
        ({"systems": False}, [SYSTEM, OTHER, USER], [("system", "Be brief.\n\nIn French."), ("user", "Hi")]),
        ({"system": False}, [SYSTEM, OTHER, USER], [("user", "Be brief.\n\nIn French.\n\nHi")]),
        ({"system": False}, [SYSTEM], [("user", "Be brief.")]),
        ({"system": False}, [SYSTEM, ANSWER, USER], [("user", "Be brief."), ("assistant", "Yes."), ("user", "Hi")]),
        (
            {"late_system": False},
            [SYSTEM, USER, ANSWER, OTHER, AGAIN],
            [("system", "Be brief."), ("user", "Hi"), ("assistant", "Yes."), ("user", "In French.\n\nAnd?")],
        ),
        ({"late_system": False}, [USER, OTHER], [("user", "Hi\n\nIn French.")]),
        ({"late_system": False}, [USER, OTHER, ANSWER], [("user", "Hi\n\nIn French."), ("assistant", "Yes.")]),
        ({"users": False}, [USER, AGAIN, ANSWER], [("user", "Hi\n\nAnd?"), ("assistant", "Yes.")]),
        ({"assistants": False}, [USER, ANSWER, MORE], [("user", "Hi"), ("assistant", "Yes.\n\nOr no.")]),
        ({}, [replace(SYSTEM, role="developer"), USER], [("system", "Be brief."), ("user", "Hi")]),
        ({"developer": True}, [replace(SYSTEM, role="developer")], [("developer", "Be brief.")]),
    ],
)  # fmt: skip
def test_roles(traits, messages, expected):
    assert texts(messages, **traits) == expected


def test_a_late_system_message_does_not_part_a_call_from_its_result():
    loop = [USER, calling(FIRST), OTHER, result(FIRST), ANSWER]
    assert [one[0] for one in texts(loop, late_system=False)] == [
        "user",
        "assistant",
        "tool",
        "user",
        "assistant",
    ]


@pytest.mark.parametrize(
    ("messages", "roles"),
    [([SYSTEM, USER], set()), ([SYSTEM, OTHER, USER, AGAIN], {"system", "user"})],
)
def test_which_roles_were_joined(messages, roles):
    _, merged = adapted(messages, replace(ALL, systems=False, users=False))
    assert merged == roles


def test_calls_as_text():
    """In the model's own form; what came of them stays a message of its own where that is shown."""
    loop = [USER, calling(FIRST, content="I look."), result(FIRST)]
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    assert texts(loop, calls=False)[1:] == [("assistant", f"I look.\n{call}"), ("tool", "3")]


def test_results_as_text():
    loop = [USER, calling(FIRST, SECOND), result(FIRST), result(SECOND, "4"), AGAIN]
    first, second = (f"<tool_response>\n{one}\n</tool_response>" for one in "34")
    assert texts(loop, results=False)[-1] == ("user", f"{first}\n{second}\nAnd?")


def test_text_apart_from_calls():
    made, _ = adapted(
        [USER, calling(FIRST, content="So", thought="Hm")], replace(ALL, text_with_calls=False)
    )
    assert [(one.content, one.reasoning, len(one.tool_calls)) for one in made[1:]] == [
        ("So", "", 0),
        ("", "Hm", 1),
    ]


def test_calls_one_at_a_time():
    """Each with what came of it, whatever its order was."""
    loop = [USER, calling(FIRST, SECOND, content="So"), result(SECOND, "4"), result(FIRST), ANSWER]
    made, _ = adapted(loop, replace(ALL, parallel=False))
    assert [(one.content, [call.name for call in one.tool_calls]) for one in made] == [
        ("Hi", []),
        ("So", ["f"]),
        ("3", []),
        ("", ["g"]),
        ("4", []),
        ("Yes.", []),
    ]


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        (IdKind.ANY, "toolu_01AbC-9", "toolu_01AbC-9"),
        (IdKind.SHORT, "abcDEF123", "abcDEF123"),
        (IdKind.NAMED, "call_1", "functions.f:0"),
        (IdKind.NAMED, "functions.f:7", "functions.f:7"),
    ],
)
def test_ids(kind, given, expected):
    """The same for a call and what came of it."""
    call = replace(FIRST, id=given)
    made, _ = adapted([USER, calling(call), result(call)], replace(ALL, ids=kind))
    assert (made[1].tool_calls[0].id, made[2].tool_call_id) == (expected, expected)


@pytest.mark.parametrize("given", ["call_1", "", "toolu_" + 40 * "x", "é"])
def test_short_ids(given):
    call = replace(FIRST, id=given)
    made, _ = adapted([USER, calling(call), result(call)], replace(ALL, ids=IdKind.SHORT))
    fitting = made[1].tool_calls[0].id
    assert len(fitting) == 9
    assert fitting.isalnum()
    assert made[2].tool_call_id == fitting


def test_results_without_an_id_or_a_name_are_those_of_the_calls_in_their_order():
    calls = calling(replace(FIRST, id=""), replace(SECOND, id=""))
    bare = [ChatMessage("tool", "3"), ChatMessage("tool", "4")]
    made, _ = adapted([USER, calls, *bare], ALL)
    assert [one.name for one in made[2:]] == ["f", "g"]
    assert [one.tool_call_id for one in made[2:]] == [call.id for call in made[1].tool_calls]


def test_words_for_the_model():
    assert with_words([USER], "W") == [ChatMessage("system", "W"), USER]
    assert with_words([SYSTEM, USER], "W") == [replace(SYSTEM, content="Be brief.\n\nW"), USER]


FLAGS = [
    "system", "systems", "late_system", "developer", "users", "assistants", "calls", "parallel",
    "text_with_calls", "results",
]  # fmt: skip
ROLES = ["system", "developer", "user", "assistant", "call", "calls", "result"]


@given(
    st.lists(st.sampled_from(ROLES), min_size=1, max_size=8),
    st.fixed_dictionaries({name: st.booleans() for name in FLAGS}),
    st.sampled_from(list(IdKind)),
)
def test_nothing_is_lost(roles, flags, kind):
    """Every text and every call is there once, whatever a template takes."""
    messages = [_message(role, f"text{place}q", place) for place, role in enumerate(roles)]
    made, _ = adapted(messages, replace(ALL, **flags, ids=kind))
    whole = "\n".join(one.content for one in made)
    names = [call.name for one in made for call in one.tool_calls]
    for one in messages:
        assert whole.count(one.content) == 1
        for call in one.tool_calls:
            assert names.count(call.name) + whole.count(f'"{call.name}"') == 1


def _message(role: str, text: str, place: int) -> ChatMessage:
    calls = [ToolCall(f"{place}_{n}", f"name{place}n{n}q", "{}") for n in range(2)]
    match role:
        case "call":
            return calling(calls[0], content=text)
        case "calls":
            return calling(*calls, content=text)
        case "result":
            return ChatMessage("tool", text, tool_call_id=f"{place - 1}_0")
        case _:
            return ChatMessage(role, text)


def test_a_long_loop_takes_no_longer_for_each_message():
    """Forty thousand results are joined at once."""
    loop = [USER, calling(FIRST), *[result(FIRST, "x" * 10)] * 40_000, AGAIN]
    made, _ = adapted(loop, replace(ALL, results=False, users=False, assistants=False))
    assert len(made) == 3
