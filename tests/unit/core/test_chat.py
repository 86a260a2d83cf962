"""Chats: in which ways a template is given one, and its answer's form."""

import json
from dataclasses import replace

import pytest
from harness.tables import cases

from specmesh.core.requests import Request
from specmesh.core.sampling.constraint import Grammar, GrammarKind
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import ChatMessage, SessionParams
from specmesh.core.text.chat import RenderedChat, prompt_of, render, renditions, with_format
from specmesh.core.text.template_traits import IdKind, TemplateTraits, ThoughtField
from specmesh.core.text.tool_formats import ToolCall
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines.template_probe import traits_of
from specmesh.errors import RequestError

ASKED = json.loads("""
    {
      "tools": [{"name": "f", "parameters": {}}], "choice": "auto", "parallel": true,
      "format": "", "thinking": ""
    }
    """)
LOOP = (
    ChatMessage("user", "Hi"),
    ChatMessage("assistant", "", tool_calls=(ToolCall("1", "f", "{}"),)),
    ChatMessage("tool", "a", name="f", tool_call_id="1"),
    ChatMessage("user", "And?"),
)
HERMES = TemplateTraits(
    tools=True, calls=True, results=True, written="hermes", tool_format="hermes"
)


def params(grammar=None):
    return SessionParams(SamplingParams(), 9, grammar=grammar)


TOOLED = params(Grammar(GrammarKind.TOOLS, json.dumps(ASKED)))


def first(traits, asked=TOOLED):
    """The messages and the variables of the first way."""
    rendition = next(renditions(Request(None, None, asked, messages=LOOP), traits))
    return list(rendition.messages), rendition.variables


def test_a_template_that_shows_tools_and_writes_calls_in_its_own_form():
    messages, variables = first(HERMES)
    assert tuple(messages) == LOOP
    assert variables["tools"] == [{"type": "function", "function": {"name": "f", "parameters": {}}}]


@pytest.mark.parametrize(
    ("name", "call"),
    [("generic", '{"name": "f", "arguments": {}}'), ("mistral_args", "[TOOL_CALLS]f[ARGS]{}")],
)
def test_a_template_that_knows_no_tools(name, call):
    """Tools are described in words, calls are text, and what came of them is the user's, whose turn
    it is once."""
    messages, variables = first(TemplateTraits(tool_format=name))
    system, _, called, answered = messages
    assert [one.role for one in messages] == ["system", "user", "assistant", "user"]
    assert '{"name": "f", "parameters": {}}' in system.content
    assert call in system.content.replace("ARGUMENTS", "{}").replace("NAME", "f")
    assert call in called.content
    assert answered.content == "<tool_response>\na\n</tool_response>\nAnd?"
    assert (called.tool_calls, variables) == ((), {})


def test_a_loop_without_tools():
    messages, _ = first(TemplateTraits(), params())
    assert [one.role for one in messages] == ["user", "assistant", "user"]


@pytest.mark.parametrize(
    "traits",
    [
        replace(HERMES, written="", tool_format="generic"),
        replace(HERMES, written="mistral", tool_format="hermes"),
    ],
    ids=["a form that is not known", "another form than is chosen"],
)
def test_calls_in_two_forms_are_never_mixed(traits):
    """Where the model is to call in another form than the template writes, earlier calls are text
    in that form."""
    messages, _ = first(traits)
    assert '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>' in messages[-2].content + (
        messages[-3].content
    )
    assert not any(one.tool_calls for one in messages)


def test_a_template_that_writes_calls_but_shows_no_tools():
    """They are described in words, in the form that it writes."""
    messages, variables = first(replace(HERMES, tools=False))
    assert "<tool_call>" in messages[0].content
    assert (messages[2].tool_calls, "tools" in variables) == (LOOP[1].tool_calls, False)


class Target:
    """Ids are characters' codes; the template begins a thought, and refuses what `refuses` says."""

    vocabulary = Vocabulary(tuple(bytes([one]) for one in range(128)), frozenset({9, 7}))
    texts = {"chat_template": "<think>"}  # noqa: RUF012
    traits = TemplateTraits(thinking="think")

    def __init__(self, refuses=lambda _: False):
        self._refuses = refuses

    def encode(self, text, *, special=True):
        return list(text.encode()) if special else []

    def chat_text(self, messages, variables, *, continued=False):
        if self._refuses([one.role for one in messages]):
            raise RequestError(f"refused {len(messages)}", "messages")
        return f"{messages[0].content} {variables} {continued}<think>"


SYSTEM, USER, ANSWER = (ChatMessage(role, f"{role}.") for role in ("system", "user", "assistant"))


def alternates(roles):
    """Whether roles are not the user's and the assistant's in turn, as Gemma's and Mistral's want
    it."""
    return roles != (["user", "assistant"] * len(roles))[: len(roles)]


