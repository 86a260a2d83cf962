"""What a template is to render of a chat with tools, and what its answer's form is."""

import json

import pytest

from specmesh.core.chat import for_template, with_format
from specmesh.core.requests import Request
from specmesh.core.sampling.constraint import Grammar, GrammarKind
from specmesh.core.sampling.sampler import SamplingParams
from specmesh.core.session_params import ChatMessage, SessionParams
from specmesh.core.tool_calls import ToolCall

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
