"""Messages that are joined, moved and written as text for a template, so that none is lost."""

import re
from dataclasses import replace

import pytest
from called import messages_of
from harness.tables import cases
from hypothesis import given
from hypothesis import strategies as st

from specmesh.core.text.chat_history import adapted, with_words
from specmesh.core.text.chat_message import ChatMessage
from specmesh.core.text.template_traits import IdKind, TemplateTraits
from specmesh.core.text.tool_formats import ToolCall

MESSAGES = messages_of("""
    S system Be brief.
    T system In French.
    D developer Be brief.
    U user Hi
    V user And?
    A assistant Yes.
    B assistant Or no.
    """)
SYSTEM, OTHER, _, USER, AGAIN, ANSWER, _ = MESSAGES.values()
ALL = TemplateTraits(tools=True, calls=True, results=True, written="hermes", tool_format="hermes")
FIRST = ToolCall("call_1", "f", '{"a": 1}')
SECOND = ToolCall("call_2", "g", "{}")


def calling(*calls, content="", thought=""):
    return ChatMessage("assistant", content, tool_calls=calls, reasoning=thought)


def result(call, text="3"):
    return ChatMessage("tool", text, name=call.name, tool_call_id=call.id)


def made(messages, **traits):
    found, _ = adapted(messages, replace(ALL, **traits))
    return found


def texts(messages, **traits):
    return [[message.role, message.content] for message in made(messages, **traits)]


@cases(
    "traits, letters, expected",
    r"""
    [{}, "STU", [["system", "Be brief."], ["system", "In French."], ["user", "Hi"]]]
    [{"systems": false}, "STU", [["system", "Be brief.\n\nIn French."], ["user", "Hi"]]]
    [{"system": false}, "STU", [["user", "Be brief.\n\nIn French.\n\nHi"]]]
    [{"system": false}, "S", [["user", "Be brief."]]]
    [{"system": false}, "SAU", [["user", "Be brief."], ["assistant", "Yes."], ["user", "Hi"]]]
    [{"late_system": false}, "SUATV",
     [["system", "Be brief."], ["user", "Hi"], ["assistant", "Yes."],
      ["user", "In French.\n\nAnd?"]]]
    [{"late_system": false}, "UT", [["user", "Hi\n\nIn French."]]]
    [{"late_system": false}, "UTA", [["user", "Hi\n\nIn French."], ["assistant", "Yes."]]]
    [{"users": false}, "UVA", [["user", "Hi\n\nAnd?"], ["assistant", "Yes."]]]
    [{"assistants": false}, "UAB", [["user", "Hi"], ["assistant", "Yes.\n\nOr no."]]]
    [{}, "DU", [["system", "Be brief."], ["user", "Hi"]]]
    [{"developer": true}, "D", [["developer", "Be brief."]]]
    """,
)
def test_messages_that_a_template_refuses_are_joined(traits, letters, expected):
    assert texts(map(MESSAGES.get, letters), **traits) == expected


def test_a_late_system_message_does_not_part_a_call_from_its_result():
    loop = [USER, calling(FIRST), OTHER, result(FIRST), ANSWER]
    roles = [role for role, _ in texts(loop, late_system=False)]
    assert roles == ["user", "assistant", "tool", "user", "assistant"]


def test_calls_as_text():
    """Calls have the model's own form; their results stay messages if the template shows them."""
    loop = [USER, calling(FIRST, content="I look."), result(FIRST)]
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    assert texts(loop, calls=False)[1:] == [["assistant", f"I look.\n{call}"], ["tool", "3"]]


def test_results_as_text():
    loop = [USER, calling(FIRST, SECOND), result(FIRST), result(SECOND, "4"), AGAIN]
    first = "<tool_response>\n3\n</tool_response>"
    second = "<tool_response>\n4\n</tool_response>"
    assert texts(loop, results=False)[-1] == ["user", f"{first}\n{second}\nAnd?"]