@pytest.mark.parametrize(
    ("messages", "merged", "begins"),
    [
        ((USER,), (), "user."),
        ((SYSTEM, USER), ("system",), "system.\n\nuser."),
        ((USER, USER, ANSWER, USER), ("user",), "user.\n\nuser."),
        ((SYSTEM, USER, USER), ("system", "user"), "system.\n\nuser.\n\nuser."),
        ((USER, ANSWER, SYSTEM, USER), ("system",), "user."),
        ((USER, ANSWER, ANSWER, USER), ("assistant",), "user."),
        ((replace(SYSTEM, role="developer"), USER), ("system",), "system.\n\nuser."),
        ((SYSTEM,), ("system",), "system."),
        (LOOP, (), "Hi"),
    ],
)
def test_what_is_refused_is_tried_with_more_joined(messages, merged, begins):
    chat = render(Request(None, None, params(), messages=messages), Target(alternates))
    assert chat == RenderedChat(f"{begins} {{}} False<think>", merged)


def test_an_assistant_that_begins_is_answered_after_an_empty_turn():
    chat = render(Request(None, None, params(), messages=(ANSWER, USER)), Target(alternates))
    assert chat.merged == ("assistant",)


@pytest.mark.parametrize(("count", "most"), [(100, 99), (5000, 2)])
def test_a_long_chat_is_tried_in_two_ways(count, most):
    """As it is, and with everything joined."""
    tries = []

    def refuses(roles):
        tries.append(len(roles))
        return len(roles) > 2

    chat = (SYSTEM, *[USER] * count)
    assert render(Request(None, None, params(), messages=chat), Target(refuses)).merged
    assert 1 < len(tries) <= most


def test_the_first_refusal_is_the_one_that_is_raised():
    request = Request(None, None, params(), messages=(USER, USER, ANSWER))
    with pytest.raises(RequestError, match="refused 3"):
        render(request, Target(lambda _: True))


def test_the_form_of_an_answer():
    """As the template has it, once; a grammar binds what follows the thought."""
    traits = replace(HERMES, thinking="think")
    made = with_format(TOOLED, traits, "assistant: <think>\n")
    assert made.grammar is not None
    assert (made.thinking, json.loads(made.grammar.text)["format"]) == ("think!", "hermes")
    assert with_format(made, TemplateTraits(tool_format="glm"), "") == made
    assert with_format(params(), traits, "Hi").thinking == "think"


@pytest.mark.parametrize("kind", [GrammarKind.JSON_SCHEMA, GrammarKind.GBNF])
@cases(
    "thinking, tail, before",
    r"""
    ["think", "assistant: <think>\n", "think!"]
    ["think", "assistant: ", "think"]
    ["think", "assistant: <think>\n\n</think>\n\n", "think."]
    ["harmony", "<|end|><|start|>assistant", "harmony"]
    ["", "assistant: <think>", ""]
    """,
)
def test_a_grammar_knows_which_thought_may_come_first(kind, thinking, tail, before):
    asked = params(Grammar(kind, "{}"))
    made = with_format(asked, TemplateTraits(thinking=thinking), tail)
    assert made.grammar == Grammar(kind, "{}", before)
    assert made.thinking == before.removesuffix(".")


CHAT = (ChatMessage("user", "Hi"),)
THOUGHT = tuple(b"Hi {'a': 1} True<think>")


@pytest.mark.parametrize(
    ("request_", "ids", "thinking"),
    [
        (Request("Hi<think>", None, params()), tuple(b"Hi<think>"), ""),
        (Request("", None, params(), id="cmpl-1"), (7,), ""),
        (
            Request("no", None, params(), messages=CHAT, template={"a": 1}, continued=True),
            THOUGHT,
            "think!",
        ),
        (Request("no", (72, 999), params(), messages=CHAT), (72, 999), "think"),
        (Request(None, THOUGHT, params(), id="chatcmpl-1"), THOUGHT, "think!"),
        (Request(None, THOUGHT, params(), id="cmpl-1"), THOUGHT, ""),
    ],
    ids=["text", "empty", "chat", "ids before a chat", "a chat resumed", "a completion resumed"],
)
def test_what_is_to_be_continued(request_, ids, thinking):
    """Ids, else a chat, else a text; a chat's answer has the form of the template: one resumed by
    ids is known by its name."""
    made, form = prompt_of(request_, Target())
    assert (made, form.thinking) == (ids, thinking)


def test_the_parameters_say_what_was_joined():
    request = Request(None, None, params(), messages=(SYSTEM, USER))
    _, made = prompt_of(request, Target(alternates))
    assert made.merged == ("system",)


def test_traits_are_read_as_they_are_written():
    traits = replace(HERMES, ids=IdKind.SHORT, thoughts=ThoughtField.PARTS, users=False)
    assert traits_of(json.loads(json.dumps(traits.as_json()))) == traits
    assert traits_of({}) == TemplateTraits()
