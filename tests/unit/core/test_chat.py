"""What a template is to render of a chat with tools, and what its answer's form is."""

import json
from collections.abc import Sequence

import pytest

from specmesh.core.chat import for_template, prompt_of, with_format
from specmesh.core.fields import Json
from specmesh.core.requests import Request
from specmesh.core.sampling.constraint import Grammar, GrammarKind
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import ChatMessage, SessionParams
from specmesh.core.tool_calls import ToolCall
from specmesh.core.vocabulary.vocabulary import Vocabulary

TOOLS = {"tools": [{"name": "f", "parameters": {}}], "choice": "auto", "parallel": True, "format": "", "thinking": ""}
LOOP = (
    ChatMessage("user", "Hi"),
    ChatMessage("assistant", "", tool_calls=(ToolCall("1", "f", "{}"),)),
    ChatMessage("tool", "a", tool_call_id="1"),
    ChatMessage("user", "And?"),
)
KNOWS = "{% if tools %}<tool_call>{% endif %}{{ m.tool_calls }}"


def params(grammar: Grammar | None = None) -> SessionParams:
    return SessionParams(SamplingParams(), 9, grammar=grammar)


def tools(**more: object) -> Grammar:
    return Grammar(GrammarKind.TOOLS, json.dumps(TOOLS | more))


def test_a_template_that_knows_tools():
    texts = {"chat_template": KNOWS, "tool_format": "hermes"}
    messages, variables = for_template(Request(None, None, params(tools()), messages=LOOP), texts)
    assert tuple(messages) == LOOP
    assert variables["tools"] == [{"type": "function", "function": {"name": "f", "parameters": {}}}]


@pytest.mark.parametrize(
    ("name", "call"), [("generic", '{"name": "f", "arguments": {}}'), ("mistral_args", "[TOOL_CALLS]f[ARGS]{}")]
)
def test_a_template_that_knows_none(name: str, call: str):
    """Tools are described in words, calls are text, and what came of them is the user's, whose turn it is once."""
    request = Request(None, None, params(tools()), messages=LOOP)
    (system, _, called, answered), variables = for_template(request, {"chat_template": "", "tool_format": name})
    assert (system.role, called.role, answered.role, variables) == ("system", "assistant", "user", {})
    assert '{"name": "f", "parameters": {}}' in system.content
    assert call in called.content
    assert (answered.content, called.tool_calls) == ("<tool_response>\na\n</tool_response>\nAnd?", ())
    plain, _ = for_template(Request(None, None, params(), messages=LOOP), {"chat_template": ""})
    assert [one.role for one in plain] == ["user", "assistant", "user"]


def test_the_form_of_an_answer():
    """As the template has it, once; in a JSON answer no thought can end."""
    texts = {"chat_template": KNOWS + "<think>", "tool_format": "hermes"}
    made = with_format(params(tools()), texts, "assistant: <think>\n")
    assert (made.thinking, json.loads(made.grammar.text)["format"]) == ("think!", "hermes")
    assert with_format(made, {"chat_template": "", "tool_format": "glm"}, "") == made
    schema = Grammar(GrammarKind.JSON_SCHEMA, "{}")
    assert with_format(params(schema), texts, "<think>").thinking == ""
    assert with_format(params(), texts, "Hi").thinking == "think"


class Target:
    """Ids are characters' codes; the template begins a thought."""

    vocabulary = Vocabulary(tuple(bytes([one]) for one in range(128)), frozenset({9, 7}))
    texts = {"chat_template": "<think>"}  # noqa: RUF012

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return list(text.encode()) if special else []

    def chat_text(self, messages: Sequence[ChatMessage], variables: Json, *, continued: bool = False) -> str:
        return f"{messages[0].content} {variables} {continued}<think>"


CHAT = (ChatMessage("user", "Hi"),)
THOUGHT = tuple(b"Hi {'a': 1} True<think>")


@pytest.mark.parametrize(
    ("request_", "ids", "thinking"),
    [
        (Request("Hi<think>", None, params()), tuple(b"Hi<think>"), ""),
        (Request("", None, params(), id="cmpl-1"), (7,), ""),
        (Request("no", None, params(), messages=CHAT, template={"a": 1}, continued=True), THOUGHT, "think!"),
        (Request("no", (72, 999), params(), messages=CHAT), (72, 999), "think"),
        (Request(None, THOUGHT, params(), id="chatcmpl-1"), THOUGHT, "think!"),
        (Request(None, THOUGHT, params(), id="cmpl-1"), THOUGHT, ""),
    ],
    ids=["text", "empty", "chat", "ids before a chat", "a chat resumed", "a completion resumed"],
)
def test_what_is_to_be_continued(request_: Request, ids: tuple[int, ...], thinking: str):
    """Ids, else a chat, else a text; a chat's answer has the form of the template: one resumed by ids is known by
    its name."""
    made, form = prompt_of(request_, Target())
    assert (made, form.thinking) == (ids, thinking)