def test_text_apart_from_calls():
    loop = [USER, calling(FIRST, content="So", thought="Hm")]
    expected = [ChatMessage("assistant", "So"), calling(FIRST, thought="Hm")]
    assert made(loop, text_with_calls=False)[1:] == expected


def test_calls_one_at_a_time():
    """Each call comes with its result, in any order of the results."""
    loop = [USER, calling(FIRST, SECOND, content="So"), result(SECOND, "4"), result(FIRST), ANSWER]
    first = [calling(FIRST, content="So"), result(FIRST)]
    second = [calling(SECOND), result(SECOND, "4")]
    assert made(loop, parallel=False) == [USER, *first, *second, ANSWER]


def ids_of(given, kind):
    """Return the ids of a call and of its result for a template."""
    call = replace(FIRST, id=given)
    _, called, answered = made([USER, calling(call), result(call)], ids=kind)
    return called.tool_calls[0].id, answered.tool_call_id


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        (IdKind.ANY, "toolu_01AbC-9", "toolu_01AbC-9"),
        (IdKind.NAMED, "call_1", "functions.f:0"),
        (IdKind.NAMED, "functions.f:7", "functions.f:7"),
        (IdKind.SHORT, "abcDEF123", "abcDEF123"),
        *(
            (IdKind.SHORT, given, r"[^\W_]{9}")
            for given in ("call_1", "", "toolu_" + 40 * "x", "é")
        ),
    ],
)
def test_ids(kind, given, expected):
    fitting, answered = ids_of(given, kind)
    assert answered == fitting
    assert re.fullmatch(expected, fitting)


def test_results_without_ids_or_names_belong_to_the_calls_in_their_order():
    calls = calling(replace(FIRST, id=""), replace(SECOND, id=""))
    bare = [ChatMessage("tool", "3"), ChatMessage("tool", "4")]
    _, called, *answers = made([USER, calls, *bare])
    assert [answer.name for answer in answers] == ["f", "g"]
    assert [answer.tool_call_id for answer in answers] == [call.id for call in called.tool_calls]


def test_words_for_the_model():
    assert with_words([USER], "W") == [ChatMessage("system", "W"), USER]
    assert with_words([SYSTEM, USER], "W") == [replace(SYSTEM, content="Be brief.\n\nW"), USER]


FLAGS = (
    "system systems late_system developer users assistants calls parallel text_with_calls results"
)
ROLES = ["system", "developer", "user", "assistant", "call", "calls", "result"]


role_lists = st.lists(st.sampled_from(ROLES), min_size=1, max_size=8)
flag_sets = st.fixed_dictionaries(dict.fromkeys(FLAGS.split(), st.booleans()))


@given(role_lists, flag_sets, st.sampled_from(list(IdKind)))
def test_nothing_is_lost(roles, flags, kind):
    """Each text and each call is there once, for all traits of a template."""
    messages = []
    for place, role in enumerate(roles):
        messages.append(message_of(role, f"text{place}q", place))
    found = made(messages, **flags, ids=kind)
    whole = "\n".join(message.content for message in found)
    names = [call.name for message in found for call in message.tool_calls]
    for message in messages:
        assert whole.count(message.content) == 1
        for call in message.tool_calls:
            assert names.count(call.name) + whole.count(f'"{call.name}"') == 1


def message_of(role, text, place):
    first = ToolCall(f"{place}_0", f"name{place}n0q", "{}")
    second = ToolCall(f"{place}_1", f"name{place}n1q", "{}")
    match role:
        case "call":
            return calling(first, content=text)
        case "calls":
            return calling(first, second, content=text)
        case "result":
            return ChatMessage("tool", text, tool_call_id=f"{place - 1}_0")
        case _:
            return ChatMessage(role, text)


def test_a_long_loop_takes_no_longer_for_each_message():
    """Forty thousand results are joined at once."""
    loop = [USER, calling(FIRST), *[result(FIRST, "x" * 10)] * 40_000, AGAIN]
    assert len(made(loop, results=False, users=False, assistants=False)) == 3
