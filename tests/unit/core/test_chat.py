"""Chats: the ways in which a template is given a chat, and the form of its answer."""

import json
from dataclasses import replace

import pytest
from called import messages_of
from harness.tables import cases

from specmesh.core.requests import Request
from specmesh.core.sampling.constraint import Grammar, GrammarKind
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import SessionParams
from specmesh.core.text.chat import prompt_of, render, renditions, with_format
from specmesh.core.text.chat_message import ChatMessage
from specmesh.core.text.template_traits import IdKind, TemplateTraits, ThoughtField
from specmesh.core.text.tool_formats import ToolCall
from specmesh.core.vocabulary.vocabulary import Vocabulary
from specmesh.engines.template_probe import traits_of
from specmesh.errors import RequestError

TOOLED_TEXT = """{"tools": [{"name": "f", "parameters": {}}], "choice": "auto",
    "parallel": true, "format": "", "thinking": ""}"""
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


TOOLED = params(Grammar(GrammarKind.TOOLS, TOOLED_TEXT))


def chat_request(*messages, asked=None, **changes):
    return Request(None, None, asked or params(), messages=messages, **changes)


def roles(messages):
    return [message.role for message in messages]


def first(traits, asked=TOOLED):
    """Return the messages and the variables of the first way."""
    rendition = next(renditions(chat_request(*LOOP, asked=asked), traits))
    return list(rendition.messages), rendition.variables


@pytest.mark.parametrize(
    ("name", "call"),
    [("generic", '{"name": "f", "arguments": {}}'), ("mistral_args", "[TOOL_CALLS]f[ARGS]{}")],
)
def test_a_template_that_knows_no_tools(name, call):
    """Tools are described in words, calls are text, and results are part of a user's message."""
    messages, variables = first(TemplateTraits(tool_format=name))
    system, _, called, answered = messages
    assert roles(messages) == ["system", "user", "assistant", "user"]
    assert '{"name": "f", "parameters": {}}' in system.content
    assert call in system.content.replace("ARGUMENTS", "{}").replace("NAME", "f")
    assert call in called.content
    assert answered.content == "<tool_response>\na\n</tool_response>\nAnd?"
    assert (called.tool_calls, variables) == ((), {})


def test_a_loop_without_tools():
    messages, _ = first(TemplateTraits(), params())
    assert roles(messages) == ["user", "assistant", "user"]


@cases("written, chosen", '["", "generic"] ["mistral", "hermes"]')
def test_calls_in_two_forms_are_never_mixed(written, chosen):
    """Earlier calls are text if the template does not write them in the chosen form."""
    messages, _ = first(replace(HERMES, written=written, tool_format=chosen))
    text = "".join(message.content for message in messages)
    assert '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>' in text
    assert not any(message.tool_calls for message in messages)


def test_a_template_that_writes_calls_but_shows_no_tools():
    """They are described in words, in the form that it writes."""
    messages, variables = first(replace(HERMES, tools=False))
    assert "<tool_call>" in messages[0].content
    assert (messages[2].tool_calls, "tools" in variables) == (LOOP[1].tool_calls, False)


class Target:
    """Ids are codes of characters; the template begins a thought, and refuses some roles."""

    vocabulary = Vocabulary(tuple(bytes([code]) for code in range(128)), frozenset({9, 7}))
    texts = {"chat_template": "<think>"}  # noqa: RUF012
    traits = TemplateTraits(thinking="think")

    def __init__(self, refuses=lambda _: False):
        self._refuses = refuses

    def encode(self, text, *, special=True):
        return list(text.encode()) if special else []

    def chat_text(self, messages, variables, *, continued=False):
        if self._refuses(roles(messages)):
            raise RequestError(f"refused {len(messages)}", "messages")
        return f"{messages[0].content} {variables} {continued}<think>"


MESSAGES = messages_of("""
    S system system.
    U user user.
    A assistant assistant.
    """)


def chat_of(letters, **changes):
    return chat_request(*map(MESSAGES.get, letters), **changes)


def not_in_turn(roles):
    """Return True for roles that do not alternate, which Gemma and Mistral refuse."""
    turns = ["user", "assistant"] * len(roles)
    return roles != turns[: len(roles)]


def test_a_loop_is_not_joined():
    assert render(chat_request(*LOOP), Target(not_in_turn)).merged == ()


@cases("count, most", "[100, 99] [5000, 2]")
def test_a_long_chat_is_tried_in_two_ways(count, most):
    """It is tried as it is, and with everything joined."""
    tries = []

    def refuses(roles):
        tries.append(len(roles))
        return len(roles) > 2

    assert render(chat_of("S" + "U" * count), Target(refuses)).merged
    assert 1 < len(tries) <= most


def test_the_first_refusal_is_raised():
    with pytest.raises(RequestError, match="refused 3"):
        render(chat_of("UUA"), Target(lambda _: True))


def test_an_answer_has_the_form_of_the_template():
    form = with_format(TOOLED, replace(HERMES, thinking="think"), "assistant: <think>\n")
    assert form.thinking == "think!"
    assert json.loads(form.grammar.text)["format"] == "hermes"


def test_an_answer_keeps_its_form():
    form = with_format(TOOLED, HERMES, "")
    assert with_format(form, TemplateTraits(tool_format="glm"), "") == form


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
def test_a_grammar_begins_with_the_thought_that_may_come_first(kind, thinking, tail, before):
    asked = params(Grammar(kind, "{}"))
    made = with_format(asked, TemplateTraits(thinking=thinking), tail)
    assert made.grammar == Grammar(kind, "{}", before)
    assert made.thinking == before.removesuffix(".")


THOUGHT = tuple(b"user. {'a': 1} True<think>")


CHAT = chat_of("U", template={"a": 1}, continued=True)


def of_text(prompt, ids=None, name="cmpl-1"):
    return Request(prompt, ids, params(), id=name)


@pytest.mark.parametrize(
    ("asked", "ids", "thinking"),
    [
        (of_text("Hi<think>"), tuple(b"Hi<think>"), ""),
        (of_text(""), (7,), ""),
        (CHAT, THOUGHT, "think!"),
        (replace(CHAT, prompt_ids=(72, 999)), (72, 999), "think"),
        (of_text(None, THOUGHT), THOUGHT, ""),
        (of_text(None, THOUGHT, "chatcmpl-1"), THOUGHT, "think!"),
    ],
    ids=["text", "nothing", "chat", "ids", "resumed text", "resumed chat"],
)
def test_the_prompt(asked, ids, thinking):
    """A resumed chat is known by its name; only its answer has thoughts."""
    found, form = prompt_of(asked, Target())
    assert (found, form.thinking) == (ids, thinking)


def test_traits_are_read_as_they_are_written():
    traits = replace(HERMES, ids=IdKind.SHORT, thoughts=ThoughtField.PARTS, users=False)
    assert traits_of(json.loads(json.dumps(traits.as_json()))) == traits
    assert traits_of({}) == TemplateTraits()
